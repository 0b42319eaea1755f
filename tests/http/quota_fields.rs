//! The choice of the fields that show a client its quotas, on every store.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::StatusCode;
use test_support::on_every_store;
use test_support::requests::{HttpResponse, by_user, from_user, ok, send};
use tower::{Layer, service_fn};
use tower_sliding_window::store::Store;
use tower_sliding_window::{Policy, Quota, RateLimitHeaders, key};

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
        assert_eq!(denied.problem()["violated-policies"], violated, "the full quota");
    }
}

on_every_store!(chosen_fields_show_the_quotas);
