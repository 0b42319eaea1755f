//! The fields of a decision on the span of tower-http's `TraceLayer`.

use ::tracing::field::Empty;
use ::tracing::subscriber::DefaultGuard;
use ::tracing::{Level, Span, debug_span, info_span};
use tempfile::NamedTempFile;
use tower_http::trace::TraceLayer;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::*;

/// Keeps the spans that this thread closes, and its events.
fn listen(most: Level) -> (NamedTempFile, DefaultGuard) {
    let file = NamedTempFile::new().unwrap();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(most)
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(false)
        .with_writer(file.reopen().unwrap())
        .finish();
    (file, ::tracing::subscriber::set_default(subscriber))
}

/// Returns what was written, which never holds a key.
fn text(file: &NamedTempFile) -> String {
    let text = std::fs::read_to_string(file).unwrap();
    assert!(!text.contains("mallory"), "{text}");
    text
}

/// The span of the documentation.
fn with_all_fields<B>(request: &Request<B>) -> Span {
    info_span!(
        "request",
        path = request.uri().path(),
        rate_limit.decision = Empty,
        rate_limit.policy = Empty,
        rate_limit.remaining = Empty,
        rate_limit.retry_after_ms = Empty,
        rate_limit.decided_by = Empty,
    )
}

fn two_a_minute() -> Policy {
    Policy::new("user").quota(Quota::per_minute(2))
}

/// Returns the fields of each closed span of three requests, such as `rate_limit.remaining=4`.
async fn spans_of(
    layer: SlidingWindowLayer,
    make_span: fn(&Request<String>) -> Span,
) -> Vec<String> {
    let (file, _subscriber) = listen(Level::INFO);
    let trace = TraceLayer::new_for_http().make_span_with(make_span);
    let service = trace.layer(layer.layer(service_fn(ok)));
    for _ in 0..3 {
        status(&service, "mallory").await;
    }
    let text = text(&file);
    let fields = text.lines().filter_map(|line| line.split_once("request{")?.1.split_once('}'));
    fields.map(|(fields, _)| fields.to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_span_shows_the_decision() {
    let spans = spans_of(alone(two_a_minute()), with_all_fields).await;
    let admitted = |remaining: u32| {
        format!(
            r#"path="/" rate_limit.decision="admitted" rate_limit.decided_by="store" rate_limit.policy=user rate_limit.remaining={remaining}"#
        )
    };
    let denied = r#"path="/" rate_limit.decision="denied" rate_limit.decided_by="store" rate_limit.policy=user rate_limit.remaining=0 rate_limit.retry_after_ms=60000"#;
    assert_eq!(spans, [&admitted(1), &admitted(0), denied]);
}

#[tokio::test(start_paused = true)]
async fn a_span_names_the_policies_that_deny() {
    let all = Policy::new("all").quota(Quota::per_minute(1));
    let layer = alone(two_a_minute()).rule(all, key::constant("all"));
    let spans = spans_of(layer.shadow(true), with_all_fields).await;
    assert!(spans[0].contains("rate_limit.policy=user,all rate"), "{spans:?}");
    assert!(spans[1].contains("rate_limit.policy=all rate"), "{spans:?}");
    assert!(spans[1].contains(r#"rate_limit.decision="shadow_denied""#), "{spans:?}");
}

#[tokio::test(start_paused = true)]
async fn a_span_gets_only_what_it_declares() {
    let layer = || alone(two_a_minute());
    let some = |_: &Request<String>| info_span!("request", rate_limit.decision = Empty);
    let spans = spans_of(layer(), some).await;
    assert_eq!(spans[2], r#"rate_limit.decision="denied""#);
    let none = |_: &Request<String>| info_span!("request", limit = 1);
    assert_eq!(spans_of(layer(), none).await, ["limit=1"; 3]);
    let disabled = |_: &Request<String>| debug_span!("request", rate_limit.decision = Empty);
    assert!(spans_of(layer(), disabled).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_missing_key_is_a_debug_event() {
    for (most, expected) in [(Level::DEBUG, 1), (Level::INFO, 0)] {
        let (file, _subscriber) = listen(most);
        let (policy, by) = (two_a_minute(), key::header("x-tenant"));
        let layer = SlidingWindowLayer::new(policy, by, MemoryStore::new());
        assert_eq!(status(&layer.layer(service_fn(ok)), "mallory").await, 401);
        let event = r#"a request has no key for a rule policy="user" reason="missing""#;
        assert_eq!(text(&file).matches(event).count(), expected, "{}", text(&file));
    }
}
