//! The requests to the scripts that take several in one call.

use std::cmp::Ordering;
use std::time::Duration;

use redis::{Cmd, Value};
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::error::StoreError;
use crate::quota::Quota;
use crate::redis::{BatchedRequest, Keys, Script, Scripts, malformed, read};
use crate::store::Admission;
use crate::time::micros;
use crate::window::{Check, LogId};

/// A request to `admit.lua`.
pub(super) struct AdmitRequest {
    log: Vec<u8>,
    member: [u8; 16],
    limit: u32,
    window_s: u64,
    wanted: Wanted,
}

/// What the reply to a request has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wanted {
    Decision,
    /// Also the timestamp of the decision.
    Timestamp,
    /// Also the timestamp, and the time until the oldest entry leaves.
    Reset,
}

impl Wanted {
    fn word(self) -> &'static str {
        match self {
            Self::Decision => "decision",
            Self::Timestamp => "timestamp",
            Self::Reset => "reset",
        }
    }
}

/// The reply of `admit.lua` to a request.
pub(super) struct AdmitReply {
    /// The places left if the request is admitted, else the wait as a negative number of
    /// microseconds.
    pub(super) decision: i64,
    pub(super) at_us: Option<u64>,
    pub(super) reset_us: u64,
}

impl AdmitRequest {
    /// Returns the request if `admit.lua` can decide: a new request of cost 1, one log, one quota of
    /// whole seconds, and neither candidates nor a penalty.
    pub(super) fn of(check: &Check, keys: &Keys) -> Option<Self> {
        let [log] = &check.logs[..] else { return None };
        let ([quota], []) = (log.policy.quotas(), log.policy.candidates()) else { return None };
        let is_plain = log.policy.get_penalty().is_none()
            && check.cost == 1
            && !check.repeated
            && quota.window().subsec_micros() == 0;
        is_plain.then(|| Self::new(check, log, *quota, keys))
    }

    fn new(check: &Check, log: &LogId, quota: Quota, keys: &Keys) -> Self {
        let wanted = match (check.wants_reset, check.wants_timestamp) {
            (true, _) => Wanted::Reset,
            (false, true) => Wanted::Timestamp,
            (false, false) => Wanted::Decision,
        };
        let (log, member) = (keys.log(log), check.id.into_bytes());
        Self { log, member, limit: quota.limit(), window_s: quota.window().as_secs(), wanted }
    }

    fn group(&self) -> (u32, u64, Wanted) {
        (self.limit, self.window_s, self.wanted)
    }
}

impl BatchedRequest for AdmitRequest {
    type Reply = AdmitReply;

    /// The caller that has gone gets no place.
    const OUTLIVES_CALLER: bool = false;

    fn script(scripts: &'static Scripts) -> &'static Script {
        &scripts.admit
    }

    fn places(&self) -> usize {
        1
    }

    fn compare(&self, other: &Self) -> Ordering {
        self.group().cmp(&other.group())
    }

    fn command<'a>(requests: impl Iterator<Item = &'a Self> + Clone, script: &Script) -> Cmd {
        let mut command = script.command(requests.clone().count());
        for request in requests.clone() {
            command.arg(&request.log);
        }
        let mut rest = requests;
        while let Some(first) = rest.clone().next() {
            let group = rest.clone().take_while(|request| request.group() == first.group());
            let count = group.clone().count();
            command.arg(count).arg(first.limit).arg(first.window_s).arg(first.wanted.word());
            for request in group {
                command.arg(&request.member);
            }
            rest.nth(count - 1);
        }
        command
    }

    fn reply(reply: &Value) -> Result<AdmitReply, StoreError> {
        if let Value::Int(decision) = reply {
            return Ok(AdmitReply { decision: *decision, at_us: None, reset_us: 0 });
        }
        let (decision, at_us, reset_us) = read(reply)?;
        Ok(AdmitReply { decision, at_us: Some(at_us), reset_us })
    }
}

/// A request to `cancel.lua`.
pub(super) struct CancelRequest {
    logs: SmallVec<[(Vec<u8>, u64); 1]>,
    member: [u8; 16],
    cost: u32,
}

impl CancelRequest {
    pub(super) fn new(check: &Check, keys: &Keys) -> Self {
        let log = |log: &LogId| (keys.log(log), log.policy.longest_window_us());
        let logs = check.logs.iter().map(log).collect();
        Self { logs, member: check.id.into_bytes(), cost: check.cost }
    }
}

impl BatchedRequest for CancelRequest {
    /// How many logs had the request in their longest window.
    type Reply = u64;

    /// Otherwise a request whose caller gives up would keep its place.
    const OUTLIVES_CALLER: bool = true;

    fn script(scripts: &'static Scripts) -> &'static Script {
        &scripts.cancel
    }

    fn places(&self) -> usize {
        self.logs.len() * self.cost as usize
    }

    fn command<'a>(requests: impl Iterator<Item = &'a Self> + Clone, script: &Script) -> Cmd {
        let logs = requests.clone().flat_map(|request| &request.logs);
        let mut command = script.command(logs.clone().count());
        for (log, _) in logs {
            command.arg(log);
        }
        for Self { logs, member, cost } in requests {
            command.arg(member).arg(cost).arg(logs.len());
            for (_, horizon_us) in logs {
                command.arg(horizon_us);
            }
        }
        command
    }

    fn reply(reply: &Value) -> Result<u64, StoreError> {
        read(reply)
    }
}

/// A request to `restore.lua`.
pub(super) struct RestoreRequest {
    log: Vec<u8>,
    reset_mark: Vec<u8>,
    horizon_us: u64,
    delay: Duration,
    admissions: Vec<Admission>,
    /// When the admissions had their ages.
    taken: Instant,
}

impl RestoreRequest {
    /// Creates a request that is under way for at most `delay`.
    pub(super) fn new(log: &LogId, admissions: &[Admission], delay: Duration, keys: &Keys) -> Self {
        Self {
            log: keys.log(log),
            reset_mark: keys.reset_mark(log),
            horizon_us: log.policy.longest_window_us(),
            delay,
            admissions: admissions.to_vec(),
            taken: Instant::now(),
        }
    }
}

impl BatchedRequest for RestoreRequest {
    /// How many entries are new, and how long ago the log was reset, in microseconds; -1 if no
    /// reset matters.
    type Reply = (u32, i64);

    /// The write-back sends it again, with what has changed meanwhile.
    const OUTLIVES_CALLER: bool = false;

    fn script(scripts: &'static Scripts) -> &'static Script {
        &scripts.restore
    }

    fn places(&self) -> usize {
        self.admissions.iter().map(|admission| admission.cost as usize).sum()
    }

    /// Makes the ages those of the moment of sending.
    fn end_wait(&mut self) {
        let waited = self.taken.elapsed();
        self.admissions.iter_mut().for_each(|admission| admission.age += waited);
    }

    fn command<'a>(requests: impl Iterator<Item = &'a Self> + Clone, script: &Script) -> Cmd {
        let mut command = script.command(2 * requests.clone().count());
        for request in requests.clone() {
            command.arg(&request.log).arg(&request.reset_mark);
        }
        let delay = requests.clone().map(|request| request.delay).max();
        command.arg(micros(delay.unwrap_or_default()));
        for request in requests {
            command.arg(request.horizon_us).arg(request.admissions.len());
            for Admission { id, cost, age, confirmed } in &request.admissions {
                command.arg(id.as_bytes()).arg(cost).arg(micros(*age));
                command.arg(if *confirmed { "NX" } else { "GT" });
            }
        }
        command
    }

    fn reply(reply: &Value) -> Result<(u32, i64), StoreError> {
        let Value::Array(_) = reply else { return Err(malformed("expected two integers")) };
        read(reply)
    }
}
