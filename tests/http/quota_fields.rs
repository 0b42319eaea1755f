//! The fields that show a client its quotas: which it gets, on every store, and that no pair of `r` and `t` lets a
//! client go faster than the policy.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use proptest::prelude::*;
use tokio::time::sleep_until;

use crate::*;

const HOUR: u64 = 3_600;

/// Returns the responses to two admitted requests and a denied one, with the time before them.
async fn responses(store: impl Store, choice: RateLimitHeaders) -> (Duration, [HttpResponse; 3]) {
    let policy = Policy::new("user").quota(Quota::per_hour(2)).quota(Quota::per_day(9));
    let site = Policy::new("site").quota(Quota::per_day(5));
    let layer = by_user(policy, store).rule(site, key::header("x-user-id"));
    let service = layer.headers(choice).headers_on_success(true).layer(service_fn(ok));
    let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let user = format!("{choice:?}");
    let request = || send(&service, from_user(&user));
    (before, [request().await, request().await, request().await])
}

fn draft(response: &HttpResponse) -> [Option<&str>; 2] {
    ["ratelimit-policy", "ratelimit"].map(|name| response.header(name))
}

fn legacy(response: &HttpResponse) -> [Option<u64>; 3] {
    ["limit", "remaining", "reset"].map(|name| {
        let value = response.header(&format!("x-ratelimit-{name}"))?;
        Some(value.parse().expect("a number"))
    })
}

#[track_caller]
fn assert_draft([first, _, denied]: &[HttpResponse; 3]) {
    let policy = r#""user:2/1h";q=2;w=3600, "user:9/24h";q=9;w=86400, "site";q=5;w=86400"#;
    let limit = r#""user:2/1h";r=1;t=3600, "user:9/24h";r=8;t=86400, "site";r=4;t=86400"#;
    assert_eq!(draft(first), [Some(policy), Some(limit)]);
    let limit = denied.header("ratelimit").unwrap();
    let wait = denied.retry_after().unwrap();
    assert_eq!(limit, format!(r#""user:2/1h";r=0;t={wait}, "user:9/24h";r=7, "site";r=3"#));
}

#[track_caller]
fn assert_legacy(before: Duration, [first, second, denied]: &[HttpResponse; 3]) {
    let after = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let [limit, remaining, reset] = legacy(first);
    assert_eq!((limit, remaining), (Some(2), Some(1)), "the quota with the fewest places");
    let end = before.as_secs() + HOUR..=after.as_secs() + HOUR + 1;
    assert!(end.contains(&reset.unwrap()), "{reset:?} is not in {end:?}");
    for response in [second, denied] {
        let [limit, remaining, reset] = legacy(response);
        assert_eq!((limit, remaining), (Some(2), Some(0)));
        assert!(end.contains(&reset.unwrap()), "{reset:?} is not in {end:?}");
    }
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
}

async fn chosen_fields_show_the_quotas(store: impl Store + Clone) {
    assert_eq!(RateLimitHeaders::default(), RateLimitHeaders::Draft11);
    for (choice, has_draft, has_legacy) in [
        (RateLimitHeaders::Draft11, true, false),
        (RateLimitHeaders::Legacy, false, true),
        (RateLimitHeaders::Both, true, true),
        (RateLimitHeaders::None, false, false),
    ] {
        let (before, responses) = responses(store.clone(), choice).await;
        if has_draft {
            assert_draft(&responses);
        } else {
            assert!(responses.iter().all(|response| draft(response) == [None; 2]));
        }
        if has_legacy {
            assert_legacy(before, &responses);
        } else {
            assert!(responses.iter().all(|response| legacy(response) == [None; 3]));
        }
        let denied = &responses[2];
        assert!(denied.retry_after().is_some_and(|wait| wait > HOUR - 60), "whatever the choice");
        let violated = serde_json::json!(["user:2/1h"]);
        assert_eq!(denied.document()["violated-policies"], violated, "the full quota");
    }
}

on_every_store!(chosen_fields_show_the_quotas);

/// The handler is slow.
#[tokio::test(start_paused = true)]
async fn wait_is_that_from_the_response_on() {
    for (takes, left) in [(50, 10), (70, 1)] {
        let handler = move |request| async move {
            sleep(Duration::from_secs(takes)).await;
            ok(request).await
        };
        let layer = by_user(Quota::per_minute(1), MemoryStore::new()).headers_on_success(true);
        let response = send(&layer.layer(service_fn(handler)), from_user("alice")).await;
        let expected = format!("\"default\";r=0;t={left}");
        assert_eq!(response.header("ratelimit"), Some(expected.as_str()));
    }
}

#[tokio::test(start_paused = true)]
async fn denied_cost_has_no_places_and_a_window_is_a_whole_second() {
    let policy = Policy::new("user").quota("5/500ms".parse().unwrap()).budget();
    let layer = by_user(policy, MemoryStore::new()).cost(|_| 3).headers_on_success(true);
    let service = layer.layer(service_fn(ok));
    // Two places are free for the second, which wants three.
    for left in [2, 0] {
        let response = send(&service, from_user("alice")).await;
        let limit = format!(r#""user";r={left};t=1"#);
        assert_eq!(draft(&response), [Some(r#""user";q=5;w=1"#), Some(&*limit)]);
    }
}

/// What the two fields say of one quota.
#[derive(Debug)]
struct Item {
    quota: u64,
    window: u64,
    available: u64,
    effective_window: Option<u64>,
}

/// Reads both fields, whose items must have the same names.
fn items(answer: &HttpResponse) -> Vec<Item> {
    let policies = list(answer.header("ratelimit-policy").expect("a policy"));
    let limits = list(answer.header("ratelimit").expect("a limit"));
    assert_eq!(policies.keys().collect::<Vec<_>>(), limits.keys().collect::<Vec<_>>());
    let item = |(name, policy): (&String, &BTreeMap<String, u64>)| Item {
        quota: policy["q"],
        window: policy["w"],
        available: limits[name]["r"],
        effective_window: limits[name].get("t").copied(),
    };
    policies.iter().map(item).collect()
}

fn list(text: &str) -> BTreeMap<String, BTreeMap<String, u64>> {
    let mut items = BTreeMap::new();
    for item in text.split(", ") {
        let mut parts = item.split(';');
        let name = parts.next().unwrap().trim_matches('"').to_owned();
        let pairs = parts.map(|part| part.split_once('=').expect("a parameter"));
        let parameters = pairs.map(|(name, value)| (name.to_owned(), value.parse().unwrap()));
        assert!(items.insert(name, parameters.collect()).is_none(), "a name twice in {text}");
    }
    items
}

#[derive(Clone, Debug)]
struct Case {
    quotas: Vec<(u32, u64)>,
    /// Milliseconds before each request of the history.
    gaps: Vec<u64>,
    /// When the client sends what is available, in thousandths of the effective window.
    spent_at: Vec<u64>,
}

fn cases() -> impl Strategy<Value = Case> {
    let quotas = prop::collection::btree_set((1_u32..12, 1_u64..30), 1..3);
    let gaps = prop::collection::vec(prop_oneof![Just(0), 1_u64..8_000], 1..24);
    let spent_at = prop::collection::vec(prop_oneof![Just(0), 0_u64..=1_000], 12);
    (quotas, gaps, spent_at).prop_map(|(quotas, gaps, mut spent_at)| {
        spent_at.sort_unstable();
        Case { quotas: quotas.into_iter().collect(), gaps, spent_at }
    })
}

async fn run(case: Case) -> Result<(), TestCaseError> {
    let mut policy = Policy::new("user");
    for (limit, seconds) in &case.quotas {
        policy = policy.quota(Quota::new(*limit, Duration::from_secs(*seconds)));
    }
    let layer = by_user(policy, MemoryStore::new()).headers_on_success(true);
    let service = layer.layer(service_fn(ok));
    let mut last = None;
    for gap in &case.gaps {
        advance(Duration::from_millis(*gap)).await;
        let answer = send(&service, from_user("alice")).await;
        for item in items(&answer) {
            let Some(t) = item.effective_window else { continue };
            // The rate that a client computes is at most that of the policy.
            prop_assert!(item.available * item.window <= item.quota * t, "{item:?}");
            // Draft 11, section 6: `Retry-After` is not earlier than the end of the window.
            prop_assert!(answer.retry_after().is_none_or(|wait| t <= wait), "{answer:?}");
        }
        last = Some(answer);
    }

    let (answer, now) = (last.expect("a request"), Instant::now());
    let items = items(&answer);
    let most = items.iter().map(|item| item.available).min().expect("a quota");
    let window = items.iter().filter_map(|item| item.effective_window).max().expect("a window");
    // Nothing that was available is denied, whenever in the window the client sends it.
    for at in &case.spent_at[..most as usize] {
        sleep_until(now + Duration::from_millis(at * window)).await;
        prop_assert_eq!(send(&service, from_user("alice")).await.status, StatusCode::OK);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn pairs_never_invite_too_many_requests(case in cases()) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(true).build().unwrap().block_on(run(case))?;
    }
}
