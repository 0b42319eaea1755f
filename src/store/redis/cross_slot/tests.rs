use std::time::Duration;

use tokio::time::sleep;

use super::*;
use crate::policy::Policy;
use crate::quota::Quota;
use crate::store::{BanState, DenyCache, MemoryStore, QuotaState, Strike};

/// Logs of several keys, of which some can't be asked something.
#[derive(Clone, Default)]
struct Nodes {
    store: MemoryStore,
    /// What fails: an action and a key.
    broken: Option<(&'static str, &'static str)>,
    /// The key that answers late.
    late: Option<&'static str>,
}

impl Nodes {
    fn answer<T: Send + 'static>(
        &self,
        action: &str,
        check: &Check,
        answer: impl FnOnce(&MemoryStore) -> StoreFuture<T> + Send + 'static,
    ) -> StoreFuture<T> {
        let is = |key: &str| check.logs[0].key.as_bytes() == key.as_bytes();
        if self.broken.is_some_and(|(broken, key)| broken == action && is(key)) {
            return StoreFuture::ready(Err(StoreError::Timeout));
        }
        let (store, is_late) = (self.store.clone(), self.late.is_some_and(is));
        StoreFuture::later(async move {
            if is_late {
                sleep(Duration::from_millis(10)).await;
            }
            answer(&store).await
        })
    }
}

impl Store for Nodes {
    fn admit(&self, check: &Arc<Check>) -> StoreFuture<Outcome> {
        let check = check.clone();
        self.answer("admit", &check.clone(), move |store| store.admit(&check))
    }

    fn peek(&self, check: &Arc<Check>) -> StoreFuture<Outcome> {
        let check = check.clone();
        self.answer("peek", &check.clone(), move |store| store.peek(&check))
    }

    fn cancel(&self, check: &Arc<Check>) -> StoreFuture<bool> {
        let check = check.clone();
        self.answer("cancel", &check.clone(), move |store| store.cancel(&check))
    }

    fn restore(&self, log: &LogId, known: &LogSnapshot) -> StoreFuture<Restored> {
        self.store.restore(log, known)
    }

    fn reset(&self, logs: &[LogId]) -> StoreFuture<()> {
        self.store.reset(logs)
    }
}

fn log(name: &str, key: &str) -> LogId {
    let policy = Arc::new(Policy::new(name).quota(Quota::per_minute(1)));
    LogId { policy, key: key.into() }
}

fn both() -> Arc<Check> {
    Arc::new(Check::new([log("user", "alice"), log("ip", "::1")]))
}

fn one(name: &str, key: &str) -> Arc<Check> {
    Arc::new(Check::new([log(name, key)]))
}

#[test]
fn a_ban_stays_with_its_window_when_the_parts_are_put_together() {
    let check = Check::new([log("ip", "::1"), log("user", "mallory")]);
    let parts = parts(&check);
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
async fn a_denial_stands_whatever_fails_after_it() {
    let nodes = Nodes { broken: Some(("peek", "::1")), ..Nodes::default() };
    assert!(nodes.admit(&one("user", "alice")).await.unwrap().admitted);
    let outcome = CrossSlot::new(nodes).admit(&both()).await.unwrap();
    assert!(!outcome.admitted);
    assert_eq!(
        outcome.logs()[0].quotas()[0].wait_us,
        60_000_000,
        "by the log that is known to be full"
    );
    assert_eq!(outcome.rollback, Rollback::NotNeeded);
}

#[tokio::test(start_paused = true)]
async fn a_denial_stands_if_its_rollback_fails() {
    let nodes = Nodes { broken: Some(("cancel", "alice")), ..Nodes::default() };
    assert!(nodes.admit(&one("ip", "::1")).await.unwrap().admitted);
    let outcome = CrossSlot::new(nodes).admit(&both()).await.unwrap();
    assert!(!outcome.admitted);
    assert_eq!(outcome.rollback, Rollback::Unfinished, "it has to be cancelled later");
}

#[tokio::test(start_paused = true)]
async fn a_rollback_takes_its_denials_along() {
    let nodes = Nodes { late: Some("::1"), ..Nodes::default() };
    assert!(nodes.admit(&one("ip", "::1")).await.unwrap().admitted);
    let store = DenyCache::new(CrossSlot::new(nodes)).max_age(Duration::MAX);
    let rolled_back = tokio::spawn(store.admit(&both()));
    sleep(Duration::from_millis(5)).await; // the user's log has it, the address is being asked
    assert!(!store.admit(&one("user", "alice")).await.unwrap().admitted);
    assert!(!rolled_back.await.unwrap().unwrap().admitted);
    assert!(store.admit(&one("user", "alice")).await.unwrap().admitted, "the log is empty");
}
