//! Quotas of single keys that change while they are in use. The recipe `plans` of the guide has the plans of
//! users, and is a test too.

use std::time::Duration;

use test_support::on_every_store;
use test_support::requests::{ok, status};
use tower::{Layer, service_fn};
use tower_sliding_window::store::Store;
use tower_sliding_window::{
    Override, Overrides, Policy, PolicyError, PolicyHandle, Quota, SlidingWindowLayer, key,
};

use crate::{OK, TOO_MANY};

fn user(quota: Quota) -> PolicyHandle {
    Policy::new("user").quota(quota).keep_for(Duration::from_secs(3_600)).into()
}

async fn override_changes_while_in_use(store: impl Store) {
    let users = Overrides::new(user(Quota::per_hour(1)));
    let choose = users.clone();
    let all = Policy::new("all").quota(Quota::per_hour(5));
    let service =
        SlidingWindowLayer::by(move |_, key| choose.get(key), key::header("x-user-id"), store)
            .rule(all, key::constant("all"))
            .layer(service_fn(ok));
    let order = async |expected| assert_eq!(status(&service, "alice").await, expected);
    order(OK).await;
    order(TOO_MANY).await;
    users.set("alice", "2/1h".parse().unwrap()).unwrap();
    order(OK).await;
    order(TOO_MANY).await;
    users.set("alice", Override::Exempt).unwrap();
    order(OK).await;
    users.remove("alice");
    order(TOO_MANY).await;
    users.set("alice", Override::Exempt).unwrap();
    for expected in [OK, OK, TOO_MANY] {
        order(expected).await; // the other rule counts her requests
    }
}

on_every_store!(override_changes_while_in_use);

/// Returns the quotas of a key, or `exempt`.
fn quotas(overrides: &Overrides, key: &str) -> String {
    let policy = overrides.get(&key.into());
    policy.map_or("exempt".to_owned(), |policy| policy.get().to_string())
}

#[test]
fn override_of_another_name_changes_nothing() {
    let users = Overrides::new(user(Quota::per_minute(5)));
    users.set("carol", Override::Exempt).unwrap();
    let other = Override::Policy(Policy::new("other").quota(Quota::per_minute(9)));
    let error = users.reload([("alice", Override::Exempt), ("bob", other)]).unwrap_err();
    assert!(matches!(error, PolicyError::Renamed { .. }), "{error}");
    let all = || ["alice", "bob", "carol"].map(|key| quotas(&users, key));
    assert_eq!(all(), ["5/60s", "5/60s", "exempt"]);
    users.reload([("alice", Override::Exempt)]).unwrap();
    assert_eq!(all(), ["exempt", "5/60s", "5/60s"], "a reload replaces all");
}

/// An override takes the rest from the policy as it is now.
#[test]
fn override_follows_the_policy() {
    let policy = PolicyHandle::new(Policy::new("user").quota(Quota::per_minute(5)));
    let users = Overrides::new(&policy);
    users.set("alice", "9/1s".parse().unwrap()).unwrap();
    let of_alice = users.get(&"alice".into()).unwrap();
    assert!(of_alice.get().get_penalty().is_none());
    let with_penalty = Policy::new("user").quota(Quota::per_minute(5));
    policy.set(with_penalty.penalty("1/1h:1h".parse().unwrap())).unwrap();
    let now = users.get(&"alice".into()).unwrap().get();
    assert!(now.get_penalty().is_some(), "its bans are enforced for alice too");
    assert_eq!(now.log_name(), policy.get().log_name(), "a shorter window keeps the log");
    assert_eq!((now.to_string(), of_alice.get()), ("9/1s".to_owned(), now), "the same handle");
}
