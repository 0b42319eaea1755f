//! `RateLimit` as clients use it: no pair of `r` and `t` lets a client go faster than the policy.

use std::collections::BTreeMap;
use std::time::Duration;

use http::{Request, StatusCode};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tokio::time::{Instant, advance, sleep_until};
use tower::{Layer, service_fn};
use tower_sliding_window::{MemoryStore, Policy, Quota, SlidingWindowLayer, key};

use test_support::requests::{HttpResponse, ok, request, send};

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

fn layer(policy: Policy) -> SlidingWindowLayer {
    SlidingWindowLayer::new(policy, key::constant("all"), MemoryStore::new())
        .headers_on_success(true)
}

fn anonymous() -> Request<String> {
    request(&[])
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
    let service = layer(policy).layer(service_fn(ok));
    let mut last = None;
    for gap in &case.gaps {
        advance(Duration::from_millis(*gap)).await;
        let answer = send(&service, anonymous()).await;
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
        prop_assert_eq!(send(&service, anonymous()).await.status, StatusCode::OK);
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
