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

/// A store in process with a fault.
struct Wrong(Fault, MemoryStore);

impl Wrong {
    fn new(fault: Fault) -> Self {
        Self(fault, MemoryStore::new())
    }

    fn received(&self, check: &Check) -> Check {
        match self.0 {
            Fault::IgnoresCost => check.at_cost(check.cost.min(1)),
            Fault::IgnoresCostsOfLogs => check.at_cost(check.cost),
            _ => check.clone(),
        }
    }
}

fn at_once<T>(future: StoreFuture<T>) -> T {
    future.into_ready().ok().expect("at once").expect("no error")
}

impl Store for Wrong {
    fn admit(&self, check: &Check) -> StoreFuture<Outcome> {
        let check = self.received(check);
        let outcome = at_once(self.1.admit(&check));
        if self.0 == Fault::RecordsDenials && !outcome.admitted {
            let now = tokio::time::Instant::now();
            self.1.record(&check, now, 0, now);
        }
        StoreFuture::ready(Ok(outcome))
    }

    fn peek(&self, check: &Check) -> StoreFuture<Outcome> {
        self.1.peek(&self.received(check))
    }

    fn explain(&self, check: &Check) -> StoreFuture<Explanation> {
        let explained = match self.0 {
            Fault::ExplainsNothing => Err(StoreError::Unsupported { what: "explanations" }),
            Fault::ExplainsOtherCosts => Ok(at_once(self.1.explain(&check.at_cost(1)))),
            Fault::ExplainsNoBans => {
                Ok(Explanation { ban: None, ..at_once(self.1.explain(check)) })
            }
            _ => Ok(at_once(self.1.explain(check))),
        };
        StoreFuture::ready(explained)
    }

    fn settle(&self, check: &Check, cost: u32) -> StoreFuture<bool> {
        match (self.0, cost) {
            (Fault::ForgetsCancels, 0) => StoreFuture::ready(Ok(true)),
            (Fault::ForgetsSettlements, 1..) => self.1.settle(check, check.cost),
            _ => self.1.settle(check, cost),
        }
    }

    fn reset(&self, log: &LogId) -> StoreFuture<()> {
        match self.0 {
            Fault::ForgetsResets => StoreFuture::ready(Ok(())),
            _ => self.1.reset(log),
        }
    }

    fn ban(&self, log: &LogId) -> StoreFuture<Option<Ban>> {
        match self.0 {
            Fault::ReadsNoBans => StoreFuture::ready(Ok(None)),
            _ => self.1.ban(log),
        }
    }

    fn impose(
        &self,
        log: &LogId,
        duration: Duration,
        reason: &str,
        only_longer: bool,
    ) -> StoreFuture<Ban> {
        let duration = if self.0 == Fault::IgnoresBans { Duration::ZERO } else { duration };
        let mut ban = at_once(self.1.impose(log, duration, reason, only_longer));
        ban.is_new |= self.0 == Fault::CallsAllBansNew;
        StoreFuture::ready(Ok(ban))
    }

    fn lift(&self, log: &LogId) -> StoreFuture<bool> {
        match self.0 {
            Fault::IgnoresLifts => StoreFuture::ready(Ok(true)),
            _ => self.1.lift(log),
        }
    }
}

/// Also one that explains nothing.
#[tokio::test(start_paused = true)]
async fn store_in_process_keeps_the_contract() {
    holds(&MemoryStore::new(), tokio::time::advance).await;
    holds(&Wrong::new(Fault::ExplainsNothing), tokio::time::advance).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "src/store/contract/tests.rs")]
async fn message_names_the_calling_test() {
    holds(&Wrong::new(Fault::ForgetsResets), tokio::time::advance).await;
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
        let played = play(&Wrong::new(fault), tokio::time::advance).await;
        let difference = played.expect_err("a difference");
        assert!(difference.starts_with("history "), "{difference}");
        assert!(difference.contains(step), "{fault:?}: {difference}");
    }
}
