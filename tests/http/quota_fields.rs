//! The fields that show a client its quotas: which it gets, on every store, and that no pair of `r` and `t` lets a
//! client go faster than the policy.

use std::collections::{BTreeMap, HashMap};
use std::time::{SystemTime, UNIX_EPOCH};

use fastrand::Rng;
use tokio::time::sleep_until;

use crate::*;

const HOUR: u64 = 3_600;
const DRAFT: [&str; 2] = ["ratelimit-policy", "ratelimit"];
const LEGACY: [&str; 3] = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];

on_every_store!(chosen_fields_show_each_quota);

async fn chosen_fields_show_each_quota(store: impl Store + Clone) {
    assert_eq!(RateLimitHeaders::default(), RateLimitHeaders::Draft11);
    for (choice, has_draft, has_legacy) in [
        (RateLimitHeaders::Draft11, true, false),
        (RateLimitHeaders::Legacy, false, true),
        (RateLimitHeaders::Both, true, true),
        (RateLimitHeaders::None, false, false),
    ] {
        let policy = Policy::new("user").quota(Quota::per_hour(2)).quota(Quota::per_day(9));
        let site = Policy::new("site").quota(Quota::per_day(5));
        let layer = by_user(policy, store.clone()).rule(site, key::header("x-user-id"));
        let service = layer.headers(choice).headers_on_success(true).layer(service_fn(ok));
        let user = format!("{choice:?}");
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let before = now();
        let [first, second, denied] = [(); 3].map(|()| send(&service, from_user(&user)));
        let (first, second, denied) = (first.await, second.await, denied.await);
        assert_eq!(denied.status, TOO_MANY);
        let wait = denied.retry_after().expect("whatever the choice");
        assert!(wait > HOUR - 60, "{wait}");
        assert_eq!(denied.document()["violated-policies"], json!(["user:2/1h"]), "the full quota");

        let policy = r#""user:2/1h";q=2;w=3600, "user:9/24h";q=9;w=86400, "site";q=5;w=86400"#;
        let limit = r#""user:2/1h";r=1;t=3600, "user:9/24h";r=8;t=86400, "site";r=4;t=86400"#;
        let full = format!(r#""user:2/1h";r=0;t={wait}, "user:9/24h";r=7, "site";r=3"#);
        for (response, limit) in [(&first, limit), (&denied, &full)] {
            let fields = [policy, limit].map(|field| has_draft.then_some(field));
            assert_eq!(DRAFT.map(|name| response.header(name)), fields, "{choice:?}");
        }
        // The older ones show the quota with the fewest places.
        let end = before + HOUR..=now() + HOUR + 1;
        for (response, left) in [(first, "1"), (second, "0"), (denied, "0")] {
            let [limit, remaining, reset] = LEGACY.map(|name| response.header(name));
            let shown = ["2", left].map(|field| has_legacy.then_some(field));
            assert_eq!([limit, remaining], shown, "{choice:?}");
            let reset = reset.map(|it| it.parse().unwrap());
            assert!(reset.map_or(!has_legacy, |it| end.contains(&it)), "{reset:?} of {end:?}");
        }
    }
}

/// The handler is slow.
#[tokio::test(start_paused = true)]
async fn wait_is_that_from_the_response_on() {
    for (takes, left) in [(50, 10), (70, 1)] {
        let handler = move |request| async move {
            sleep(Duration::from_secs(takes)).await;
            ok(request).await
        };
        let layer = alone(Quota::per_minute(1)).headers_on_success(true);
        let response = send(&layer.layer(service_fn(handler)), from_user("alice")).await;
        let expected = format!("\"default\";r=0;t={left}");
        assert_eq!(response.header("ratelimit"), Some(expected.as_str()));
    }
}

#[tokio::test(start_paused = true)]
async fn denied_cost_has_no_places_and_a_window_is_a_whole_second() {
    let policy = Policy::new("user").quota("5/500ms".parse().unwrap()).budget();
    let service = alone(policy).cost(|_| 3).headers_on_success(true).layer(service_fn(ok));
    // Two places are free for the second, which wants three.
    for left in [2, 0] {
        let response = send(&service, from_user("alice")).await;
        let limit = format!(r#""user";r={left};t=1"#);
        let fields = DRAFT.map(|name| response.header(name));
        assert_eq!(fields, [Some(r#""user";q=5;w=1"#), Some(&*limit)]);
    }
}

/// Reads a field: the parameters of each item, by its name.
fn items(answer: &HttpResponse, field: &str) -> BTreeMap<String, HashMap<String, u64>> {
    let text = answer.header(field).expect("a list");
    let mut items = BTreeMap::new();
    for item in text.split(", ") {
        let mut parts = item.split(';');
        let name = parts.next().unwrap().to_owned();
        let pairs = parts.map(|part| part.split_once('=').expect("a parameter"));
        let parameters = pairs.map(|(name, value)| (name.to_owned(), value.parse().unwrap()));
        assert!(items.insert(name, parameters.collect()).is_none(), "a name twice in {text}");
    }
    items
}

#[tokio::test(start_paused = true)]
async fn pairs_never_invite_too_many_requests() {
    for _ in 0..300 {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        play(Rng::with_seed(seed)).await;
    }
}

/// Sends requests at random times, and then what was available at the last one, whenever in its window.
async fn play(mut rng: Rng) {
    let mut policy = Policy::new("user");
    for at in 0..rng.u64(1..3) {
        // No two windows are of one length.
        let window = Duration::from_secs(1 + 15 * at + rng.u64(..15));
        policy = policy.quota(Quota::new(rng.u32(1..12), window));
    }
    let service = alone(policy).headers_on_success(true).layer(service_fn(ok));
    let (mut available, mut ends_in) = (u64::MAX, 0);
    for _ in 0..rng.usize(1..24) {
        let gap = if rng.bool() { 0 } else { rng.u64(1..8_000) };
        advance(Duration::from_millis(gap)).await;
        let answer = send(&service, from_user("alice")).await;
        let [policies, limits] = DRAFT.map(|name| items(&answer, name));
        assert!(policies.keys().eq(limits.keys()), "{answer:?}");
        for (policy, limit) in policies.values().zip(limits.values()) {
            let Some(t) = limit.get("t") else { continue };
            // The rate that a client computes is at most that of the policy.
            assert!(limit["r"] * policy["w"] <= policy["q"] * t, "{answer:?}");
            // Draft 11, section 6: `Retry-After` is not earlier than the end of the window.
            assert!(answer.retry_after().is_none_or(|wait| *t <= wait), "{answer:?}");
        }
        available = limits.values().map(|it| it["r"]).min().expect("a quota");
        ends_in = *limits.values().filter_map(|it| it.get("t")).max().expect("a window");
    }

    let now = Instant::now();
    // Often all at once, which finds no place that has come free meanwhile.
    let latest_ms = if rng.bool() { 0 } else { ends_in * 1_000 };
    let mut at_ms: Vec<_> = (0..available).map(|_| rng.u64(..=latest_ms)).collect();
    at_ms.sort_unstable();
    for at in at_ms {
        sleep_until(now + Duration::from_millis(at)).await;
        assert_eq!(status(&service, "alice").await, OK, "{available} within {ends_in} s");
    }
}
