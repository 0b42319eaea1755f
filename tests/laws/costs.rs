//! What a request takes of budgets: of every one or of none, and as much as it has turned out to cost.

use crate::*;

test_support::on_every_store!(
    highest_cost_of_a_log_counts_if_it_is_possible,
    settling_a_policy_sets_its_logs_only;
    without_deny_cache:
    many_leave_a_budget_together,
);

fn policy(name: &str, limit: u32) -> PolicyHandle {
    PolicyHandle::new(Policy::new(name).quota(Quota::per_minute(limit)).budget())
}

async fn highest_cost_of_a_log_counts_if_it_is_possible(store: impl Store) {
    let (sender, receiver) = (policy("sender", 10), policy("receiver", 2));
    let limiter = limiter(&sender, store);
    let error = limiter.check_all([(&sender, "bank", 2), (&receiver, "bob", 3)]).await.unwrap_err();
    assert!(matches!(error, StoreError::CostAboveLimit { cost: 3, limit: 2 }), "{error}");
    let messages = PolicyHandle::new(Policy::new("messages").quota(Quota::per_minute(5)));
    let error = limiter.check_all([(&messages, "bank", 2)]).await.unwrap_err();
    assert!(matches!(error, StoreError::NoBudget { cost: 2 }), "{error}");
    let beside = limiter.check_all([(&messages, "post", 3), (&sender, "post", 3)]).await.unwrap();
    let states: Vec<u32> = beside.usage().quotas().map(|(_, _, it)| it.remaining()).collect();
    assert_eq!(states, [4, 7], "a quota of requests counts one request");
    assert_eq!(limiter.peek("bank").await.unwrap().remaining(), 10, "an error leaves no trace");

    let same = [(&sender, "shop", 1), (&sender, "shop", 3), (&sender, "shop", 2)];
    let decision = limiter.check_all(same).await.unwrap();
    assert_eq!(decision.admitted().unwrap().remaining(), 7, "the highest of one log counts");
    assert_eq!(limiter.peek("shop").await.unwrap().remaining(), 7);
}

pub(crate) async fn settled_request_takes_its_real_cost(store: impl Store + Clone) {
    let policy = Policy::from(Quota::per_minute(10)).budget();
    let limiter = limiter(policy, store.clone());
    let reserved = admit_cost(&limiter, 10).await;
    assert!(!limiter.check("alice").await.unwrap().is_admitted());
    assert!(limiter.settle(&reserved, 8).await.unwrap());
    let other = admit_cost(&limiter, 2).await;
    for (cost, remaining) in [(1, 7), (1, 7), (4, 4), (u32::MAX, 0), (3, 5)] {
        assert!(limiter.settle(&reserved, cost).await.unwrap(), "above the limit too");
        assert_eq!(left(&limiter).await, remaining, "settled at {cost}");
    }
    assert!(limiter.settle(&reserved, 0).await.unwrap());
    assert_eq!(left(&limiter).await, 8);
    assert!(!limiter.cancel(&reserved).await.unwrap(), "it is cancelled already");
    assert!(!limiter.settle(&reserved, 5).await.unwrap(), "a cancelled request stays so");
    assert!(limiter.settle(&other, 5).await.unwrap());
    assert!(limiter.cancel(&other).await.unwrap());
    assert_eq!(left(&limiter).await, 10, "all five are free");
    // A budget of bytes has the log of a budget.
    let bytes = crate::limiter(Policy::from(Quota::per_minute(10)).byte_budget(), store);
    admit_cost(&bytes, 3).await;
    assert_eq!(left(&limiter).await, 7);
}

async fn settling_a_policy_sets_its_logs_only(store: impl Store + Clone) {
    let policies = ["tokens", "calls", "free"].map(|name| policy(name, 20));
    let limiters = policies.each_ref().map(|policy| limiter(policy, store.clone()));
    let [tokens, calls, free] = &policies;
    let [of_tokens, of_calls, of_free] = &limiters;
    let left = async || [left(of_tokens).await, left(of_calls).await, left(of_free).await];
    let logs = [(tokens, "alice", 8), (calls, "alice", 1), (free, "alice", 0)];
    let admitted = admitted(of_tokens.check_all(logs).await.unwrap());
    assert_eq!(left().await, [12, 19, 20]);
    assert!(of_tokens.settle_policy(&admitted, "tokens", 3).await.unwrap());
    assert_eq!(left().await, [17, 19, 20]);
    assert!(!of_tokens.settle_policy(&admitted, "free", 3).await.unwrap());
    let mistyped = of_tokens.settle_policy(&admitted, "token", 3).await.unwrap_err();
    let message = "the request has no policy `token`: its policies are `tokens`, `calls`, `free`";
    assert_eq!((mistyped.to_string().as_str(), mistyped.retry_after()), (message, None));
    assert_eq!(left().await, [17, 19, 20]);
}

/// Far more entries leave the windows at once than one call of Redis counts out, and a shorter window of another
/// policy counts the same log.
async fn many_leave_a_budget_together(store: impl Store + Clone) {
    let tokens = |limit, window| {
        let quota = Quota::new(limit, Duration::from_millis(window));
        let policy = Policy::new("tokens").quota(quota).keep_for(Duration::from_millis(2_500));
        limiter(policy.budget(), store.clone())
    };
    let (long, short) = (tokens(4_000_000_000, 2_500), tokens(4_000_000_000, 900));
    let began = Instant::now();
    let is_whole = async || {
        let left_now = left(&long).await;
        let is_late = began.elapsed() > Duration::from_millis(2_400);
        assert!(left_now == 1_400_000_000 || is_late, "{left_now}");
    };
    let mut admissions = JoinSet::new();
    for _ in 0..200 {
        let long = long.clone();
        admissions.spawn(async move {
            for _ in 0..13 {
                admit_cost(&long, 1_000_000).await;
            }
        });
    }
    admissions.join_all().await;
    is_whole().await;
    let first_left = left(&short).await;
    assert!(first_left >= 1_400_000_000, "{first_left}");
    sleep(Duration::from_millis(900)).await;
    let all = short.check_cost("alice", 4_000_000_000).await.unwrap();
    short.settle(all.admitted().expect("all have left it"), 0).await.unwrap();
    is_whole().await;
    admit_cost(&short, 7).await;
    assert_eq!(left(&short).await, 3_999_999_993);
    sleep(Duration::from_millis(1_700)).await;
    assert!(left(&long).await >= 3_999_999_993);
    assert_eq!(admit_cost(&short, 4_000_000_000).await.remaining(), 0);
}
