//! [`Player`]: plays a history to a store and to a [`Model`], and compares their outcomes.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::step::{EARLIER, JOBS, LONGEST_WINDOW_US, PEERS, Step, TOKENS, VALUES};
use crate::error::StoreError;
use crate::key::Key;
use crate::policy::{Counts, Penalty, Policy};
use crate::quota::Quota;
use crate::store::{Ban, Store, StoreFuture};
use crate::window::{
    BanRecord, BanState, Check, Explanation, Log, LogCost, LogId, LogOutcome, Outcome, QuotaState,
};

type SendAgain<'a> = dyn Fn(&Check) -> StoreFuture<Outcome> + 'a;

pub(in crate::store) struct Player<'a> {
    store: &'a dyn Store,
    keys: [Key; 2],
    penalties: bool,
    /// Whether the store repeats denials from memory, and may leave out what it has not read now.
    pub(in crate::store) reads_parts: bool,
    /// Has the store send a check again, as after a lost reply.
    pub(super) send_again: Option<&'a SendAgain<'a>>,
    model: Model,
    policies: [Arc<Policy>; VALUES],
    checks: Vec<Check>,
}

impl<'a> Player<'a> {
    pub(in crate::store) fn new(
        store: &'a dyn Store,
        keys: [Key; 2],
        origin_us: u64,
        penalties: bool,
    ) -> Self {
        let policies = std::array::from_fn(|at| {
            let at = at % EARLIER;
            policy(at, [4, 2], 1 + at as u64 % 2, penalties)
        });
        Self {
            store,
            keys,
            penalties,
            reads_parts: false,
            send_again: None,
            model: Model::at(origin_us),
            policies,
            checks: Vec::new(),
        }
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
            let played = self.step(step).await;
            played.map_err(|difference| {
                let before = steps[..number].iter().map(|step| format!("\n  {step:?}"));
                let before = before.collect::<String>();
                format!("step {}, {step:?}: {difference}\nafter the steps{before}", number + 1)
            })?;
            move_clock(self.model.now_us).await;
        }
        Ok(())
    }

    async fn step(&mut self, step: &Step) -> Result<(), String> {
        match *step {
            Step::Advance(us) => self.model.now_us += us,
            Step::Rewind(us) => self.model.now_us -= us.min(self.model.now_us),
            Step::SetLimits(at, long, short, quarters) => {
                let policy = policy(at, [long, short], quarters, self.penalties);
                let before = std::mem::replace(&mut self.policies[at], policy);
                if at + EARLIER < VALUES {
                    self.policies[at + EARLIER] = before;
                }
            }
            Step::Check(ref logs) => {
                let check = self.check(logs);
                // A store never gets a check that could not pass.
                if check.ensure_cost_fits().is_ok() {
                    self.admit(&check).await?;
                    self.checks.push(check);
                }
            }
            Step::Peek(ref logs) => {
                let check = self.check(logs);
                if check.ensure_cost_fits().is_ok() {
                    self.peek(&check).await?;
                }
            }
            Step::Again(_) | Step::Renew(_) | Step::Settle(..) if self.checks.is_empty() => {}
            Step::Again(index) => {
                if let Some(send_again) = self.send_again {
                    let check = self.earlier(index);
                    let outcome = send_again(&check).await;
                    self.compare(&check, outcome, true)?;
                }
            }
            Step::Renew(index) => {
                let check = self.earlier(index);
                let counts = |index: usize| check.logs[index].policy.counts();
                let in_flight = check.part(|index| counts(index) == Counts::InFlight);
                if !in_flight.logs.is_empty() {
                    self.admit(&in_flight).await?;
                }
            }
            Step::Settle(index, cost, log) => {
                let check = self.earlier(index);
                let only = log.map(|log| log % check.logs.len());
                let part = check.part(|index| only.is_none_or(|only| index == only));
                let was_there = self.store.settle(&part, cost).await;
                same(self.model.settle(&part, cost), was_there)?;
            }
            Step::Reset(at, key) => {
                let log = self.log(at, key);
                same((), self.store.reset(&log).await)?;
                *self.model.log(&log) = Log::new();
            }
            Step::Ban(length_us, only_longer, (at, key)) => {
                let log = self.log(at, key);
                if log.policy.get_penalty().is_some() {
                    self.ban(&log, length_us, only_longer).await?;
                }
            }
            Step::Lift(at, key) => {
                let log = self.log(at, key);
                if log.policy.get_penalty().is_some() {
                    *self.model.ban_record(&log) = BanRecord::default();
                    self.store.lift(&log).await.map_err(|error| format!("lift: {error}"))?;
                }
            }
        }
        Ok(())
    }

    fn log(&self, at: usize, key: usize) -> LogId {
        let policy = if at < VALUES { at } else { PEERS };
        LogId::new(self.policies[policy].clone(), self.keys[key].clone()).with_value(at as u64)
    }

    fn check(&self, logs: &[(usize, usize, u32)]) -> Check {
        let log = |(at, key, cost): &_| LogCost::new(self.log(*at, *key), *cost);
        let mut check = Check::with_costs(logs.iter().map(log));
        check.wants_reset = self.checks.len().is_multiple_of(2);
        check
    }

    fn earlier(&self, index: usize) -> Check {
        self.checks[index % self.checks.len()].clone()
    }

    async fn admit(&mut self, check: &Check) -> Result<(), String> {
        let outcome = self.store.admit(check).await;
        let is_denied = !self.compare(check, outcome, false)?;
        if is_denied { self.explain(check).await } else { Ok(()) }
    }

    /// Compares the outcome of a check with that of the model. Returns whether it is admitted.
    fn compare(
        &mut self,
        check: &Check,
        outcome: Result<Outcome, StoreError>,
        again: bool,
    ) -> Result<bool, String> {
        let expected = match again {
            true => self.model.decide_again(check),
            false => self.model.decide(check, true),
        };
        let mut expected = only_wanted(check, expected);
        let is_admitted = expected.admitted;
        if let (true, Ok(outcome)) = (self.reads_parts, &outcome) {
            let logs = check.logs.iter().zip(expected.logs_mut()).zip(outcome.logs());
            for ((log, expected), found) in logs {
                if !found.is_read() {
                    *expected = LogOutcome::unread(&log.policy);
                }
                // It does not know which places have come free since.
                for (expected, found) in expected.quotas_mut().iter_mut().zip(found.quotas()) {
                    expected.remaining = expected.remaining.min(found.remaining);
                    expected.reset_us = expected.reset_us.min(found.reset_us);
                }
            }
        }
        same(expected, outcome.map(|outcome| only_wanted(check, outcome)))?;
        Ok(is_admitted)
    }

    /// Plays checks that `admit` sends in one call of the store.
    #[cfg(all(test, feature = "redis"))]
    pub(super) async fn play_in_one_call(
        &mut self,
        steps: &[Step],
        admit: impl AsyncFnOnce(&[Check]) -> Vec<Result<Outcome, StoreError>>,
    ) -> Result<(), String> {
        let check = |step: &Step| match step {
            Step::Check(logs) => Some(self.check(logs)),
            _ => None,
        };
        let possible = |check: &Check| check.ensure_cost_fits().is_ok();
        let checks: Vec<Check> = steps.iter().filter_map(check).filter(possible).collect();
        let outcomes = admit(&checks).await;
        for (check, outcome) in checks.into_iter().zip(outcomes) {
            self.compare(&check, outcome, false)
                .map_err(|difference| format!("{check:?}: {difference}"))?;
            self.checks.push(check);
        }
        Ok(())
    }

    async fn peek(&mut self, check: &Check) -> Result<(), String> {
        let outcome = self.store.peek(check).await;
        let expected = only_wanted(check, self.model.decide(check, false));
        same(expected, outcome.map(|outcome| only_wanted(check, outcome)))?;
        self.explain(check).await
    }

    async fn explain(&mut self, check: &Check) -> Result<(), String> {
        for (index, (log, cost)) in check.costs().enumerate() {
            let explained = self.store.explain(&check.part(|it| it == index)).await;
            if !matches!(explained, Err(StoreError::Unsupported { .. })) {
                let expected = only_promised(self.model.explain(log, cost));
                same(expected, explained.map(only_promised))?;
            }
        }
        Ok(())
    }

    async fn ban(&mut self, log: &LogId, length_us: u64, only_longer: bool) -> Result<(), String> {
        let length = Duration::from_micros(length_us);
        let ban = self.store.impose(log, length, "by hand", only_longer).await;
        if only_longer && matches!(ban, Err(StoreError::Unsupported { .. })) {
            return Ok(());
        }
        let (now_us, penalty) = (self.model.now_us, log.policy.get_penalty());
        let record = self.model.ban_record(log);
        let stood = record.wait_us(now_us) > 0;
        let is_new = record.impose(now_us, length_us, "by hand", penalty, only_longer);
        let remaining = Duration::from_micros(record.wait_us(now_us));
        let reason = if remaining.is_zero() { String::new() } else { record.reason.clone() };
        let stands = Ban { remaining, reason, ..Ban::default() };
        same(Ban { is_new, lengthens: is_new && stood, ..stands.clone() }, ban)?;
        same((!remaining.is_zero()).then_some(stands), self.store.ban(log).await)
    }
}

/// Returns a policy with these limits. The length of its shorter window is given in quarters of the longest of all
/// policies.
fn policy(at: usize, limits: [u32; 2], quarters: u64, penalties: bool) -> Arc<Policy> {
    let quarter_us = LONGEST_WINDOW_US / 4;
    // Every second policy keeps its logs for a shorter time.
    let windows_us = [[4, 3][at % 2] * quarter_us, quarters * quarter_us - 1];
    let [long, short] = [0, 1].map(|it| {
        let limit = if at == TOKENS { 3 * limits[it] } else { limits[it] };
        Quota::new(limit, Duration::from_micros(windows_us[it]))
    });
    let mut policy = Policy::new(["user", "ip", "peers", "jobs", "tokens"][at]).quota(long);
    if at >= PEERS || quarters < 3 {
        policy = policy.quota(short);
    }
    if penalties && quarters < 3 {
        policy = policy.penalty(penalty(at));
    }
    Arc::new(match at {
        PEERS => policy.distinct(),
        JOBS => policy.in_flight(),
        TOKENS if quarters.is_multiple_of(2) => policy.byte_budget(),
        TOKENS => policy.budget(),
        _ => policy,
    })
}

/// Every second policy bans at the first strike, so that the levels rise as often as they fall.
pub(super) fn penalty(at: usize) -> Penalty {
    let strikes = 1 + at as u32 % 2;
    let strikes = Quota::new(strikes, Duration::from_micros(LONGEST_WINDOW_US * 2));
    let levels = [16, 8, 4].map(|part| Duration::from_micros(LONGEST_WINDOW_US / part));
    Penalty::new(strikes, levels).decay(Duration::from_micros(LONGEST_WINDOW_US * 2))
}

/// Removes the resets unless the check wants them, and the episodes. A store may leave them out.
fn only_wanted(check: &Check, mut outcome: Outcome) -> Outcome {
    for log in outcome.logs_mut() {
        log.set_ban(BanState { episode_us: 0, ..log.ban() });
    }
    if !check.wants_reset {
        let logs = outcome.logs_mut().iter_mut();
        logs.flat_map(LogOutcome::quotas_mut).for_each(|state| state.reset_us = 0);
    }
    outcome
}

/// Removes what is up to the store.
fn only_promised(mut explanation: Explanation) -> Explanation {
    for quota in &mut explanation.quotas {
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

/// The pure algorithm as a store with its own clock.
#[derive(Default)]
struct Model {
    now_us: u64,
    logs: HashMap<LogId, Log>,
    ban_records: HashMap<(String, Key), BanRecord>,
}

impl Model {
    fn at(now_us: u64) -> Self {
        Self { now_us, ..Self::default() }
    }

    fn log(&mut self, log: &LogId) -> &mut Log {
        self.logs.entry(log.clone()).or_insert_with(Log::new)
    }

    fn ban_record(&mut self, log: &LogId) -> &mut BanRecord {
        let name = (log.policy.name().to_owned(), log.key.clone());
        self.ban_records.entry(name).or_default()
    }

    /// Decides on a check that is sent again, because its reply was lost, as the first time if that was recorded.
    fn decide_again(&mut self, check: &Check) -> Outcome {
        let now_us = self.now_us;
        let recorded_us = check
            .logs
            .iter()
            .filter(|log| !log.policy.refreshes())
            .find_map(|log| self.log(log).find(check.id, now_us, log.policy.retention_us()));
        let Some(recorded_us) = recorded_us else { return self.decide(check, true) };
        let mut outcome = self.decide(&check.at_cost(0), false);
        outcome.admitted = true;
        outcome.timestamp = Some(Duration::from_micros(recorded_us));
        for log in outcome.logs_mut() {
            log.set_ban(BanState::default());
            log.quotas_mut().iter_mut().for_each(|state| state.wait_us = 0);
        }
        outcome
    }

    fn decide(&mut self, check: &Check, record: bool) -> Outcome {
        let (now_us, id) = (self.now_us, check.id);
        let mut outcomes = Vec::new();
        for (log, cost) in check.costs() {
            let (entries, retention_us) = (self.log(log), log.policy.retention_us());
            entries.remove_expired(now_us, retention_us);
            outcomes.push(entries.outcome(log, id, now_us, cost));
        }
        let mut outcome =
            Outcome::new(true, outcomes).with_timestamp(Duration::from_micros(now_us));
        for (log, outcome) in check.logs.iter().zip(outcome.logs_mut()) {
            let Some(penalty) = log.policy.get_penalty() else { continue };
            let full_us = outcome.longest_full_window_us(&log.policy);
            let ban_record = self.ban_record(log);
            outcome.set_ban(BanState::of(ban_record, now_us, id, (full_us, penalty), record));
        }
        outcome.admitted = outcome.fits();
        if outcome.admitted && record {
            for ((log, cost), outcome) in check.costs().zip(outcome.logs_mut()) {
                let entries = self.log(log);
                // If the clock has stepped back, the entry must not leave before the newest one.
                let newest_us = entries.newest_us().filter(|it| it / 1_000 > now_us / 1_000 + 1);
                let at_us = newest_us.map_or(now_us, |it| it + 1);
                if cost > 0 {
                    entries.record(log, id, at_us, cost);
                }
                for (quota, state) in log.policy.quotas().iter().zip(outcome.quotas_mut()) {
                    let wait_us = state.wait_us;
                    *state = QuotaState { wait_us, ..entries.state(now_us, *quota, 1) };
                }
            }
        }
        outcome
    }

    fn explain(&mut self, log: &LogId, cost: u32) -> Explanation {
        let now_us = self.now_us;
        let explanation = self.log(log).explain(log, now_us, cost);
        let Some(penalty) = log.policy.get_penalty() else { return explanation };
        explanation.with_ban(self.ban_record(log).explain(now_us, penalty))
    }

    fn settle(&mut self, check: &Check, cost: u32) -> bool {
        let (now_us, mut was_live) = (self.now_us, false);
        for log in &check.logs {
            let Some(cost) = log.settled_cost(cost) else { continue };
            let (log, retention_us) = (self.log(log), log.policy.retention_us());
            let is_live = log.find(check.id, now_us, retention_us).is_some();
            was_live |= is_live;
            if is_live || cost == 0 {
                log.settle(check.id, cost);
            }
        }
        was_live
    }
}
