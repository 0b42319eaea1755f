//! [`Queue`]: the callers that wait for room in a log.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::policy::{Counts, Policy};
use crate::time::micros;
use crate::window::Denied;

/// After this time the first waiter checks again, although the place that it waits for is not free by
/// time: a replaced policy, a cancellation or a reset can free one too, also in other processes.
const RECHECK: Duration = Duration::from_secs(1);

/// A caller that waits.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) cost: u32,
    policy: Arc<Policy>,
    /// The end of the longest wait that the caller accepts.
    pub(super) deadline: Option<Instant>,
    pub(super) wake: Notify,
    denied: OnceLock<Denied>,
}

impl Waiter {
    pub(super) fn new(cost: u32, policy: Arc<Policy>, deadline: Option<Instant>) -> Self {
        Self { cost, policy, deadline, wake: Notify::new(), denied: OnceLock::new() }
    }

    /// Returns whether there is no room for it before there is for another one, if neither is behind others.
    fn needs_as_much_as(&self, other: &Self) -> bool {
        self.cost >= other.cost && self.policy.quotas() == other.policy.quotas()
    }

    /// Returns the denial that has ended the wait.
    pub(super) fn denied(&self) -> Option<Denied> {
        self.denied.get().cloned()
    }
}

/// What a waiter has to do next.
#[derive(Debug)]
pub(super) enum Turn {
    /// Send a check.
    Check,
    /// Wait until it is woken, and at most until an instant if there is one.
    Wait(Option<Instant>),
    /// Give up: the wait would be longer than it may be. There is a denial if the first waiter was denied.
    GiveUp(Option<Denied>),
}

/// The waiters for a log by their tickets, which are in the order of arrival.
///
/// The first one checks. What it learns is kept here, because another waiter can become the first one.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiters: BTreeMap<u64, Arc<Waiter>>,
    /// How many places all waiters take.
    places: u64,
    /// The same with those that wait for another log and take places here too.
    pub(super) taken: u64,
    /// When the first waiter checks. At once if there is no instant.
    next_check: Option<Instant>,
    /// The last denial of the first waiter, about this log alone, and when it arrived. The waiters behind it
    /// may have other logs besides this one.
    denial: Option<(Denied, Instant)>,
}

impl Queue {
    /// Returns whether nobody waits here, or takes a place.
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty() && self.taken == 0
    }

    /// Returns whether a caller with an earlier ticket waits.
    pub(super) fn is_before(&self, ticket: u64) -> bool {
        self.first().is_some_and(|first| first < ticket)
    }

    /// Adds a waiter, in place of the one with its ticket if there is one.
    pub(super) fn insert(&mut self, ticket: u64, waiter: Arc<Waiter>) {
        self.places += u64::from(waiter.cost);
        if let Some(before) = self.waiters.insert(ticket, waiter) {
            self.places -= u64::from(before.cost);
        }
    }

    /// Returns the denial of a caller that has not joined and would wait for longer than it may.
    pub(super) fn too_long(&self, ticket: u64, waiter: &Waiter) -> Option<Denied> {
        let denial = self.denial.as_ref()?;
        let is_behind = self.is_before(ticket);
        is_behind.then(|| too_long(denial, self.places_before(ticket), waiter, Instant::now()))?
    }

    /// Returns how many places the waiters with earlier tickets take.
    fn places_before(&self, ticket: u64) -> u64 {
        match self.waiters.last_key_value() {
            // Nearly every caller joins at the end.
            Some((last, _)) if *last < ticket => self.places,
            _ => self.waiters.range(..ticket).map(|(_, it)| u64::from(it.cost)).sum(),
        }
    }

    /// Returns the denial of a caller that can't join behind all waiters, if the first one was denied.
    pub(super) fn behind_all(&self, cost: u32) -> Option<Denied> {
        let denial = self.denial.as_ref()?;
        Some(denied_behind(denial, told_behind(denial, self.places, cost)?, Instant::now()))
    }

    /// Returns what the waiter with a ticket has to do.
    pub(super) fn turn(&mut self, ticket: u64) -> Turn {
        if self.first() != Some(ticket) {
            return self.turn_of_later(ticket);
        }
        // The one before may look again later than this one may wait.
        let deadline = self.waiters.get(&ticket).and_then(|it| it.deadline);
        match self.next_check.map(|at| deadline.map_or(at, |it| at.min(it))) {
            Some(at) if at > Instant::now() => Turn::Wait(Some(at)),
            _ => {
                // If this check is dropped, the next waiter checks at once.
                self.next_check = None;
                Turn::Check
            }
        }
    }

    /// Returns what a waiter behind the first one has to do: it waits until it is woken, or until its
    /// deadline, which a check of the first one that takes long may let pass.
    fn turn_of_later(&self, ticket: u64) -> Turn {
        let Some(waiter) = self.waiters.get(&ticket) else { return Turn::Wait(None) };
        let now = Instant::now();
        if waiter.deadline.is_none_or(|deadline| deadline > now) {
            return Turn::Wait(waiter.deadline);
        }
        let behind = self.denial.as_ref().and_then(|denial| {
            let wait = told_behind(denial, self.places_before(ticket), waiter.cost)?;
            Some(denied_behind(denial, wait, now))
        });
        Turn::GiveUp(behind)
    }

    /// Keeps a denial of the first waiter, and ends the waits that are too long because of it. A denial
    /// of another waiter says nothing about the first one.
    pub(super) fn deny(&mut self, ticket: u64, denied: Denied) {
        let first = match self.waiters.first_key_value() {
            Some((first, waiter)) if *first == ticket => waiter.clone(),
            _ => return,
        };
        let now = Instant::now();
        self.next_check = Some(now + denied.retry_after().min(RECHECK));
        let denial = (denied, now);
        let (mut places, mut is_known) = (0, true);
        self.waiters.retain(|_, waiter| {
            // Without the first one there can be room sooner for one that needs less, and for those behind it.
            is_known &= places > 0 || waiter.needs_as_much_as(&first);
            let denied = is_known.then(|| too_long(&denial, places, waiter, now)).flatten();
            let stays = denied.is_none();
            match denied {
                None => places += u64::from(waiter.cost),
                Some(denied) => {
                    let _ = waiter.denied.set(denied);
                    waiter.wake.notify_one();
                }
            }
            stays
        });
        (self.places, self.denial) = (places, Some(denial));
        if self.first() != Some(ticket) {
            self.begin_next(&first);
        }
    }

    /// Removes a waiter, unless another one has its ticket. The waiter behind it goes on.
    pub(super) fn remove(&mut self, ticket: u64, waiter: &Arc<Waiter>, is_admitted: bool) {
        let was_first = self.first() == Some(ticket);
        if !self.waiters.get(&ticket).is_some_and(|it| Arc::ptr_eq(it, waiter)) {
            return;
        }
        self.waiters.remove(&ticket);
        self.places -= u64::from(waiter.cost);
        if was_first && is_admitted {
            (self.next_check, self.denial) = (None, None);
        }
        if was_first {
            self.begin_next(waiter);
        }
    }

    fn first(&self) -> Option<u64> {
        self.waiters.first_key_value().map(|(ticket, _)| *ticket)
    }

    /// Wakes the waiter that has become the first one, after another one.
    fn begin_next(&mut self, before: &Waiter) {
        let first = self.waiters.first_key_value().map(|(_, first)| first);
        if let Some(first) = first {
            first.wake.notify_one();
        }
        if first.is_none_or(|first| !first.needs_as_much_as(before)) {
            // There can be room for it sooner.
            (self.next_check, self.denial) = (None, None);
        }
    }
}

/// Returns the denial of a waiter behind others that take `before` places, if it is known that it
/// would wait for longer than it may.
fn too_long(
    denial: &(Denied, Instant),
    before: u64,
    waiter: &Waiter,
    now: Instant,
) -> Option<Denied> {
    let longest = micros(waiter.deadline?.saturating_duration_since(denial.1));
    if waiter.policy.counts() == Counts::InFlight && longest > 0 {
        // A request in flight may be over at any time.
        return None;
    }
    // Under other quotas, such as those of a larger plan, all that is known is the wait of the first one.
    let is_same = has_quotas_of(&waiter.policy, &denial.0);
    let (before, cost) = if is_same { (before, waiter.cost) } else { (0, 0) };
    let (wait_us, _) = wait_behind(denial, before, cost)?;
    let told = told_behind(denial, before, cost)?;
    (wait_us > longest).then(|| denied_behind(denial, told, now))
}

/// Returns whether a denial in a queue is one under the quotas of a policy, and not under those of another plan or of before.
pub(super) fn has_quotas_of(policy: &Policy, denied: &Denied) -> bool {
    denied.check().logs[0].policy.quotas() == policy.quotas()
}

/// Returns how long after the denial of the first waiter a request has room at the earliest, behind
/// others that take `before` places, and the index of the quota that decides this.
///
/// From the instant on at which the first waiter has room, every window admits `limit` places at most.
/// So the n-th place after it is `n / limit` windows later, or more.
fn wait_behind((denied, _): &(Denied, Instant), before: u64, cost: u32) -> Option<(u64, usize)> {
    let places = before + u64::from(cost);
    let windows = |limit: u32| places.div_ceil(u64::from(limit.max(1))).saturating_sub(1);
    let quotas = denied.usage().quotas().enumerate();
    let waits = quotas.map(|(index, (policy, quota, state))| {
        // A request in flight may be over at any time, and those before it may have its value.
        let window_us = if policy.refreshes() { 0 } else { quota.window_us() };
        (windows(quota.limit()).saturating_mul(window_us), state.wait(), index)
    });
    let (windows_us, _, index) = waits.max()?;
    Some((windows_us.saturating_add(micros(denied.retry_after())), index))
}

/// Returns what [`wait_behind`] does, but never too short. What a quota holds now leaves within its window, however it is
/// spread there, and what is free under one that does not deny may be used up by those before.
fn told_behind(denial: &(Denied, Instant), before: u64, cost: u32) -> Option<(u64, usize)> {
    let first = wait_behind(denial, before, cost)?;
    let (places, first_us) = (before + u64::from(cost), micros(denial.0.retry_after()));
    let quotas = denial.0.usage().quotas().enumerate();
    let waits = quotas.filter_map(|(index, (policy, quota, state))| {
        let free = if state.is_full() { 0 } else { state.remaining() };
        let beyond = places.saturating_sub(u64::from(free));
        if beyond == 0 || policy.refreshes() {
            return None;
        }
        let (limit, window_us) = (places_of(quota.limit(), cost), quota.window_us());
        let (from_us, windows) = match state.is_full() {
            true => (first_us.max(window_us), places.div_ceil(limit) - 1),
            false => (first_us, beyond.div_ceil(limit)),
        };
        Some((windows.saturating_mul(window_us).saturating_add(from_us), index))
    });
    waits.chain([first]).max()
}

/// Returns how many places of a limit requests of one cost take: what is less than the cost stays free.
pub(super) fn places_of(limit: u32, cost: u32) -> u64 {
    u64::from((limit - limit % cost.max(1)).max(1))
}

fn denied_behind(
    (denied, received): &(Denied, Instant),
    (wait_us, quota): (u64, usize),
    now: Instant,
) -> Denied {
    let elapsed_us = micros(now.saturating_duration_since(*received));
    denied.behind(elapsed_us, quota, wait_us)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Quota;

    /// Else the next one checks in between.
    #[test]
    fn a_waiter_whose_place_is_replaced_stays_first() {
        let waiter = |cost| {
            let policy = Arc::new(Policy::from(Quota::per_second(1)));
            Arc::new(Waiter::new(cost, policy, None))
        };
        let (before, mut queue) = (waiter(0), Queue::default());
        for (ticket, waiter) in [(1, before.clone()), (2, waiter(3)), (1, waiter(2))] {
            queue.insert(ticket, waiter);
        }
        queue.remove(1, &before, false);
        assert_eq!((queue.first(), queue.places), (Some(1), 5));
    }
}
