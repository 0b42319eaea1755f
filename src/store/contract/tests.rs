//! Tests that the contract test passes a correct store and finds the faults of a wrong one.

use super::*;
use crate::MemoryStore;
use crate::store::{Ban, Explanation, Outcome, StoreFuture};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    IgnoresCost,
    IgnoresCostsOfLogs,
    RecordsDenials,
    ForgetsCancels,
    ForgetsSettlements,
    ForgetsResets,
    IgnoresBans,
    IgnoresLifts,
    ReadsNoBans,
    CallsAllBansNew,
    ExplainsOtherCosts,
    ExplainsNoBans,
    ExplainsNothing,
}

struct Wrong(MemoryStore, Fault);

impl Wrong {
    fn has(&self, fault: Fault) -> bool {
        self.1 == fault
    }

    fn received(&self, check: &Check) -> Check {
        let mut check = check.clone();
        if self.has(Fault::IgnoresCost) {
            check = check.at_cost(check.cost.min(1));
        }
        if self.has(Fault::IgnoresCostsOfLogs) {
            check = check.at_cost(check.cost);
        }
        check
    }
}

impl Store for Wrong {
    fn admit(&self, check: &Check) -> StoreFuture<Outcome> {
        let (store, check) = (self.0.clone(), self.received(check));
        let records_denials = self.has(Fault::RecordsDenials);
        StoreFuture::later(async move {
            let outcome = store.admit(&check).await?;
            if records_denials && !outcome.admitted {
                let now = tokio::time::Instant::now();
                store.record(&check, now, 0, now);
            }
            Ok(outcome)
        })
    }

    fn peek(&self, check: &Check) -> StoreFuture<Outcome> {
        self.0.peek(&self.received(check))
    }

    fn explain(&self, check: &Check) -> StoreFuture<Explanation> {
        if self.has(Fault::ExplainsNothing) {
            return StoreFuture::ready(Err(StoreError::Unsupported { what: "explanations" }));
        }
        let mut check = check.clone();
        if self.has(Fault::ExplainsOtherCosts) {
            check = check.at_cost(1);
        }
        let explained = self.0.explain(&check).into_ready().ok().expect("at once");
        let mut explained = explained.expect("an explanation");
        if self.has(Fault::ExplainsNoBans) {
            explained.ban = None;
        }
        StoreFuture::ready(Ok(explained))
    }

    fn settle(&self, check: &Check, cost: u32) -> StoreFuture<bool> {
        if self.has(Fault::ForgetsCancels) && cost == 0 {
            return StoreFuture::ready(Ok(true));
        }
        if self.has(Fault::ForgetsSettlements) && cost > 0 {
            return self.0.settle(check, check.cost);
        }
        self.0.settle(check, cost)
    }

    fn ban(&self, log: &LogId) -> StoreFuture<Option<Ban>> {
        if self.has(Fault::ReadsNoBans) {
            return StoreFuture::ready(Ok(None));
        }
        self.0.ban(log)
    }

    fn impose(
        &self,
        log: &LogId,
        duration: Duration,
        reason: &str,
        only_longer: bool,
    ) -> StoreFuture<Ban> {
        let duration = if self.has(Fault::IgnoresBans) { Duration::ZERO } else { duration };
        let imposed = self.0.impose(log, duration, reason, only_longer);
        let mut ban = imposed.into_ready().ok().expect("at once").expect("a ban");
        ban.is_new |= self.has(Fault::CallsAllBansNew);
        StoreFuture::ready(Ok(ban))
    }

    fn lift(&self, log: &LogId) -> StoreFuture<bool> {
        if self.has(Fault::IgnoresLifts) {
            return StoreFuture::ready(Ok(true));
        }
        self.0.lift(log)
    }

    fn reset(&self, log: &LogId) -> StoreFuture<()> {
        if self.has(Fault::ForgetsResets) {
            return StoreFuture::ready(Ok(()));
        }
        self.0.reset(log)
    }
}

#[tokio::test(start_paused = true)]
async fn store_may_not_support_explanations() {
    let store = Wrong(MemoryStore::new(), Fault::ExplainsNothing);
    holds(&store, tokio::time::advance).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "src/store/contract/tests.rs")]
async fn message_names_the_calling_test() {
    let store = Wrong(MemoryStore::new(), Fault::ForgetsResets);
    holds(&store, tokio::time::advance).await;
}

#[tokio::test(start_paused = true)]
async fn faults_are_found() {
    for (fault, step) in [
        (Fault::IgnoresCost, "expected Outcome"),
        (Fault::IgnoresCostsOfLogs, "expected Outcome"),
        (Fault::RecordsDenials, "expected Explanation"),
        (Fault::ForgetsCancels, ""),
        (Fault::ForgetsSettlements, "expected"),
        (Fault::ForgetsResets, "expected"),
        (Fault::IgnoresBans, "expected"),
        (Fault::IgnoresLifts, "expected"),
        (Fault::ReadsNoBans, "expected Some(Ban"),
        (Fault::CallsAllBansNew, "is_new: false"),
        (Fault::ExplainsOtherCosts, "expected Explanation"),
        (Fault::ExplainsNoBans, "ban: None"),
    ] {
        let store = Wrong(MemoryStore::new(), fault);
        let played = play(&store, tokio::time::advance).await;
        let difference = played.expect_err("a difference");
        assert!(difference.starts_with("history "), "{difference}");
        assert!(difference.contains(step), "{fault:?}: {difference}");
    }
}
