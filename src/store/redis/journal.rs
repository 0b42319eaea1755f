//! [`Journal`]: what Redis does not know yet, log by log.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use ahash::RandomState;
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use crate::error::StoreError;
use crate::telemetry::{self, Fill, JOURNAL};
use crate::time::Pace;
use crate::window::{Check, Cost, LogId};

/// What a process knows of a request in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestState {
    /// How many places it took when it was admitted.
    pub(super) initial: u32,
    /// How many places it takes. 0 if it was cancelled, or refused although Redis may have counted it.
    pub(super) places: u32,
    /// When it was admitted.
    pub(super) at: Instant,
    pub(super) origin: Origin,
}

impl RequestState {
    /// Returns how much room it takes. What Redis has admitted has its room in the local log.
    fn room(&self) -> usize {
        usize::from(self.origin != Origin::Redis)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// This process admitted it without Redis.
    Here,
    /// Redis admitted it, and may have lost it since.
    Redis,
    /// Redis has it if it was not removed there, with another number of places.
    Kept,
}

/// The requests that Redis does not know as this process does, until they are written to it.
///
/// A request has one state here, whatever was done to it: so many places since an instant. To write it
/// twice has the effect of writing it once.
///
/// It is nearly always empty, which can be read without the lock.
pub(super) struct Journal {
    state: Mutex<State>,
    /// The number of logs, updated before the lock is released. At least 1 while it is held.
    logs: AtomicUsize,
    fill: Fill,
}

pub(super) struct State {
    logs: HashMap<LogId, Unwritten, RandomState>,
    /// How much room the requests take.
    room: usize,
    capacity: usize,
    /// When expired requests were last dropped to make room.
    cleared: Pace,
    /// Requests that have expired before they could be written and were not reported yet.
    lost: u64,
    /// The longest time that a write takes, or a step of the background task, while its runtime is driven.
    longest_write: Duration,
    /// The token of the background task, and when its last step began. It is dangling when the task is gone.
    task: (Weak<()>, Instant),
}

pub(super) type WriteResult = Option<Result<(), StoreError>>;

/// What Redis does not know of a log.
#[derive(Default)]
struct Unwritten {
    requests: HashMap<Uuid, RequestState, RandomState>,
    /// How often it was noted that the ban of the key is to be written, and when it is over.
    bans: u32,
    banned_until: Option<Instant>,
    /// How often Redis may have lost the log.
    losses: u32,
    /// The result of the writer, and when it began. Closed when the writer is gone, also if its task was dropped.
    writing: Option<(watch::Receiver<WriteResult>, Instant)>,
}

/// The right to write to one log, and what to write.
pub(super) struct Writer {
    pub(super) log: LogId,
    pub(super) requests: Vec<(Uuid, RequestState)>,
    pub(super) bans: u32,
    losses: u32,
    pub(super) result: watch::Sender<WriteResult>,
}

impl Journal {
    /// `response_timeout` is that of the calls.
    pub(super) fn new(capacity: usize, response_timeout: Duration) -> Self {
        let state = State {
            // Of two calls, each of which waits for its turn and a connection, and may be sent twice.
            longest_write: response_timeout
                .saturating_mul(6)
                .saturating_add(Duration::from_secs(3)),
            logs: HashMap::default(),
            room: 0,
            capacity,
            cleared: Pace::new(),
            lost: 0,
            task: (Weak::new(), Instant::now()),
        };
        let fill = Fill::new(&JOURNAL, capacity);
        Self { state: Mutex::new(state), logs: AtomicUsize::new(0), fill }
    }

    /// Calls `f` under the lock. The journal does not look empty meanwhile, so whoever sees a part of what `f` does waits
    /// for the rest.
    pub(super) fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.logs.fetch_max(1, Ordering::SeqCst);
        let result = f(&mut state);
        self.logs.store(state.logs.len(), Ordering::SeqCst);
        let room = state.room;
        drop(state);
        self.fill.report(room);
        result
    }

    /// Reports the requests that have expired since the last report: the outage is longer than their windows.
    pub(super) fn report_lost(&self) {
        let lost = self.with(|state| std::mem::take(&mut state.lost));
        if lost > 0 {
            telemetry::write_back_lost(lost);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.logs.load(Ordering::SeqCst) == 0
    }

    /// Returns whether there is anything about a log.
    pub(super) fn has(&self, log: &LogId) -> bool {
        !self.is_empty() && self.with(|state| state.logs.contains_key(log))
    }
}

impl State {
    /// Returns the token of the background task if there is no task, or only one that is at rest with its runtime.
    pub(super) fn claim_task(&mut self) -> Option<Arc<()>> {
        let (task, since) = &self.task;
        if self.logs.is_empty() || task.strong_count() > 0 && since.elapsed() < self.longest_write {
            return None;
        }
        let token = Arc::new(());
        self.task = (Arc::downgrade(&token), Instant::now());
        Some(token)
    }

    /// Begins a step of the background task. Returns whether no other task has taken its place.
    pub(super) fn renew_task(&mut self, token: &Arc<()>) -> bool {
        let is_same = self.task.0.as_ptr() == Arc::as_ptr(token);
        if is_same {
            self.task.1 = Instant::now();
        }
        is_same
    }

    /// Returns whether a request is about to be written to a log.
    pub(super) fn has(&self, log: &LogId, id: Uuid) -> bool {
        self.logs.get(log).is_some_and(|it| it.requests.contains_key(&log.entry_id(id)))
    }

    /// Returns an error if there is no room for a further request within so many times the capacity.
    pub(super) fn ensure_room(
        &mut self,
        check: &Check,
        now: Instant,
        times: usize,
    ) -> Result<(), StoreError> {
        let more = check.logs.iter().filter(|log| !self.has(log, check.id)).count();
        let most = self.capacity.saturating_mul(times);
        // Requests that Redis has admitted, and bans, need no room. There are at most as many as the capacity of each.
        let is_full = self.room + more > most || self.logs.len() / 4 > self.capacity;
        if is_full && self.cleared.is_due(Duration::from_secs(1)) {
            let (room, lost) = (&mut self.room, &mut self.lost);
            self.logs.retain(|log, unwritten| {
                *room -= unwritten.drop_expired(log, now, usize::MAX, lost);
                !unwritten.is_empty()
            });
        }
        match self.room + more <= most {
            true => Ok(()),
            false => Err(StoreError::Full { capacity: self.capacity }),
        }
    }

    /// Takes note of a request that was admitted here, or by a Redis that may have lost it.
    pub(super) fn admit(&mut self, check: &Check, at: Instant, origin: Origin) {
        for (log, places) in check.costs().filter(|(_, places)| *places > 0) {
            let id = log.entry_id(check.id);
            let request = RequestState { initial: places, places, at, origin };
            let known = self.logs.get(log).and_then(|it| it.requests.get(&id));
            // An older admission must not shorten how long a value is kept.
            if !log.policy.refreshes() || known.is_none_or(|known| known.at <= at) {
                self.set(log, id, request);
            }
        }
    }

    /// Takes note of what a request costs from now on in each log. With 0 it is cancelled.
    pub(super) fn settle(
        &mut self,
        check: &Check,
        cost: impl Fn(&LogId) -> u32,
        now: Instant,
    ) -> Result<(), StoreError> {
        // As many more: no admission takes the room of a settlement, without which Redis would admit too many.
        self.ensure_room(check, now, 2)?;
        for (log, initial) in check.costs() {
            let Some(places) = log.settled_cost(cost(log)) else { continue };
            let earlier = self.logs.get(log).and_then(|it| it.requests.get(&check.id));
            let request = match earlier {
                // A cancelled request has no place left to settle.
                Some(earlier) if earlier.places == 0 => continue,
                Some(earlier) => RequestState { places, ..*earlier },
                None => RequestState { initial, places, at: now, origin: Origin::Kept },
            };
            self.set(log, check.id, request);
        }
        Ok(())
    }

    fn set(&mut self, log: &LogId, id: Uuid, request: RequestState) {
        let unwritten = self.logs.entry(log.clone()).or_default();
        let before = unwritten.requests.insert(id, request);
        self.room += request.room();
        self.room -= before.as_ref().map_or(0, RequestState::room);
    }

    /// Takes note of a ban that Redis may not have, and how long it still lasts.
    pub(super) fn ban(&mut self, log: &LogId, remaining: Duration) {
        // Under this policy, which has a penalty: what was noted before may be under one that has none.
        let unwritten = self.logs.remove(log).unwrap_or_default();
        let bans = unwritten.bans.saturating_add(1);
        let banned_until = unwritten.banned_until.max(Some(Instant::now() + remaining));
        self.logs.insert(log.clone(), Unwritten { bans, banned_until, ..unwritten });
    }

    /// Takes note of the requests that this process knows of a log, because Redis may have lost them.
    pub(super) fn lose(&mut self, log: &LogId, known: Vec<(Uuid, Cost, Instant)>) {
        if known.is_empty() {
            return;
        }
        let unwritten = self.logs.entry(log.clone()).or_default();
        unwritten.losses += 1;
        unwritten.requests.reserve(known.len());
        for (id, cost, at) in known {
            let request =
                RequestState { initial: cost.initial, places: cost.now, at, origin: Origin::Redis };
            let noted = unwritten.requests.entry(id).or_insert(request);
            // What is noted already is more exact, unless it expects that Redis has the request.
            if noted.origin == Origin::Kept {
                self.room -= std::mem::replace(noted, request).room();
            }
        }
    }

    /// Drops the requests that are to be written to a log, because it was reset.
    pub(super) fn forget(&mut self, log: &LogId) {
        if let Some(unwritten) = self.logs.get_mut(log) {
            let requests = std::mem::take(&mut unwritten.requests);
            self.room -= requests.values().map(RequestState::room).sum::<usize>();
        }
        self.drop_if_empty(log);
    }

    /// Claims the write of a log, with up to `most` requests. Returns where the result will be, and the writer unless
    /// another caller writes. Returns `None` if Redis knows all.
    pub(super) fn claim(
        &mut self,
        log: &LogId,
        most: usize,
        now: Instant,
    ) -> Option<(watch::Receiver<WriteResult>, Option<Writer>)> {
        let unwritten = self.logs.get_mut(log)?;
        if let Some((result, since)) = &unwritten.writing
            && is_there(result)
            && since.elapsed() < self.longest_write
        {
            return Some((result.clone(), None));
        }
        unwritten.writing = None;
        self.room -= unwritten.drop_expired(log, now, most, &mut self.lost);
        if unwritten.is_empty() {
            self.logs.remove(log);
            return None;
        }
        let requests = unwritten.requests.iter().take(most).map(|(id, it)| (*id, *it)).collect();
        let (result, writing) = watch::channel(None);
        unwritten.writing = Some((writing.clone(), now));
        let (bans, losses) = (unwritten.bans, unwritten.losses);
        let log = self.logs.get_key_value(log)?.0.clone();
        Some((writing, Some(Writer { log, requests, bans, losses, result })))
    }

    /// Returns whether no other writer has taken the place of one that was at rest.
    pub(super) fn is_of(&self, writer: &Writer) -> bool {
        let writing = self.logs.get(&writer.log).and_then(|it| it.writing.as_ref());
        writing.is_some_and(|(result, _)| result.same_channel(&writer.result.subscribe()))
    }

    /// Ends the work of a writer. If it has succeeded, drops what it has written, except what has changed
    /// meanwhile, or may be lost since.
    pub(super) fn finish(&mut self, writer: &Writer, result: Result<(), StoreError>) {
        if self.is_of(writer)
            && let Some(unwritten) = self.logs.get_mut(&writer.log)
        {
            unwritten.writing = None;
            if result.is_ok() {
                let is_kept = unwritten.losses == writer.losses;
                for (id, request) in &writer.requests {
                    if is_kept && unwritten.requests.get(id) == Some(request) {
                        unwritten.requests.remove(id);
                        self.room -= request.room();
                    }
                }
                if unwritten.bans == writer.bans {
                    unwritten.bans = 0;
                }
            }
            self.drop_if_empty(&writer.log);
        }
        writer.result.send_replace(Some(result));
    }

    /// Returns all logs. If there are none, the background task is over.
    pub(super) fn all_logs(&mut self) -> Vec<LogId> {
        if self.logs.is_empty() {
            // Under the lock: what is added from now on starts another task.
            self.task.0 = Weak::new();
            // An outage may have filled it. It does not shrink by itself.
            self.logs = HashMap::default();
        }
        self.logs.keys().cloned().collect()
    }

    fn drop_if_empty(&mut self, log: &LogId) {
        if self.logs.get(log).is_some_and(Unwritten::is_empty) {
            self.logs.remove(log);
        }
    }
}

impl Unwritten {
    fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.bans == 0 && !self.is_written()
    }

    /// Returns whether it is being written.
    fn is_written(&self) -> bool {
        self.writing.as_ref().is_some_and(|(result, _)| is_there(result))
    }

    /// Drops a ban that is over, and requests that no window needs any more, until the first `most` are needed. Returns their
    /// room, and adds those that were admitted here to `lost`.
    fn drop_expired(&mut self, log: &LogId, now: Instant, most: usize, lost: &mut u64) -> usize {
        // Not beside a writer, which knows its ban by the number.
        if self.banned_until.is_some_and(|until| until <= now) && !self.is_written() {
            (self.bans, self.banned_until) = (0, None);
        }
        let is_expired =
            |it: &RequestState| now.saturating_duration_since(it.at) >= log.policy.retention();
        let mut room = 0;
        loop {
            let first = self.requests.iter().take(most).filter(|(_, it)| is_expired(it));
            let expired: Vec<Uuid> = first.map(|(id, _)| *id).collect();
            if expired.is_empty() {
                return room;
            }
            for it in expired.iter().filter_map(|id| self.requests.remove(id)) {
                *lost += u64::from(it.origin == Origin::Here && it.places > 0);
                room += it.room();
            }
        }
    }
}

/// Returns whether a writer is there, if only at rest with its runtime.
fn is_there(result: &watch::Receiver<WriteResult>) -> bool {
    // An error means that it is gone.
    result.has_changed().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Policy, Quota};

    /// With a million logs it kept 386 MB.
    #[test]
    fn outage_takes_no_memory_after_its_end() {
        let journal = Journal::new(1_000, Duration::from_secs(1));
        let policy = Arc::new(Policy::new("user").quota(Quota::per_minute(5)));
        let checks = (0..1_000).map(|key| Check::new([LogId::new(policy.clone(), key)]));
        journal.with(|state| {
            for check in checks {
                state.admit(&check, Instant::now(), Origin::Here);
            }
            for log in state.all_logs() {
                state.forget(&log);
            }
            assert!(state.all_logs().is_empty());
            assert_eq!(state.logs.capacity(), 0);
        });
    }
}
