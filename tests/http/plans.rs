//! Rules whose policy depends on the request or on its key, on every store.

use std::time::Duration;

use http::{Request, StatusCode};
use serde::Deserialize;
use test_support::on_every_store;
use test_support::requests::{ok, request, send};
use tower::{Layer, service_fn};
use tower_sliding_window::store::Store;
use tower_sliding_window::{
    Limiter, Override, Overrides, Policy, PolicyError, PolicyHandle, Quota, SlidingWindowLayer, key,
};

const OK: StatusCode = StatusCode::OK;
const TOO_MANY: StatusCode = StatusCode::TOO_MANY_REQUESTS;

/// Returns a policy of a plan. All plans share the log of a user.
fn user(quota: Quota) -> PolicyHandle {
    Policy::new("user").quota(quota).keep_for(Duration::from_secs(3_600)).into()
}

fn of_plan(user: &str, plan: &str) -> Request<String> {
    request(&[("x-user-id", user), ("x-plan", plan)])
}

/// A layer for the plans `free`, `paid` and `internal`, which is exempt.
fn by_plan(store: impl Store) -> SlidingWindowLayer {
    let (free, paid) = (user(Quota::per_minute(2)), user(Quota::per_hour(4)));
    let choose = move |parts: &http::request::Parts, _: &_| match parts
        .headers
        .get("x-plan")
        .and_then(|plan| plan.to_str().ok())
    {
        Some("internal") => None,
        Some("paid") => Some(paid.clone()),
        _ => Some(free.clone()),
    };
    SlidingWindowLayer::by(choose, key::header("x-user-id"), store)
}

async fn plan_of_the_request_decides(store: impl Store) {
    let service = by_plan(store).layer(service_fn(ok));
    for (user, plan, limit) in [("alice", "free", 2), ("bob", "paid", 4)] {
        for _ in 0..limit {
            assert_eq!(send(&service, of_plan(user, plan)).await.status, OK);
        }
        assert_eq!(send(&service, of_plan(user, plan)).await.status, TOO_MANY);
    }
}

async fn exempt_request_is_not_counted(store: impl Store + Clone) {
    let service = by_plan(store.clone()).layer(service_fn(ok));
    for _ in 0..9 {
        assert_eq!(send(&service, of_plan("alice", "internal")).await.status, OK);
    }
    let limiter = Limiter::new(user(Quota::per_minute(2)), store);
    assert_eq!(limiter.peek("alice").await.unwrap().remaining(), 2);
}

async fn exempt_request_is_held_to_other_rules(store: impl Store) {
    let all = Policy::new("all").quota(Quota::per_hour(1));
    let service = by_plan(store).rule(all, key::constant("all")).layer(service_fn(ok));
    assert_eq!(send(&service, of_plan("alice", "internal")).await.status, OK);
    assert_eq!(send(&service, of_plan("bob", "internal")).await.status, TOO_MANY);
}

async fn upgrade_keeps_the_history(store: impl Store) {
    let service = by_plan(store).layer(service_fn(ok));
    let mut statuses = Vec::new();
    for plan in ["free", "free", "free", "paid", "paid", "paid", "free"] {
        statuses.push(send(&service, of_plan("alice", plan)).await.status);
    }
    assert_eq!(statuses, [OK, OK, TOO_MANY, OK, OK, TOO_MANY, TOO_MANY]);
}

async fn override_changes_while_in_use(store: impl Store) {
    let users = Overrides::new(user(Quota::per_hour(1)));
    let choose = users.clone();
    let layer =
        SlidingWindowLayer::by(move |_, key| choose.get(key), key::header("x-user-id"), store);
    let service = layer.layer(service_fn(ok));
    let order = async || send(&service, of_plan("alice", "")).await.status;
    assert_eq!((order().await, order().await), (OK, TOO_MANY));
    users.set("alice", "2/1h".parse().unwrap()).unwrap();
    assert_eq!((order().await, order().await), (OK, TOO_MANY), "the log is the same");
    users.set("alice", Override::Exempt).unwrap();
    assert_eq!((order().await, order().await), (OK, OK));
    users.remove("alice");
    assert_eq!(order().await, TOO_MANY);
}

async fn override_comes_before_the_plan(store: impl Store) {
    let users = Overrides::new(user(Quota::per_minute(1)));
    users.set("alice", "3/60s".parse().unwrap()).unwrap();
    users.set("monitor", "exempt".parse().unwrap()).unwrap();
    let paid = user(Quota::per_minute(2));
    let service = SlidingWindowLayer::by(
        move |_, key| users.override_of(key).unwrap_or_else(|| Some(paid.clone())),
        key::header("x-user-id"),
        store,
    )
    .layer(service_fn(ok));
    for (user, limit) in [("alice", 3), ("bob", 2), ("monitor", 9)] {
        for _ in 0..limit {
            assert_eq!(send(&service, request(&[("x-user-id", user)])).await.status, OK);
        }
        let last = send(&service, request(&[("x-user-id", user)])).await.status;
        assert_eq!(last, if user == "monitor" { OK } else { TOO_MANY });
    }
}

on_every_store!(
    plan_of_the_request_decides,
    exempt_request_is_not_counted,
    exempt_request_is_held_to_other_rules,
    upgrade_keeps_the_history,
    override_changes_while_in_use,
    override_comes_before_the_plan,
);

/// Returns the quotas of a key, or `exempt`.
fn quotas(overrides: &Overrides, key: &str) -> String {
    let policy = overrides.get(&key.into());
    policy.map_or("exempt".to_owned(), |policy| policy.get().to_string())
}

#[test]
fn overrides_are_read_from_a_document() {
    #[derive(Deserialize)]
    struct Configuration {
        overrides: std::collections::BTreeMap<String, Override>,
    }
    let read = |text: &str| toml::from_str::<Configuration>(text).map(|it| it.overrides);
    let document = r#"
        [overrides]
        alice = "100/60s"
        monitor = "exempt"
        "192.0.2.7".quotas = ["2/1s", "50/60s"]
    "#;
    let users = Overrides::new(user(Quota::per_minute(5)));
    users.reload(read(document).unwrap()).unwrap();
    let all = ["alice", "monitor", "192.0.2.7", "bob"].map(|key| quotas(&users, key));
    assert_eq!(all, ["100/60s", "exempt", "2/1s,50/60s", "5/60s"]);
    assert_eq!(users.get(&"alice".into()).unwrap().get().name(), "user");

    let error = read("overrides.alice = \"5 per minute\"").unwrap_err().to_string();
    assert!(error.contains("line 1") && error.contains("5 per minute"), "{error}");
    users.reload([("bob", Override::Exempt)]).unwrap();
    assert_eq!(["alice", "bob"].map(|key| quotas(&users, key)), ["5/60s", "exempt"]);
}

#[test]
fn override_of_another_name_changes_nothing() {
    let users = Overrides::new(user(Quota::per_minute(5)));
    let other = Override::Policy(Policy::new("other").quota(Quota::per_minute(9)));
    let error = users.reload([("alice", Override::Exempt), ("bob", other)]).unwrap_err();
    assert!(matches!(error, PolicyError::Renamed { .. }), "{error}");
    assert_eq!(["alice", "bob"].map(|key| quotas(&users, key)), ["5/60s", "5/60s"]);
}

/// An override takes the rest from the policy as it is now.
#[test]
fn override_follows_the_policy() {
    let policy = PolicyHandle::new(Policy::new("user").quota(Quota::per_minute(5)));
    let users = Overrides::new(&policy);
    users.set("alice", "9/60s".parse().unwrap()).unwrap();
    let of_alice = users.get(&"alice".into()).unwrap();
    assert!(of_alice.get().get_penalty().is_none());
    let with_penalty = Policy::new("user").quota(Quota::per_minute(5));
    policy.set(with_penalty.penalty("1/1h:1h".parse().unwrap())).unwrap();
    let now = users.get(&"alice".into()).unwrap().get();
    assert!(now.get_penalty().is_some(), "its bans are enforced for alice too");
    assert_eq!(
        (now.to_string(), of_alice.get()),
        ("9/60s".to_owned(), now),
        "the handle is the same"
    );
}
