//! [`Queue`]: the callers that wait for room in a log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::policy::{Counts, Policy};
use crate::quota::Quota;
use crate::time::micros;
use crate::window::{BanState, Denied, LogOutcome, Outcome};

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
}

impl Waiter {
    pub(super) fn new(cost: u32, policy: Arc<Policy>, deadline: Option<Instant>) -> Self {
        Self { cost, policy, deadline, wake: Notify::new() }
    }

    /// Returns whether there is no room for it before there is for another one, if neither is behind others.
    fn needs_as_much_as(&self, other: &Self) -> bool {
        self.cost >= other.cost && self.policy.quotas() == other.policy.quotas()
    }
}

/// What a waiter has to do next.
#[derive(Debug)]
pub(super) enum Turn {
    /// Send a check.
    Check,
    /// Wait until it is woken, and at most until an instant if there is one.
    Wait(Option<Instant>),
    /// Give up: the wait would be longer than it may be.
    GiveUp,
}

/// The waiters for a log by their tickets, which are in the order of arrival.
///
/// The first one checks. What it learns is kept here, because another waiter can become the first one.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiters: BTreeMap<u64, Arc<Waiter>>,
    /// How many places all waiters take.
    places: u64,
    /// What each that takes a place costs, if all that have waited here cost the same.
    cost: Option<u32>,
    /// When the first waiter checks. At once if there is no instant.
    next_check: Option<Instant>,
    /// The last denial of the first waiter, about this log alone, and when it arrived. The waiters behind it
    /// may have other logs besides this one.
    denial: Option<(Denied, Instant)>,
}

impl Queue {
    /// Returns whether nobody waits here.
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Returns whether those that wait here take no place: one that only looks at its logs takes none.
    pub(super) fn takes_nothing(&self) -> bool {
        self.places == 0
    }

    /// Returns whether a caller with an earlier ticket waits.
    pub(super) fn is_before(&self, ticket: u64) -> bool {
        self.first().is_some_and(|first| first < ticket)
    }

    /// Adds a waiter, in place of the one with its ticket if there is one.
    pub(super) fn insert(&mut self, ticket: u64, waiter: Arc<Waiter>) {
        if waiter.cost > 0 {
            let is_same = self.places == 0 || self.cost == Some(waiter.cost);
            self.cost = is_same.then_some(waiter.cost);
        }
        self.places += u64::from(waiter.cost);
        if let Some(before) = self.waiters.insert(ticket, waiter) {
            self.places -= u64::from(before.cost);
        }
    }

    /// Returns whether a caller that has not joined would wait for longer than it may.
    pub(super) fn is_too_long(&self, ticket: u64, waiter: &Waiter) -> bool {
        let is_too_long = |denial| is_too_long(denial, self.places_before(ticket), waiter);
        self.is_before(ticket) && self.denial.as_ref().is_some_and(is_too_long)
    }

    /// Returns how many places the waiters with earlier tickets take.
    fn places_before(&self, ticket: u64) -> u64 {
        match self.waiters.last_key_value() {
            // Nearly every caller joins at the end.
            Some((last, _)) if *last < ticket => self.places,
            _ => self.waiters.range(..ticket).map(|(_, it)| u64::from(it.cost)).sum(),
        }
    }

    /// Returns what the log comes to for a request behind all that wait here, if the first of them was denied, and under which
    /// policy that was. It is no strike.
    pub(super) fn behind_all(&self, cost: u32) -> Option<(&Policy, Outcome)> {
        let (denied, received) = self.denial.as_ref()?;
        let (policy, ago_us) = (&*denied.check().logs[0].policy, micros(received.elapsed()));
        let mut outcome = denied.outcome().clone();
        outcome.timestamp = outcome.timestamp.map(|it| it + Duration::from_micros(ago_us));
        let first_us = micros(denied.retry_after());
        for log in outcome.logs_mut() {
            self.raise(log, policy, cost, first_us);
            *log = log.after(ago_us);
            if !log.is_full() {
                log.wait_at_least(1);
            }
            log.set_ban(BanState::default());
        }
        Some((policy, outcome))
    }

    /// Makes the waits of a request in the log as long as they are behind all that wait here.
    pub(super) fn raise_behind_all(&self, log: &mut LogOutcome, policy: &Policy, cost: u32) {
        match self.behind_all(cost) {
            Some((same, behind)) if same.quotas() == policy.quotas() => {
                let states = log.quotas_mut().iter_mut().zip(behind.logs()[0].quotas());
                states.for_each(|(state, it)| state.wait_us = state.wait_us.max(it.wait_us));
            }
            behind => {
                let told_us = behind.map_or(0, |(_, behind)| behind.logs()[0].wait_us());
                self.raise(log, policy, cost, told_us);
                log.wait_at_least(told_us);
                // There is room, for those that wait.
                if !log.is_full() {
                    log.wait_at_least(1);
                }
            }
        }
    }

    /// Makes the waits of a request as long as they are behind all that wait here, the first of which has a wait.
    ///
    /// What a quota holds leaves within its window, however it is spread there. From then on each window has room for as
    /// many as fit into it, in their order.
    fn raise(&self, log: &mut LogOutcome, policy: &Policy, cost: u32, first_us: u64) {
        let places = self.places + u64::from(cost);
        let quotas = policy.quotas().iter().zip(log.quotas_mut());
        let full = quotas.filter(|(_, state)| {
            let free = if state.is_full() { 0 } else { state.remaining() };
            !policy.refreshes() && places > free.into()
        });
        let (quotas, states): (SmallVec<[&Quota; 2]>, SmallVec<[_; 2]>) = full.unzip();
        let longest_us = quotas.iter().map(|quota| quota.window_us()).max().unwrap_or(0);
        let wait_us = first_us.max(longest_us).saturating_add(self.taken_up_us(&quotas, cost));
        states.into_iter().for_each(|state| state.wait_us = state.wait_us.max(wait_us));
    }

    /// Returns for how long those that wait here take up all room for a request of this cost in an empty log.
    fn taken_up_us(&self, quotas: &[&Quota], cost: u32) -> u64 {
        if let ([quota], true) = (quotas, self.cost == Some(cost)) {
            // Not one by one: there may be thousands.
            let windows = self.places / u64::from((quota.limit() - quota.limit() % cost).max(1));
            return windows.saturating_mul(quota.window_us());
        }
        // When each is admitted, and how many of the oldest have left each window by then.
        let (mut admitted, mut at_us) = (Vec::<(u64, u64)>::new(), 0);
        let mut windows: SmallVec<[(usize, u64); 2]> = quotas.iter().map(|_| (0, 0)).collect();
        for next in self.waiters.values().map(|it| it.cost).chain([cost]).map(u64::from) {
            for (quota, (left, taken)) in quotas.iter().zip(&mut windows) {
                while *taken + next > quota.limit().into()
                    && let Some((before_us, cost)) = admitted.get(*left)
                {
                    at_us = at_us.max(before_us.saturating_add(quota.window_us()));
                    (*left, *taken) = (*left + 1, *taken - cost);
                }
                *taken += next;
            }
            admitted.push((at_us, next));
        }
        at_us
    }

    /// Returns what the waiter with a ticket has to do.
    pub(super) fn turn(&mut self, ticket: u64) -> Turn {
        // Its wait was ended.
        let Some(waiter) = self.waiters.get(&ticket) else { return Turn::GiveUp };
        let (now, deadline) = (Instant::now(), waiter.deadline);
        if self.first() != Some(ticket) {
            // A check of the first one that takes long may let the deadline pass.
            let is_over = deadline.is_some_and(|deadline| deadline <= now);
            return if is_over { Turn::GiveUp } else { Turn::Wait(deadline) };
        }
        // The one before may look again later than this one may wait.
        match self.next_check.map(|at| deadline.map_or(at, |it| at.min(it))) {
            Some(at) if at > now => Turn::Wait(Some(at)),
            _ => {
                // If this check is dropped, the next waiter checks at once.
                self.next_check = None;
                Turn::Check
            }
        }
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
            let stays = !is_known || !is_too_long(&denial, places, waiter);
            if stays {
                places += u64::from(waiter.cost);
            } else {
                waiter.wake.notify_one();
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

/// Returns whether a waiter behind others that take `before` places is known to wait for longer than it may.
fn is_too_long((denied, received): &(Denied, Instant), before: u64, waiter: &Waiter) -> bool {
    let Some(deadline) = waiter.deadline else { return false };
    let longest = micros(deadline.saturating_duration_since(*received));
    if waiter.policy.counts() == Counts::InFlight && longest > 0 {
        // A request in flight may be over at any time.
        return false;
    }
    // Under other quotas, such as those of a larger plan, all that is known is the wait of the first one.
    let is_same = denied.check().logs[0].policy.quotas() == waiter.policy.quotas();
    let places = if is_same { before + u64::from(waiter.cost) } else { 0 };
    // From the instant on at which the first waiter has room, every window admits `limit` places at most.
    // So the n-th place after it is `n / limit` windows later, or more.
    let windows_us = denied.usage().quotas().map(|(policy, quota, _)| {
        // A request in flight may be over at any time, and those before it may have its value.
        let window_us = if policy.refreshes() { 0 } else { quota.window_us() };
        let windows = places.div_ceil(u64::from(quota.limit().max(1))).saturating_sub(1);
        windows.saturating_mul(window_us)
    });
    micros(denied.retry_after()).saturating_add(windows_us.max().unwrap_or(0)) > longest
}

#[cfg(test)]
mod tests {
    use super::*;

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
