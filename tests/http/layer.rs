//! One rule or several in front of a service, requests that have no key for one of them, and quotas of single keys
//! that change while they are in use. The recipe `plans` of the guide has the plans of users, and is a test too.

use std::net::IpAddr;

use crate::*;

const MINUTE: Duration = Duration::from_secs(60);
const ORIGIN: (&str, &str) = ("origin", "https://shop.example");
const ASKS: (&str, &str) = ("access-control-request-method", "POST");

/// Responds with the places that the request has left.
async fn remaining(request: Request<String>) -> Result<Response<String>, Infallible> {
    let decision = request.extensions().get::<Decision>();
    let left = decision.and_then(Decision::admitted).map(|admitted| admitted.remaining());
    Ok(Response::new(left.map_or("not counted".to_owned(), |left| left.to_string())))
}

#[tokio::test(start_paused = true)]
async fn only_a_whole_preflight_is_not_counted() {
    let (user, origin, asks) = (("x-user-id", "alice"), ORIGIN, ASKS);
    for (headers, method, is_counted) in [
        (&[user, origin, asks][..], Method::OPTIONS, false),
        (&[origin, asks], Method::OPTIONS, false),
        (&[user], Method::OPTIONS, true),
        (&[user, origin], Method::OPTIONS, true),
        (&[user, asks], Method::OPTIONS, true),
        (&[user, origin, asks], Method::GET, true),
    ] {
        let service = alone(Quota::new(3, MINUTE)).layer(service_fn(remaining));
        for left in ["2", "1"] {
            let mut request = request(headers);
            *request.method_mut() = method.clone();
            let answer = send(&service, request).await;
            let expected = if is_counted { left } else { "not counted" };
            assert_eq!(answer.body, expected, "{method} {headers:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn custom_skip_replaces_the_default() {
    let layer = alone(Quota::new(1, MINUTE)).skip(|parts| parts.uri.path() == "/health");
    let service = layer.layer(service_fn(ok));
    for (path, status) in [("/health", OK), ("/", OK), ("/health", OK), ("/", TOO_MANY)] {
        let mut request = request(&[("x-user-id", "alice"), ORIGIN, ASKS]);
        (*request.method_mut(), *request.uri_mut()) = (Method::OPTIONS, path.parse().unwrap());
        assert_eq!(send(&service, request).await.status, status, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn jitter_makes_the_told_wait_longer_and_never_shorter() {
    let exact = Arc::new(Mutex::new(Vec::new()));
    let seen = exact.clone();
    let policy = Policy::from(Quota::new(1, MINUTE)).quota(Quota::per_second(9));
    let service = alone(policy)
        .retry_jitter(Duration::from_secs(20))
        .on_decision(move |it| seen.lock().unwrap().push(it.usage().retry_after()))
        .layer(service_fn(ok));
    assert_eq!(status(&service, "alice").await, OK);
    let mut told = std::collections::BTreeSet::new();
    for _ in 0..100 {
        let answer = send(&service, from_user("alice")).await;
        let wait = answer.retry_after().unwrap();
        let told_too = format!("\"default:1/60s\";r=0;t={wait}");
        assert!(answer.header("ratelimit").unwrap().ends_with(&told_too), "{answer:?}");
        assert_eq!(answer.document()["violated-policies"], json!(["default:1/60s"]));
        assert!((60..=80).contains(&wait), "{wait}");
        told.insert(wait);
    }
    assert!(told.len() > 10, "{told:?}");
    assert!(exact.lock().unwrap()[1..].iter().all(|wait| *wait == MINUTE));
}

/// A rule by user, and one by address that admits so many.
fn by_user_and_ip(of_ip: u32, store: &MemoryStore) -> SlidingWindowLayer {
    let ip = Policy::new("ip").quota(Quota::per_hour(of_ip));
    by_user(Quota::per_minute(1), store.clone()).rule(ip, key::header("x-ip"))
}

#[tokio::test(start_paused = true)]
async fn request_without_a_key_is_refused_and_uncounted() {
    const ONE_IS_MISSING: [&[(&str, &str)]; 4] =
        [&[], &[("x-ip", "1")], &[("x-user-id", "alice")], &[("x-user-id", ""), ("x-ip", "1")]];
    const TWO_USERS: &[&[(&str, &str)]] =
        &[&[("x-user-id", "a"), ("x-user-id", "b"), ("x-ip", "1")]];
    let store = MemoryStore::new();
    let layer = || by_user_and_ip(1, &store);
    let forbidden = || layer().on_missing_key(MissingKey::Reject(StatusCode::FORBIDDEN));
    let optional = key::optional(key::header("x-user-id"));
    let optional = SlidingWindowLayer::new(Quota::per_minute(1), optional, store.clone());
    let (missing, ambiguous) =
        ("The request has no key for a rate limit", "ambiguous or malformed");
    for (layer, requests, status, detail) in [
        (layer(), &ONE_IS_MISSING[..], 401, missing),
        (forbidden(), &ONE_IS_MISSING, 403, missing),
        (layer(), TWO_USERS, 400, ambiguous),
        (forbidden(), TWO_USERS, 400, ambiguous),
        (layer().on_missing_key(MissingKey::SkipRule), TWO_USERS, 400, ambiguous),
        (optional, TWO_USERS, 400, ambiguous),
    ] {
        let service = layer.layer(service_fn(ok));
        for headers in requests {
            let answer = send(&service, request(headers)).await;
            assert_eq!(answer.status, status, "{headers:?}");
            assert!(answer.document()["detail"].to_string().contains(detail), "{headers:?}");
            assert_eq!(answer.header("retry-after"), None);
        }
    }
    assert!(store.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_missing_key_can_skip_its_rule_and_no_other() {
    let layer = by_user_and_ip(2, &MemoryStore::new()).on_missing_key(MissingKey::SkipRule);
    let service = layer.layer(service_fn(ok));
    let anonymous = || request(&[("x-ip", "1")]);
    for _ in 0..2 {
        assert_eq!(send(&service, anonymous()).await.status, OK);
    }
    let answer = send(&service, anonymous()).await;
    assert_eq!(answer.document()["violated-policies"], json!(["ip"]));
    assert_eq!(answer.header("ratelimit-policy"), Some(r#""ip";q=2;w=3600"#));
    for _ in 0..5 {
        assert_eq!(send(&service, request(&[])).await.status, OK, "no rule applies");
    }
}

/// A user may choose any name, also one that reads like an address.
#[tokio::test(start_paused = true)]
async fn unnamed_rules_keep_logs_of_their_own() {
    let from = |user: &str, ip: [u8; 4]| {
        let mut request = from_user(user);
        request.extensions_mut().insert(IpAddr::from(ip));
        request
    };
    for user in ["ABCD", "65.66.67.68", "6:rule-265.66.67.68", "6:rule-165.66.67.68"] {
        let policy = PolicyHandle::new(Quota::per_minute(1));
        let by_user = || alone(&policy);
        let chosen = policy.clone();
        let by_address = by_user().rule_choosing(move |_, _| Some(chosen.clone()), key::peer_ip());
        for layer in [by_user().rule(&policy, key::peer_ip()), by_address] {
            let service = layer.layer(service_fn(ok));
            assert_eq!(send(&service, from(user, [10, 0, 0, 1])).await.status, OK, "{user}");
            let other = send(&service, from("alice", [65, 66, 67, 68])).await;
            assert_eq!(other.status, OK, "{user} is no address");
            assert_eq!(send(&service, from(user, [10, 0, 0, 2])).await.status, TOO_MANY);
            assert_eq!(send(&service, from("bob", [65, 66, 67, 68])).await.status, TOO_MANY);
        }
    }
}

/// A limiter finds it, although another rule may choose a policy without a name.
#[tokio::test(start_paused = true)]
async fn key_under_a_named_policy_has_no_number() {
    let store = MemoryStore::new();
    let named = PolicyHandle::new(Policy::new("user").quota(Quota::per_minute(2)));
    let [one, other] = [named.clone(), Quota::per_minute(2).into()];
    let by = || key::header("x-user-id");
    let layer = SlidingWindowLayer::choosing(move |_, _| Some(one.clone()), by(), store.clone())
        .rule_choosing(move |_, _| Some(other.clone()), by());
    assert_eq!(status(&layer.layer(service_fn(ok)), "alice").await, OK);
    assert_eq!(left(&named, &store).await, 1);
}

/// Their logs have names of their own, because they are kept for longer.
#[tokio::test(start_paused = true)]
async fn unnamed_rules_keep_bans_of_their_own() {
    let policy = || Policy::from(Quota::per_minute(1)).penalty("1/1m:1h".parse().unwrap());
    let service = alone(policy())
        .rule(policy().keep_for(Duration::from_secs(120)), key::header("x-address"))
        .layer(service_fn(ok));
    let from = |user, address| request(&[("x-user-id", user), ("x-address", address)]);
    assert_eq!(send(&service, from("10.0.0.1", "10.0.0.2")).await.status, OK);
    assert_eq!(send(&service, from("10.0.0.1", "10.0.0.3")).await.status, StatusCode::FORBIDDEN);
    assert_eq!(send(&service, from("alice", "10.0.0.1")).await.status, OK, "a user is banned");
}

fn user(quota: Quota) -> PolicyHandle {
    Policy::new("user").quota(quota).keep_for(Duration::from_secs(3_600)).into()
}

#[test]
fn override_has_the_penalty_and_the_log_of_all_keys() {
    let common = user(Quota::per_minute(5));
    let users = Overrides::new(&common);
    users.set("alice", "9/1s".parse().unwrap()).unwrap();
    let made = || users.get(&"alice".into()).unwrap().get();
    assert!(Arc::ptr_eq(&made(), &made()), "requests of one policy share calls to Redis");
    let penalty: Penalty = "3/1h:1m".parse().unwrap();
    common.set(Policy::clone(&common.get()).penalty(penalty.clone())).unwrap();
    let of_alice = made();
    assert_eq!((of_alice.to_string(), of_alice.get_penalty()), ("9/1s".into(), Some(&penalty)));
    assert_eq!(of_alice.log_name(), common.get().log_name(), "a shorter window keeps the log");
}

#[test]
fn override_of_another_name_changes_nothing() {
    let users = Overrides::new(user(Quota::per_minute(5)));
    users.set("carol", Override::Exempt).unwrap();
    let other = Override::Policy(Policy::new("other").quota(Quota::per_minute(9)));
    let error = users.reload([("alice", Override::Exempt), ("bob", other)]).unwrap_err();
    assert!(matches!(error, PolicyError::Renamed { .. }), "{error}");
    let exempt = || ["alice", "bob", "carol"].map(|key| users.get(&key.into()).is_none());
    assert_eq!(exempt(), [false, false, true]);
    assert_eq!(users.get(&"bob".into()).unwrap().get().to_string(), "5/60s");
    users.reload([("alice", Override::Exempt)]).unwrap();
    assert_eq!(exempt(), [true, false, false], "a reload replaces all");
}
