//! [`Player`]: plays a history to a store and to the model, and compares their outcomes.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::model::Model;
use super::step::{LONGEST_WINDOW_US, Step};
use crate::error::StoreError;
use crate::key::Key;
use crate::policy::{Penalty, Policy};
use crate::quota::Quota;
use crate::store::{Admission, BanSnapshot, LogSnapshot, Store};
use crate::window::{Check, Explanation, Log, LogCost, LogId, LogOutcome, Outcome};

pub(in crate::store) struct Player<'a> {
    store: &'a dyn Store,
    keys: [Key; 2],
    penalties: bool,
    model: Model,
    policies: [Arc<Policy>; 2],
    checks: Vec<Check>,
    /// When the history begins. A store may have no timestamps from before its creation.
    origin_us: u64,
    /// The latest reset of any log. A shared store restores nothing from before it.
    reset_us: Option<u64>,
}

impl<'a> Player<'a> {
    pub(in crate::store) fn new(store: &'a dyn Store, keys: [Key; 2], origin_us: u64) -> Self {
        Self {
            store,
            keys,
            penalties: true,
            model: Model::at(origin_us),
            policies: [policy(0, [4, 2], 1, true), policy(1, [5, 3], 2, true)],
            checks: Vec::new(),
            origin_us,
            reset_us: None,
        }
    }

    pub(super) fn without_penalties(mut self) -> Self {
        self.penalties = false;
        self.policies = [policy(0, [4, 2], 1, false), policy(1, [5, 3], 2, false)];
        self
    }

    /// Plays a history, and returns the first difference as an error. `move_clock` sets the store's
    /// clock to a time in microseconds.
    pub(in crate::store) async fn play(
        &mut self,
        steps: &[Step],
        move_clock: &mut impl AsyncFnMut(u64),
    ) -> Result<(), String> {
        move_clock(self.model.now_us).await;
        for (number, step) in steps.iter().enumerate() {
            let number = number + 1;
            let played = self.step(step).await;
            played.map_err(|difference| format!("step {number}, {step:?}: {difference}"))?;
            move_clock(self.model.now_us).await;
        }
        Ok(())
    }

    async fn step(&mut self, step: &Step) -> Result<(), String> {
        match *step {
            Step::Advance(us) => self.model.now_us += us,
            Step::Rewind(us) => self.model.now_us -= us.min(self.model.now_us),
            Step::SetLimits(at, long, short, quarters) => {
                self.policies[at] = policy(at, [long, short], quarters, self.penalties);
            }
            Step::Check(ref logs) => {
                let check = self.check(logs);
                // A store never gets a check that could not pass.
                if check.ensure_possible().is_ok() {
                    self.admit(&check).await?;
                    self.checks.push(check);
                }
            }
            Step::Peek(ref logs) => {
                let check = self.check(logs);
                if check.ensure_possible().is_ok() {
                    self.peek(&check).await?;
                }
            }
            Step::Repeat(index) => {
                if let Some(mut check) = self.earlier(index) {
                    check.repeated = true;
                    self.admit(&check).await?;
                }
            }
            Step::Cancel(index) => {
                if let Some(check) = self.earlier(index) {
                    let was_there = self.store.cancel(&check).await;
                    same(self.model.settle(&check, 0), was_there)?;
                }
            }
            Step::Settle(index, cost) => {
                if let Some(check) = self.earlier(index) {
                    let was_there = self.store.settle(&check, cost).await;
                    same(self.model.settle(&check, cost), was_there)?;
                }
            }
            Step::SettleInOne(index, cost, log) => {
                if let Some(check) = self.earlier(index) {
                    let log = log % check.logs.len();
                    let part = check.part(|index| index == log);
                    let was_there = self.store.settle(&part, cost).await;
                    same(self.model.settle(&part, cost), was_there)?;
                }
            }
            Step::Reset(at, key) => {
                let log = self.log(at, key);
                same((), self.store.reset(std::slice::from_ref(&log)).await)?;
                *self.model.log(&log) = Log::new();
                self.reset_us = self.reset_us.max(Some(self.model.now_us));
            }
            Step::Restore { age_us, confirmed, ref logs } => {
                let check = self.check(logs);
                self.restore(check, age_us, confirmed).await?;
            }
            Step::RestoreEarlier(index, age_us, confirmed) => {
                if let Some(check) = self.earlier(index) {
                    self.restore(check, age_us, confirmed).await?;
                }
            }
            Step::RestoreBan { remaining_us, log: (at, key) } => {
                let log = self.log(at, key);
                if log.policy.get_penalty().is_some() {
                    self.restore_ban(&log, remaining_us).await?;
                }
            }
        }
        Ok(())
    }

    fn log(&self, at: usize, key: usize) -> LogId {
        LogId::new(self.policies[at].clone(), self.keys[key].clone())
    }

    fn check(&self, logs: &[(usize, usize, u32)]) -> Check {
        let log = |(at, key, cost): &_| LogCost::new(self.log(*at, *key), *cost);
        let mut check = Check::with_costs(logs.iter().map(log));
        check.wants_reset = self.checks.len().is_multiple_of(2);
        check
    }

    fn earlier(&self, index: usize) -> Option<Check> {
        let count = self.checks.len();
        (count > 0).then(|| self.checks[index % count].clone())
    }

    async fn admit(&mut self, check: &Check) -> Result<(), String> {
        let outcome = self.store.admit(check).await;
        let expected = only_wanted(check, self.model.decide(check, true));
        let is_denied = !expected.admitted;
        same(expected, outcome.map(|outcome| only_wanted(check, outcome)))?;
        if is_denied { self.explain(check).await } else { Ok(()) }
    }

    async fn peek(&mut self, check: &Check) -> Result<(), String> {
        let outcome = self.store.peek(check).await;
        let expected = only_wanted(check, self.model.decide(check, false));
        same(expected, outcome.map(|outcome| only_wanted(check, outcome)))?;
        self.explain(check).await
    }

    async fn explain(&mut self, check: &Check) -> Result<(), String> {
        let expected = check.costs().map(|(log, cost)| self.model.explain(log, cost));
        let expected: Vec<_> = expected.map(only_promised).collect();
        let explained = self.store.explain(check).await;
        if matches!(explained, Err(StoreError::Unsupported { .. })) {
            return Ok(());
        }
        same(expected, explained.map(|it| it.into_iter().map(only_promised).collect()))
    }

    async fn restore(&mut self, check: Check, age_us: u64, confirmed: bool) -> Result<(), String> {
        let since_us = self.reset_us.unwrap_or(self.origin_us);
        // After the clock has stepped back behind a reset, there is no age that can be restored.
        if self.reset_us.is_some_and(|reset_us| reset_us > self.model.now_us) {
            return Ok(());
        }
        let age_us = age_us.min(self.model.now_us.saturating_sub(since_us));
        let age = Duration::from_micros(age_us);
        let mut added = Ok(0);
        for (log, cost) in check.costs() {
            let admission = Admission { confirmed, ..Admission::new(check.id, cost, age) };
            let restored = self.store.restore(log, &LogSnapshot::new(vec![admission])).await;
            added = added.and_then(|added| Ok(added + restored?.added));
        }
        same(self.model.restore(&check, age_us, !confirmed), added)?;
        self.checks.push(check);
        Ok(())
    }

    async fn restore_ban(&mut self, log: &LogId, remaining_us: u64) -> Result<(), String> {
        let ban = BanSnapshot {
            remaining: Duration::from_micros(remaining_us),
            reason: "restored".to_owned(),
            age: Duration::ZERO,
            store_timestamp: None,
        };
        self.model.restore_ban(log, &ban);
        let snapshot = LogSnapshot { admissions: Vec::new(), ban: Some(ban) };
        same(0, self.store.restore(log, &snapshot).await.map(|restored| restored.added))
    }
}

/// Returns a policy with these limits. The length of its shorter windows is given in quarters of the
/// longest.
fn policy(at: usize, [long, short]: [u32; 2], quarters: u64, penalties: bool) -> Arc<Policy> {
    let short = Quota::new(short, Duration::from_micros(LONGEST_WINDOW_US / 4 * quarters - 1));
    let long = Quota::new(long, Duration::from_micros(LONGEST_WINDOW_US));
    let candidate = Quota::new(3, Duration::from_micros(LONGEST_WINDOW_US / 4 * quarters));
    let policy = Policy::new(["user", "ip"][at]).quota(long);
    Arc::new(match quarters {
        1 => policy.quota(short).candidate(candidate),
        2 if penalties => policy.quota(short).penalty(penalty()),
        2 => policy.quota(short),
        _ => policy,
    })
}

pub(super) fn penalty() -> Penalty {
    let strikes = Quota::new(2, Duration::from_micros(LONGEST_WINDOW_US * 2));
    let levels = [LONGEST_WINDOW_US / 2, LONGEST_WINDOW_US * 3].map(Duration::from_micros);
    Penalty::new(strikes, levels).decay(Duration::from_micros(LONGEST_WINDOW_US * 4)).jitter(20)
}

/// Removes the resets unless the check wants them. A store may leave them out.
fn only_wanted(check: &Check, mut outcome: Outcome) -> Outcome {
    if !check.wants_reset {
        let logs = outcome.logs_mut().iter_mut();
        logs.flat_map(LogOutcome::states_mut).for_each(|state| state.reset_us = 0);
    }
    outcome
}

/// Removes what is up to the store.
fn only_promised(mut explanation: Explanation) -> Explanation {
    explanation.store = "any".into();
    for quota in explanation.quotas.iter_mut().chain(&mut explanation.candidates) {
        // Several admissions may have one timestamp.
        quota.waits_for = quota.waits_for.map(|_| Uuid::nil());
        quota.admissions.sort_by_key(|admission| (admission.timestamp, admission.id));
    }
    explanation
}

fn same<T: PartialEq + Debug>(expected: T, result: Result<T, StoreError>) -> Result<(), String> {
    match result {
        Ok(value) if value == expected => Ok(()),
        Ok(value) => Err(format!("expected {expected:?}, got {value:?}")),
        Err(error) => Err(format!("expected {expected:?}, got the error: {error}")),
    }
}
