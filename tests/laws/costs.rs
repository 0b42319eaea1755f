//! A request of several places takes them in every log or in none.

use std::time::Duration;

use tower_sliding_window::store::Store;
use tower_sliding_window::{Limiter, Policy, PolicyHandle, Quota, StoreError};

test_support::on_every_store!(cost_counts_in_every_log_or_in_none);

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
