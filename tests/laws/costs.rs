//! A request of several places takes them in every log or in none.

use std::time::Duration;

use tower_sliding_window::store::Store;
use tower_sliding_window::{Limiter, Policy, PolicyHandle, Quota, StoreError};

test_support::on_every_store!(
    cost_counts_in_every_log_or_in_none,
    each_log_has_a_cost_of_its_own,
    higher_cost_of_the_same_log_counts,
    settling_sets_every_log_or_those_of_a_policy,
);

async fn cost_counts_in_every_log_or_in_none(store: impl Store + Clone) {
    let policy = |name: &str, limit| {
        PolicyHandle::new(Policy::new(name).quota(Quota::new(limit, Duration::from_secs(60))))
    };
    let (sender, receiver) = (policy("sender", 10), policy("receiver", 4));
    let senders = Limiter::new(&sender, store.clone());
    let receivers = Limiter::new(&receiver, store);
    let logs = |to| [(&sender, "bank"), (&receiver, to)];
    let left = async |to: &str| {
        let of = [senders.peek("bank").await.unwrap(), receivers.peek(to).await.unwrap()];
        of.map(|usage| usage.remaining())
    };

    let decision = senders.check_all_cost(logs("bob"), 3).await.unwrap();
    assert_eq!(left("bob").await, [7, 1]);
    let denied = senders.check_all_cost(logs("bob"), 2).await.unwrap();
    assert_eq!(denied.denied().unwrap().violated().collect::<Vec<_>>(), ["receiver"]);
    assert_eq!(left("bob").await, [7, 1], "a denial leaves no trace");
    assert!(senders.check_all_cost(logs("bob"), 1).await.unwrap().is_admitted());
    assert!(senders.check_all_cost(logs("carol"), 4).await.unwrap().is_admitted());
    assert_eq!(left("carol").await, [2, 0]);

    assert!(senders.cancel(decision.admitted().unwrap()).await.unwrap());
    assert_eq!(left("bob").await, [5, 3], "all of its places are free");
    let error = senders.check_all_cost(logs("dave"), 5).await.unwrap_err();
    assert!(matches!(error, StoreError::CostAboveLimit { cost: 5, limit: 4 }), "{error}");
}

async fn each_log_has_a_cost_of_its_own(store: impl Store + Clone) {
    let policy = |name: &str, limit| {
        PolicyHandle::new(Policy::new(name).quota(Quota::new(limit, Duration::from_secs(60))))
    };
    let (sender, receiver) = (policy("sender", 10), policy("receiver", 2));
    let senders = Limiter::new(&sender, store.clone());
    let receivers = Limiter::new(&receiver, store);
    let logs =
        |parts, to: &'static str, messages| [(&sender, "bank", parts), (&receiver, to, messages)];
    let left = async |to: &str| {
        let of = [senders.peek("bank").await.unwrap(), receivers.peek(to).await.unwrap()];
        of.map(|usage| usage.remaining())
    };
    let violated = async |parts, to: &'static str, messages| {
        let decision = senders.check_all(logs(parts, to, messages)).await.unwrap();
        let denied = decision.denied().expect("a denial");
        assert!(denied.retry_after() > Duration::from_secs(40), "{denied:?}");
        denied.violated().map(str::to_owned).collect::<Vec<_>>()
    };

    let first = senders.check_all(logs(4, "bob", 1)).await.unwrap();
    let states: Vec<u32> = first.usage().quotas().map(|(_, _, it)| it.remaining()).collect();
    assert_eq!(states, [6, 1]);
    assert_eq!(left("bob").await, [6, 1]);
    assert!(senders.check_all(logs(0, "carol", 1)).await.unwrap().is_admitted());
    assert_eq!(left("carol").await, [6, 1], "a cost of 0 takes no place");
    assert!(senders.check_all(logs(4, "bob", 1)).await.unwrap().is_admitted());
    assert_eq!(violated(2, "bob", 1).await, ["receiver"]);
    assert_eq!(violated(3, "carol", 1).await, ["sender"]);
    assert_eq!(violated(3, "bob", 1).await, ["sender", "receiver"]);
    assert_eq!(left("bob").await, [2, 0], "a denial leaves no trace");

    assert!(senders.cancel(first.admitted().unwrap()).await.unwrap());
    assert_eq!(left("bob").await, [6, 1], "the places of each log are free");
    let error = senders.check_all(logs(2, "bob", 3)).await.unwrap_err();
    assert!(matches!(error, StoreError::CostAboveLimit { cost: 3, limit: 2 }), "{error}");
    let error = senders.check_all(logs(1_025, "bob", 1)).await.unwrap_err();
    assert!(matches!(error, StoreError::CostTooHigh { cost: 1_025, .. }), "{error}");
    assert_eq!(left("bob").await, [6, 1]);
}

async fn higher_cost_of_the_same_log_counts(store: impl Store) {
    let policy = PolicyHandle::new(Quota::per_minute(9));
    let limiter = Limiter::new(&policy, store);
    let logs = [(&policy, "alice", 1), (&policy, "alice", 3), (&policy, "alice", 2)];
    let decision = limiter.check_all(logs).await.unwrap();
    assert_eq!(decision.admitted().unwrap().remaining(), 6);
    assert_eq!(limiter.peek("alice").await.unwrap().remaining(), 6);
}

async fn settling_sets_every_log_or_those_of_a_policy(store: impl Store + Clone) {
    let policy = |name: &str| PolicyHandle::new(Policy::new(name).quota(Quota::per_minute(20)));
    let policies = [policy("tokens"), policy("calls"), policy("free")];
    let limiters = policies.each_ref().map(|policy| Limiter::new(policy, store.clone()));
    let [tokens, calls, free] = &policies;
    let left = async || {
        let mut left = Vec::new();
        for limiter in &limiters {
            left.push(limiter.peek("alice").await.unwrap().remaining());
        }
        left
    };
    let logs = [(tokens, "alice", 8), (calls, "alice", 1), (free, "alice", 0)];
    let decision = limiters[0].check_all(logs).await.unwrap();
    let admitted = decision.admitted().unwrap();
    assert_eq!(left().await, [12, 19, 20]);
    assert!(limiters[0].settle_policy(admitted, "tokens", 3).await.unwrap());
    assert_eq!(left().await, [17, 19, 20]);
    assert!(!limiters[0].settle_policy(admitted, "free", 3).await.unwrap());
    let mistyped = limiters[0].settle_policy(admitted, "token", 3).await.unwrap_err();
    let message = "the request has no policy `token`: its policies are `tokens`, `calls`, `free`";
    assert_eq!((mistyped.to_string().as_str(), mistyped.retry_after()), (message, None));
    assert!(limiters[0].settle_policy(admitted, "calls", 1_025).await.is_err());
    assert_eq!(left().await, [17, 19, 20]);
    assert!(limiters[0].settle(admitted, 5).await.unwrap());
    assert_eq!(left().await, [15, 15, 20], "a log without the request stays without it");
    assert!(limiters[0].settle_policy(admitted, "calls", 0).await.unwrap());
    assert_eq!(left().await, [15, 20, 20]);
    assert!(limiters[0].cancel(admitted).await.unwrap());
    assert_eq!(left().await, [20, 20, 20]);
}
