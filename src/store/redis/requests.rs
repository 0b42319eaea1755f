//! The requests to the scripts for limits and bans, and their replies.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use smallvec::SmallVec;
use tokio::time::Instant;
use uuid::Uuid;

use super::journal::{Origin, RequestState};
use crate::error::StoreError;
use crate::policy::{Counts, Penalty};
use crate::redis::{
    BatchedRequest, Client, Keys, Numbers, Replies, Script, Scripts, malformed, read,
};
use crate::store::Ban;
use crate::time::micros;
use crate::window::{
    BanRecord, BanState, Check, Entry, Explanation, LogId, LogOutcome, MAX_LISTED, Outcome,
    QuotaExplanation, QuotaState, Strike,
};

/// The delay from sending to execution that a write-back allows for. It does not restore a request that looks less than
/// this younger than a reset, nor such a ban after it was lifted: the reset may have removed it.
pub(super) const USUAL_DELAY: Duration = Duration::from_millis(50);

/// What `admit.lua` does with a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mode {
    New = 0,
    /// Redis may have counted the request already.
    Again = 1,
    /// Nothing is recorded.
    Peek = 2,
}

/// What the policy of a log counts, as the scripts know it.
fn counts_number(log: &LogId) -> u8 {
    match log.policy.counts() {
        Counts::Requests => 0,
        Counts::InFlight => 1,
        Counts::Distinct => 2,
        Counts::Budget | Counts::ByteBudget => 3,
    }
}

/// Returns a request's entry in a log as the scripts know it: its identity there, and in a budget what it cost when it
/// was admitted.
fn entry(log: &LogId, id: Uuid, initial: u32) -> SmallVec<[u8; 24]> {
    let mut entry = SmallVec::from_slice(id.as_bytes());
    if log.is_budget() {
        entry.extend_from_slice(&f64::from(initial).to_be_bytes());
    }
    entry
}

/// A check for `admit.lua`.
pub(super) struct CheckRequest {
    pub(super) check: Arc<Check>,
    pub(super) mode: Mode,
    /// How often it was sent before, because so much had left a budget.
    pub(super) turns: u32,
}

/// What a check comes to.
#[derive(Debug)]
pub(super) enum CheckReply {
    Decided(Outcome),
    /// It has to be sent again. There is a denial if it is denied all the same.
    SendAgain(Option<Outcome>),
}

impl CheckRequest {
    fn penalties(&self) -> impl Iterator<Item = (&LogId, &Penalty)> {
        self.check.logs.iter().filter_map(|log| Some((log, log.policy.get_penalty()?)))
    }

    /// The logs in which the request has another entry than its identity, each with its cost.
    fn with_entries(&self) -> impl Iterator<Item = (&LogId, u32)> {
        let has = |log: &LogId| log.is_budget() || log.policy.counts() == Counts::Distinct;
        self.check.costs().filter(move |(log, _)| has(log))
    }

    fn add_shape(&self, requests: usize, numbers: &mut Vec<u8>) {
        let check = &self.check;
        let mut add = |number: f64| numbers.extend_from_slice(&number.to_be_bytes());
        add(requests as f64);
        add(f64::from(self.mode as u8));
        add(f64::from(u8::from(check.wants_reset)));
        add(check.logs.len() as f64);
        add(self.penalties().count() as f64);
        add(self.with_entries().count() as f64);
        add(check.logs.iter().filter(|log| log.is_budget()).count() as f64);
        for (log, cost) in check.costs() {
            let policy = &log.policy;
            add(if log.is_budget() { 0.0 } else { f64::from(cost) });
            // Every length of time is an exact integer in a double.
            add(policy.retention_us() as f64);
            add(policy.quotas().len() as f64);
            add(policy.get_penalty().map_or(0, |penalty| 3 + penalty.levels().len()) as f64);
            add(f64::from(counts_number(log)));
            for quota in policy.quotas() {
                add(f64::from(quota.limit()));
                add(quota.window_us() as f64);
            }
            if let Some(penalty) = policy.get_penalty() {
                let strikes = penalty.strikes().map_or((0, 0), |it| (it.limit(), it.window_us()));
                add(f64::from(strikes.0));
                add(strikes.1 as f64);
                add(penalty.decay_us() as f64);
                penalty.levels().iter().for_each(|length| add(micros(*length) as f64));
            }
        }
    }

    fn read(
        &self,
        state: i64,
        now_us: u64,
        numbers: &mut Numbers<'_>,
    ) -> Result<Outcome, StoreError> {
        let mut logs = SmallVec::<[LogOutcome; 2]>::new();
        for log in &self.check.logs {
            let mut states = SmallVec::<[QuotaState; 1]>::new();
            for _ in log.policy.quotas() {
                let remaining = u32::try_from(numbers.next_unsigned()?).unwrap_or(u32::MAX);
                let wait_us = numbers.next_unsigned()?;
                let wait_us = if state == 2 { 0 } else { wait_us };
                let reset_us = if self.check.wants_reset { numbers.next_unsigned()? } else { 0 };
                states.push(QuotaState { remaining, wait_us, reset_us });
            }
            logs.push(LogOutcome::new(states));
        }
        let logs_of = self.check.logs.iter().zip(&mut logs);
        for (_, outcome) in logs_of.filter(|(log, _)| log.policy.get_penalty().is_some()) {
            let remaining_us = numbers.next_unsigned()?;
            let strike = match numbers.next()? {
                0 => Strike::None,
                1 => Strike::Counted,
                _ => Strike::Banned,
            };
            let episode_us = numbers.next_unsigned()?;
            outcome.set_ban(BanState { remaining_us, strike, episode_us });
        }
        let at_us = if state == 2 { numbers.next_unsigned()? } else { now_us };
        Ok(Outcome::new(matches!(state, 1 | 2), logs).with_timestamp(Duration::from_micros(at_us)))
    }
}

impl BatchedRequest for CheckRequest {
    type Reply = CheckReply;

    /// The policies and costs of its logs. What was sent before comes first, so that the script has read nothing else by then.
    type Shape = (Reverse<u32>, Mode, bool, SmallVec<[(usize, u32); 4]>);

    fn script(scripts: &'static Scripts) -> &'static Script {
        &scripts.admit
    }

    fn places(&self) -> usize {
        self.check.logs.len()
    }

    fn shape(&self) -> Self::Shape {
        let costs = self.check.costs();
        // What a request takes of a budget is part of its entry.
        let in_shape = |log: &LogId, cost| if log.is_budget() { 0 } else { cost };
        let logs = costs
            .map(|(log, cost)| (Arc::as_ptr(&log.policy).addr(), in_shape(log, cost)))
            .collect();
        (Reverse(self.turns), self.mode, self.check.wants_reset, logs)
    }

    fn log(&self) -> Option<&LogId> {
        self.check.logs.first()
    }

    fn add_keys(&self, keys: &Keys, names: &mut Vec<Vec<u8>>) {
        names.extend(self.check.logs.iter().map(|log| keys.log(log)));
        for (log, _) in self.penalties() {
            names.extend([keys.ban_record(log), keys.strikes(log)]);
        }
    }

    fn add_arguments<'a>(requests: impl Iterator<Item = &'a Self> + Clone, command: &mut Cmd) {
        let mut rest = requests;
        while let Some(first) = rest.clone().next() {
            let shape = first.shape();
            let count = rest.clone().take_while(|it| it.shape() == shape).count();
            let mut numbers = Vec::with_capacity(128);
            first.add_shape(count, &mut numbers);
            command.arg(&numbers);
            for request in rest.clone().take(count) {
                let id = request.check.id;
                command.arg(id.as_bytes());
                for (log, cost) in request.with_entries() {
                    command.arg(&entry(log, log.entry_id(id), cost)[..]);
                }
            }
            rest.nth(count - 1);
        }
    }

    fn replies<'a>(
        requests: impl Iterator<Item = &'a Self>,
        mut replies: Replies<'_>,
    ) -> Result<Vec<Result<Self::Reply, StoreError>>, StoreError> {
        let now_us = replies.numbers.next_unsigned()?;
        replies.read_each(requests, |request, state, numbers| match state {
            -2 => Ok(CheckReply::SendAgain(None)),
            3 => request.read(state, now_us, numbers).map(|it| CheckReply::SendAgain(Some(it))),
            _ => request.read(state, now_us, numbers).map(CheckReply::Decided),
        })
    }
}

/// A request to `reconcile.lua`: what this process knows of a log.
pub(super) struct ReconcileRequest {
    pub(super) log: LogId,
    pub(super) requests: Vec<(Uuid, RequestState)>,
    /// How long a call may be under way.
    pub(super) longest_delay: Duration,
}

/// The reply of `reconcile.lua`.
pub(super) struct Reconciled {
    /// Whether the log had one of the requests.
    pub(super) had: bool,
    /// How long ago the log was last reset, if a process may know of requests from before.
    pub(super) reset: Option<Duration>,
}

impl ReconcileRequest {
    pub(super) fn new(log: &LogId, requests: Vec<(Uuid, RequestState)>) -> Self {
        Self { log: log.clone(), requests, longest_delay: USUAL_DELAY }
    }

    /// Returns whether a reset of the log matters.
    fn has_mark(&self) -> bool {
        self.requests.iter().any(|(_, request)| request.origin != Origin::Kept)
    }
}

impl BatchedRequest for ReconcileRequest {
    type Reply = Reconciled;

    /// Not the mark: of a slot on its way, no node takes both unless it has both.
    const MOST_DECLARED: usize = 1;

    type Shape = ();

    fn script(scripts: &'static Scripts) -> &'static Script {
        &scripts.reconcile
    }

    fn places(&self) -> usize {
        self.requests.len()
    }

    fn shape(&self) {}

    fn log(&self) -> Option<&LogId> {
        Some(&self.log)
    }

    fn add_keys(&self, keys: &Keys, names: &mut Vec<Vec<u8>>) {
        names.push(keys.log(&self.log));
        names.extend(self.has_mark().then(|| keys.reset_mark(&self.log)));
    }

    fn add_arguments<'a>(requests: impl Iterator<Item = &'a Self> + Clone, command: &mut Cmd) {
        let delay = requests.clone().map(|request| request.longest_delay).max();
        command.arg(micros(delay.unwrap_or_default()));
        // The ages are those of the moment of sending.
        let now = Instant::now();
        for request in requests {
            command.arg(request.log.policy.retention_us());
            command.arg(counts_number(&request.log)).arg(u8::from(request.has_mark()));
            command.arg(request.requests.len());
            for (id, RequestState { initial, places, at, origin }) in &request.requests {
                let age_us = micros(now.saturating_duration_since(*at));
                command.arg(&entry(&request.log, *id, *initial)[..]).arg(places).arg(age_us);
                command.arg(match origin {
                    Origin::Here => "here",
                    Origin::Redis => "redis",
                    Origin::Kept => "kept",
                });
            }
        }
    }

    fn replies<'a>(
        requests: impl Iterator<Item = &'a Self>,
        replies: Replies<'_>,
    ) -> Result<Vec<Result<Self::Reply, StoreError>>, StoreError> {
        replies.read_each(requests, |_, had, numbers| {
            let reset = u64::try_from(numbers.next()?).ok().map(Duration::from_micros);
            Ok(Reconciled { had: had > 0, reset })
        })
    }
}

/// The reply of `ban.lua`.
pub(super) struct BanReply {
    /// The ban that stands.
    pub(super) ban: Ban,
    /// Whether the ban was lifted after this process saw it.
    pub(super) was_lifted: bool,
}

/// Imposes a ban with `ban.lua`. A length of zero only reads the present ban.
///
/// The numbers say how long the ban lasts, how long it was when it was imposed, and the level that the key has at least. `age`
/// says how long ago it was seen, and is `None` for a ban that is imposed now.
pub(super) async fn impose(
    client: &Client,
    log: &LogId,
    (remaining_us, length_us, level): (u64, u64, u64),
    reason: &str,
    age: Option<Duration>,
    only_longer: bool,
) -> Result<BanReply, StoreError> {
    let (keys, script) = (&client.keys, &client.scripts.ban);
    let decay_us = log.policy.get_penalty().map_or(0, |penalty| penalty.decay_us());
    let mut command = script.command(3);
    command.arg(keys.ban_record(log)).arg(keys.strikes(log)).arg(keys.lift_mark(log));
    command.arg(remaining_us).arg(reason).arg(decay_us);
    command.arg(age.map_or(0, |age| micros(age + USUAL_DELAY)));
    command.arg(u8::from(only_longer)).arg(length_us).arg(level);
    let reply = client.run(script, &command).await?;
    let (wait_us, outcome, reason): (u64, i64, Vec<u8>) = read(&reply)?;
    let reason = String::from_utf8_lossy(&reason).into_owned();
    let remaining = Duration::from_micros(wait_us);
    let ban = Ban { remaining, reason, is_new: outcome > 0, lengthens: outcome == 2 };
    Ok(BanReply { ban, was_lifted: outcome < 0 })
}

/// Empties a log with `reset.lua`.
pub(super) async fn reset(client: &Client, log: &LogId) -> Result<(), StoreError> {
    let (keys, script) = (&client.keys, &client.scripts.reset);
    let mut command = script.command(2);
    command.arg(keys.log(log)).arg(keys.reset_mark(log)).arg(log.policy.retention_us());
    client.run(script, &command).await.map(|_| ())
}

/// Until, level, reason and end of the episode.
type BanFields = (Option<u64>, Option<u64>, Option<Vec<u8>>, Option<u64>);
/// Entries of a ZSET, each with its score.
type Scored = Vec<(Vec<u8>, u64)>;

/// Explains a log: what a request would get, which a peek has said, and what the log holds, which is read after it.
pub(super) async fn explain(
    client: &Client,
    check: &Check,
    peeked: &Outcome,
) -> Result<Explanation, StoreError> {
    let (log, now_us) = (&check.logs[0], peeked.timestamp.map_or(0, micros));
    let name = client.keys.log(log);
    // What was settled is an entry of its own.
    let most = if log.is_budget() { 2 * MAX_LISTED } else { MAX_LISTED };
    let mut reads = redis::pipe();
    let mut add = |name: &[u8], window_us| {
        let since_us = (now_us + 1).saturating_sub(window_us);
        let range = (name, since_us, "+inf", "BYSCORE", "LIMIT", 0, most, "WITHSCORES");
        reads.cmd("ZRANGE").arg(range);
    };
    log.policy.quotas().iter().for_each(|quota| add(&name, quota.window_us()));
    let penalty = log.policy.get_penalty();
    if let Some(penalty) = penalty {
        let within_us = penalty.strikes().map_or(0, |it| it.window_us());
        add(&client.keys.strikes(log), within_us);
        let fields = ("until", "level", "reason", "episode_until");
        reads.cmd("HMGET").arg(client.keys.ban_record(log)).arg(fields);
    }
    let replies: Vec<Value> = read(&client.send_all(&reads).await?)?;
    let states = log.policy.quotas().iter().zip(peeked.logs()[0].quotas());
    let explained = states.zip(&replies).map(|((quota, state), entries)| {
        listed(entries).map(|entries| QuotaExplanation::new(now_us, *quota, *state, entries))
    });
    let explained = explained.collect::<Result<_, _>>()?;
    let explanation = Explanation::of(log, check.cost_in(0), now_us, explained);
    match (penalty, &replies[..]) {
        (Some(penalty), [.., strikes, ban]) => {
            Ok(explanation.with_ban(ban_record(ban, strikes)?.explain(now_us, penalty)))
        }
        _ => Ok(explanation),
    }
}

/// Reads entries with their costs. What was settled of a budget is next to its entry.
fn listed(value: &Value) -> Result<Vec<(Entry, u32)>, StoreError> {
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, |it| f64::from_be_bytes(it) as i64);
    let mut found = Vec::new();
    for (member, at_us) in read::<Scored>(value)? {
        let id = member.get(..16).and_then(|id| Uuid::from_slice(id).ok());
        let id = id.ok_or_else(|| malformed("expected UUIDs as entries"))?;
        match (member.get(24..), found.last_mut()) {
            (Some([_, ..]), Some((_, cost))) => *cost += number(&member[24..]),
            _ if member.len() == 16 => found.push((Entry { at_us, id }, 1)),
            _ => found.push((Entry { at_us, id }, number(&member[16..]))),
        }
    }
    let cost = |cost: i64| u32::try_from(cost.max(0)).unwrap_or(u32::MAX);
    Ok(found.into_iter().map(|(entry, it)| (entry, cost(it))).collect())
}

fn ban_record(ban: &Value, strikes: &Value) -> Result<BanRecord, StoreError> {
    let (until_us, level, reason, episode_until_us): BanFields = read(ban)?;
    let reason = String::from_utf8_lossy(&reason.unwrap_or_default()).into_owned();
    Ok(BanRecord {
        until_us: until_us.unwrap_or(0),
        level: level.unwrap_or(0),
        reason,
        episode_until_us: episode_until_us.unwrap_or(0),
        strikes: listed(strikes)?.into_iter().map(|(strike, _)| strike).collect(),
        ..BanRecord::default()
    })
}
