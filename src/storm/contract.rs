//! Contract tests of [`StormStore`], on both stores, with a clock that the test moves.

mod clock;
mod counts;
mod events;
mod histories;
mod reminders;

use std::sync::Arc;
use std::time::Duration;

use super::StormRule;
use super::store::{Ended, Started, StormCheck, StormOutcome, StormStore};
use crate::contract_tests::{Clock, contract_tests};
use crate::key::Key;

const SECOND: u64 = 1_000_000;

/// A store and its clock.
struct World {
    store: Arc<dyn StormStore>,
    clock: Clock,
    rule: Arc<StormRule>,
    remind_every: Option<Duration>,
    sent: u32,
}

impl World {
    async fn on_redis() -> Self {
        let (clock, store) = Clock::on_redis().await;
        Self::new(store, clock)
    }

    fn new(store: impl StormStore, clock: Clock) -> Self {
        // A storm starts with more than five messages in ten seconds and ends with fewer than three.
        let rule = StormRule::new("5/10s".parse().unwrap());
        Self { store: Arc::new(store), clock, rule: Arc::new(rule), remind_every: None, sent: 0 }
    }

    fn with_rule(mut self, change: impl FnOnce(StormRule) -> StormRule) -> Self {
        self.rule = Arc::new(change((*self.rule).clone()));
        assert_eq!(self.rule.validate(), Ok(()));
        self
    }

    async fn advance(&mut self, us: u64) {
        self.clock.advance(Duration::from_micros(us)).await;
    }

    async fn check(&self, check: &StormCheck) -> StormOutcome {
        self.store.check(check).await.unwrap()
    }

    fn message(&self, group: &str, id: &str) -> StormCheck {
        let mut check = StormCheck::new(self.rule.clone(), group.into(), Some(id.into()));
        check.remind_every = self.remind_every;
        check
    }

    /// Records a new message of the group.
    async fn record(&mut self) -> StormOutcome {
        self.sent += 1;
        self.check(&self.message("lobby", &format!("message-{}", self.sent))).await
    }

    /// Records `count` messages at the same instant, and returns the last outcome.
    async fn record_all(&mut self, count: usize) -> StormOutcome {
        let mut last = None;
        for _ in 0..count {
            last = Some(self.record().await);
        }
        last.unwrap()
    }

    async fn peek(&self) -> StormOutcome {
        let mut check = StormCheck::new(self.rule.clone(), "lobby".into(), None);
        check.remind_every = self.remind_every;
        self.check(&check).await
    }

    async fn profile(&self, step_us: u64) -> Vec<u32> {
        let step = Duration::from_micros(step_us);
        self.store.profile(&self.rule, &Key::from("lobby"), step).await.unwrap()
    }
}

fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

fn recheck_us(outcome: &StormOutcome) -> u64 {
    outcome.recheck_after.map_or(0, crate::time::micros)
}

fn storm_us(outcome: &StormOutcome) -> Option<(u64, u32)> {
    outcome.storm.map(|(lasted, peak)| (crate::time::micros(lasted), peak))
}
