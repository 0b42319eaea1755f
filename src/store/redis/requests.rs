//! The requests to the scripts that take several in one call.

use std::cmp::Ordering;
use std::time::Duration;

use redis::Cmd;
use tokio::time::Instant;
use uuid::Uuid;

use crate::error::StoreError;
use crate::redis::{BatchedRequest, Keys, Replies, Script, Scripts};
use crate::store::Admission;
use crate::time::micros;
use crate::window::{Check, LogId, QuotaState};

/// A request to `admit.lua`.
pub(super) struct AdmitRequest {
    log: LogId,
    id: Uuid,
    group: Group,
}

/// What the requests of one group in a call have in common.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    limit: u32,
    window_s: u64,
    wants_reset: bool,
}

/// The reply of `admit.lua` to a request.
pub(super) struct AdmitReply {
    pub(super) is_admitted: bool,
    pub(super) at_us: u64,
    pub(super) state: QuotaState,
}

impl AdmitRequest {
    /// Returns the request if `admit.lua` can decide: a new request of cost 1, one log, one quota of
    /// whole seconds, and neither candidates nor a penalty.
    pub(super) fn of(check: &Check) -> Option<Self> {
        let [log] = &check.logs[..] else { return None };
        let ([quota], []) = (log.policy.quotas(), log.policy.candidates()) else { return None };
        let is_plain = log.policy.get_penalty().is_none()
            && check.cost == 1
            && !check.repeated
            && quota.window().subsec_micros() == 0;
        let group = Group {
            limit: quota.limit(),
            window_s: quota.window().as_secs(),
            wants_reset: check.wants_reset,
        };
        is_plain.then(|| Self { log: log.clone(), id: check.id, group })
    }
}

impl BatchedRequest for AdmitRequest {
    /// `None` if `admit_all.lua` has to decide.
    type Reply = Option<AdmitReply>;

    /// The caller that has gone gets no place.
    const OUTLIVES_CALLER: bool = false;

    fn script(scripts: &'static Scripts) -> &'static Script {
        &scripts.admit
    }

    fn places(&self) -> usize {
        1
    }

    fn compare(&self, other: &Self) -> Ordering {
        self.group.cmp(&other.group)
    }

    fn command<'a>(
        requests: impl Iterator<Item = &'a Self> + Clone,
        script: &Script,
        keys: &Keys,
    ) -> Cmd {
        let mut command = script.command(requests.clone().count());
        let mut name = Vec::with_capacity(64);
        for request in requests.clone() {
            name.clear();
            keys.write_log(&request.log, &mut name);
            command.arg(&name);
        }
        let mut rest = requests;
        while let Some(Self { group, .. }) = rest.clone().next() {
            let members = rest.clone().take_while(|request| request.group == *group);
            let count = members.clone().count();
            command.arg(count).arg(group.limit).arg(group.window_s);
            command.arg(u8::from(group.wants_reset));
            for request in members {
                command.arg(request.id.as_bytes());
            }
            rest.nth(count - 1);
        }
        command
    }

    fn replies<'a>(
        requests: impl Iterator<Item = &'a Self>,
        mut replies: Replies<'_>,
    ) -> Result<Vec<Result<Self::Reply, StoreError>>, StoreError> {
        let at_us = replies.numbers.next_unsigned()?;
        replies.read_each(requests, |request, state, numbers| {
            let rest = numbers.next_unsigned()?;
            let reset_us = if request.group.wants_reset { numbers.next_unsigned()? } else { 0 };
            let is_admitted = state == 1;
            let (places, wait_us) = if is_admitted { (rest, 0) } else { (0, rest) };
            let remaining = u32::try_from(places).unwrap_or(u32::MAX);
            let is_decided = state != 2;
            let state = QuotaState { remaining, wait_us, reset_us };
            Ok(is_decided.then_some(AdmitReply { is_admitted, at_us, state }))
        })
    }
}

/// A request to `settle.lua`.
pub(super) struct SettleRequest {
    pub(super) check: Check,
    pub(super) cost: u32,
}

impl BatchedRequest for SettleRequest {
    /// How many logs had the request in their longest window.
    type Reply = u64;

    /// Otherwise a request whose caller gives up would keep its places.
    const OUTLIVES_CALLER: bool = true;

    fn script(scripts: &'static Scripts) -> &'static Script {
        &scripts.settle
    }

    fn places(&self) -> usize {
        self.check.logs.len() * self.cost.max(self.check.cost) as usize
    }

    fn command<'a>(
        requests: impl Iterator<Item = &'a Self> + Clone,
        script: &Script,
        keys: &Keys,
    ) -> Cmd {
        let logs = requests.clone().flat_map(|request| &request.check.logs);
        let mut command = script.command(logs.clone().count());
        for log in logs {
            command.arg(keys.log(log));
        }
        for Self { check, cost } in requests {
            command.arg(check.id.as_bytes()).arg(cost).arg(check.logs.len());
            for log in &check.logs {
                command.arg(log.policy.longest_window_us());
            }
        }
        command
    }

    fn replies<'a>(
        requests: impl Iterator<Item = &'a Self>,
        replies: Replies<'_>,
    ) -> Result<Vec<Result<u64, StoreError>>, StoreError> {
        replies.read_each(requests, |_, live, _| Ok(live.unsigned_abs()))
    }
}

/// A request to `restore.lua`.
pub(super) struct RestoreRequest {
    log: LogId,
    admissions: Vec<Admission>,
    /// When the admissions had their ages.
    taken: Instant,
    /// How long a call may be under way.
    longest_delay: Duration,
}

impl RestoreRequest {
    pub(super) fn new(log: &LogId, admissions: &[Admission], longest_delay: Duration) -> Self {
        let (log, admissions) = (log.clone(), admissions.to_vec());
        Self { log, admissions, taken: Instant::now(), longest_delay }
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

    fn command<'a>(
        requests: impl Iterator<Item = &'a Self> + Clone,
        script: &Script,
        keys: &Keys,
    ) -> Cmd {
        let mut command = script.command(2 * requests.clone().count());
        for request in requests.clone() {
            command.arg(keys.log(&request.log)).arg(keys.reset_mark(&request.log));
        }
        let delay = requests.clone().map(|request| request.longest_delay).max();
        command.arg(micros(delay.unwrap_or_default()));
        for request in requests {
            command.arg(request.log.policy.longest_window_us()).arg(request.admissions.len());
            for Admission { id, cost, age, confirmed } in &request.admissions {
                command.arg(id.as_bytes()).arg(cost).arg(micros(*age));
                command.arg(if *confirmed { "NX" } else { "GT" });
            }
        }
        command
    }

    fn replies<'a>(
        requests: impl Iterator<Item = &'a Self>,
        replies: Replies<'_>,
    ) -> Result<Vec<Result<Self::Reply, StoreError>>, StoreError> {
        replies.read_each(requests, |_, added, numbers| {
            Ok((u32::try_from(added).unwrap_or(u32::MAX), numbers.next()?))
        })
    }
}
