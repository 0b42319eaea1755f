use std::time::Duration;

use tokio::time::sleep;

use super::*;
use crate::policy::Policy;
use crate::quota::Quota;
use crate::store::{BanState, DenyCache, MemoryStore, QuotaState, Strike};

/// A store on which some calls about some keys fail or are slow.
#[derive(Clone, Default)]
struct Nodes {
    store: MemoryStore,
    /// The call and the key that fail.
    broken: Option<(&'static str, &'static str)>,
    /// The key whose calls take 10 ms.
    slow: Option<&'static str>,
}

impl Nodes {
    fn respond<T: Send + 'static>(
        &self,
        action: &str,
        check: &Check,
        call: impl FnOnce(&MemoryStore) -> StoreFuture<T> + Send + 'static,
    ) -> StoreFuture<T> {
        let is = |key: &str| check.logs[0].key.as_bytes() == key.as_bytes();
        if self.broken.is_some_and(|(broken, key)| broken == action && is(key)) {
            return StoreFuture::ready(Err(StoreError::Timeout));
        }
        let (store, is_slow) = (self.store.clone(), self.slow.is_some_and(is));
        StoreFuture::later(async move {
            if is_slow {
                sleep(Duration::from_millis(10)).await;
            }
            call(&store).await
        })
    }
}

impl Store for Nodes {
    fn admit(&self, check: &Arc<Check>) -> StoreFuture<Outcome> {
        let check = check.clone();
        self.respond("admit", &check.clone(), move |store| store.admit(&check))
    }

    fn peek(&self, check: &Arc<Check>) -> StoreFuture<Outcome> {
        let check = check.clone();
        self.respond("peek", &check.clone(), move |store| store.peek(&check))
    }

    fn cancel(&self, check: &Arc<Check>) -> StoreFuture<bool> {
        let check = check.clone();
        self.respond("cancel", &check.clone(), move |store| store.cancel(&check))
    }

    fn restore(&self, log: &LogId, snapshot: &LogSnapshot) -> StoreFuture<Restored> {
        self.store.restore(log, snapshot)
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
    let nodes = Nodes { broken: Some(("peek", "::1")), ..Nodes::default() };
    assert!(nodes.admit(&one("user", "alice")).await.unwrap().admitted);
    let outcome = CrossSlot::new(nodes).admit(&both()).await.unwrap();
    assert!(!outcome.admitted);
    assert_eq!(outcome.logs()[0].quotas()[0].wait_us, 60_000_000, "the wait of the full log");
    assert_eq!(outcome.rollback, Rollback::NotNeeded);
}

#[tokio::test(start_paused = true)]
async fn denial_stands_if_its_rollback_fails() {
    let nodes = Nodes { broken: Some(("cancel", "alice")), ..Nodes::default() };
    assert!(nodes.admit(&one("ip", "::1")).await.unwrap().admitted);
    let outcome = CrossSlot::new(nodes).admit(&both()).await.unwrap();
    assert!(!outcome.admitted);
    assert_eq!(outcome.rollback, Rollback::Unfinished, "the request has to be cancelled later");
}

#[tokio::test(start_paused = true)]
async fn rollback_drops_cached_denials() {
    let nodes = Nodes { slow: Some("::1"), ..Nodes::default() };
    assert!(nodes.admit(&one("ip", "::1")).await.unwrap().admitted);
    let store = DenyCache::new(CrossSlot::new(nodes)).max_age(Duration::MAX);
    let rolled_back = tokio::spawn(store.admit(&both()));
    // The user's log has recorded the request, and the check of the address is under way.
    sleep(Duration::from_millis(5)).await;
    assert!(!store.admit(&one("user", "alice")).await.unwrap().admitted);
    assert!(!rolled_back.await.unwrap().unwrap().admitted);
    assert!(store.admit(&one("user", "alice")).await.unwrap().admitted, "the log is empty");
}
