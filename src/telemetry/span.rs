//! The fields of a decision on the span of its request.

use std::time::Duration;

use tracing::Span;
use tracing::dispatcher;
use tracing::field::display;

const PREFIX: &str = "rate_limit.";

/// What a span shows of a decision.
pub(crate) struct SpanFields {
    pub(crate) decision: &'static str,
    pub(crate) decided_by: &'static str,
    /// The names of policies, with commas between them.
    pub(crate) policy: String,
    pub(crate) remaining: u32,
    pub(crate) retry_after: Option<Duration>,
}

/// Records a decision on the current span. `fields` is called only if the span has declared one of them.
pub(crate) fn record_on_span(fields: impl FnOnce() -> SpanFields) {
    // Cheaper than `Span::current`, which counts references to the span and to the subscriber.
    let is_declared = dispatcher::get_default(|dispatch| {
        let current = dispatch.current_span();
        let has_prefix = |span: &tracing::Metadata<'_>| {
            span.fields().iter().any(|field| field.name().starts_with(PREFIX))
        };
        current.metadata().is_some_and(has_prefix)
    });
    if is_declared {
        record(&fields());
    }
}

fn record(fields: &SpanFields) {
    let span = Span::current();
    span.record("rate_limit.decision", fields.decision);
    span.record("rate_limit.decided_by", fields.decided_by);
    span.record("rate_limit.policy", display(&fields.policy));
    // As `i64`: tracing-opentelemetry makes a text of a `u64`.
    span.record("rate_limit.remaining", i64::from(fields.remaining));
    if let Some(wait) = fields.retry_after {
        let millis = wait.as_nanos().div_ceil(1_000_000);
        span.record("rate_limit.retry_after_ms", i64::try_from(millis).unwrap_or(i64::MAX));
    }
}
