use std::time::Duration;

use tokio::time::sleep;

use super::*;
use crate::policy::Policy;
use crate::quota::Quota;
use crate::store::faulty::Faulty;
use crate::store::{BanState, DenyCache, QuotaState, Strike};
use crate::window::LogCost;

fn log(name: &str, key: &str) -> LogId {
    let policy = Arc::new(Policy::new(name).quota(Quota::per_minute(1)));
    LogId { policy, key: key.into() }
}

fn failing(call: &'static str, key: &'static str) -> Faulty {
    let nodes = Faulty::new();
    nodes.set_behavior(move |name, log| match name == call && log.key == key.into() {
        true => Err(StoreError::Timeout),
        false => Ok(Duration::ZERO),
    });
    nodes
}

fn both() -> Check {
    Check::new([log("user", "alice"), log("ip", "::1")])
}

fn one(name: &str, key: &str) -> Check {
    Check::new([log(name, key)])
}

#[test]
fn merge_keeps_a_ban_with_its_log() {
    let check = Check::new([log("ip", "::1"), log("user", "mallory")]);
    let parts = split(&check);
    let log = || LogOutcome::new([QuotaState::new(5, Duration::ZERO, Duration::ZERO)]);
    let ban = BanState::new(Duration::from_secs(9), Strike::None);
    let outcomes = vec![Outcome::new(true, [log()]), Outcome::new(false, [log().with_ban(ban)])];
    let merged = merge(&check, &parts, outcomes);
    assert_eq!(
        merged.logs().iter().map(LogOutcome::ban).collect::<Vec<_>>(),
        [BanState::default(), ban]
    );
}

#[tokio::test(start_paused = true)]
async fn denial_stands_if_a_later_peek_fails() {
    let nodes = failing("peek", "::1");
    assert!(nodes.admit(&one("user", "alice")).await.unwrap().admitted);
    let outcome = CrossSlot::new(nodes).admit(&both()).await.unwrap();
    assert!(!outcome.admitted);
    assert_eq!(outcome.logs()[0].quotas()[0].wait_us, 60_000_000, "the wait of the full log");
    assert_eq!(outcome.rollback, Rollback::NotNeeded);
}

#[tokio::test(start_paused = true)]
async fn denial_stands_if_its_rollback_fails() {
    let nodes = failing("settle", "alice");
    assert!(nodes.admit(&one("ip", "::1")).await.unwrap().admitted);
    let outcome = CrossSlot::new(nodes).admit(&both()).await.unwrap();
    assert!(!outcome.admitted);
    assert_eq!(outcome.rollback, Rollback::Unfinished, "the request has to be cancelled later");
}

#[tokio::test(start_paused = true)]
async fn rollback_drops_cached_denials() {
    let nodes = Faulty::new();
    let latency_ms = |log: &LogId| if log.key == "::1".into() { 20 } else { 0 };
    nodes.set_behavior(move |_, log| Ok(Duration::from_millis(latency_ms(log))));
    assert!(nodes.admit(&one("ip", "::1")).await.unwrap().admitted);
    let store = DenyCache::new(CrossSlot::new(nodes)).max_age(Duration::MAX);
    let rolled_back = tokio::spawn(store.admit(&both()));
    // The user's log has recorded the request, and the check of the address is under way.
    sleep(Duration::from_millis(5)).await;
    assert!(!store.admit(&one("user", "alice")).await.unwrap().admitted);
    assert!(!rolled_back.await.unwrap().unwrap().admitted);
    assert!(store.admit(&one("user", "alice")).await.unwrap().admitted, "the log is empty");
}

#[tokio::test(start_paused = true)]
async fn each_slot_takes_its_own_cost() {
    let policy = |name: &str, limit| Arc::new(Policy::new(name).quota(Quota::per_hour(limit)));
    let (parts, messages, all) = (policy("parts", 10), policy("messages", 2), policy("all", 9));
    let check = |cost| {
        let logs = [(&parts, "bank", cost), (&messages, "bob", 1), (&all, "bank", 2)];
        let log = |(policy, key, cost): (&Arc<Policy>, &str, u32)| {
            LogCost::new(LogId::new(policy.clone(), key), cost)
        };
        Check::with_costs(logs.map(log))
    };
    let remaining = |outcome: &Outcome| {
        outcome.logs().iter().map(|log| log.quotas()[0].remaining).collect::<Vec<_>>()
    };
    let store = CrossSlot::new(Faulty::new());
    assert_eq!(remaining(&store.admit(&check(4)).await.unwrap()), [6, 1, 7]);
    assert_eq!(remaining(&store.peek(&check(4)).await.unwrap()), [6, 1, 7]);
    assert_eq!(remaining(&store.admit(&check(3)).await.unwrap()), [3, 0, 5]);
    let denied = store.admit(&check(3)).await.unwrap();
    assert_eq!((denied.admitted, denied.rollback), (false, Rollback::Done));
    assert_eq!(remaining(&denied), [3, 0, 5], "what the rollback has given back");
    assert_eq!(remaining(&store.peek(&check(0)).await.unwrap()), [3, 0, 5]);
}
