//! [`until_admitted`]: waits until there is room.

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::queue::{Turn, Waiter};
use super::{WaitError, WaitQueues};
use crate::error::StoreError;
use crate::policy::Counts;
use crate::store::{PendingCheck, Store, conclude, report};
use crate::telemetry;
use crate::time::micros;
use crate::window::{Admitted, Check, Decision, Denied, LogOutcome, Outcome, QuotaState};

/// How soon a caller looks again whether a request in flight is over, which nobody can foresee.
const LOOK_AGAIN_US: u64 = 50_000;

/// How long a caller may wait, and how many callers may wait at once.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) deadline: Option<Instant>,
    pub(crate) max_waiters: usize,
}

impl Bounds {
    /// Bounds a wait, a twentieth later: each caller of a queue is admitted a little after its place is free, and
    /// those behind it later by as much.
    pub(crate) fn new(max_wait: Duration, max_waiters: usize) -> Self {
        // Without a deadline if it is too far away to be an instant.
        let deadline = Instant::now().checked_add(max_wait.saturating_add(max_wait / 20));
        Self { deadline, max_waiters }
    }
}

/// Why a wait ended without an admission.
pub(crate) enum NotAdmitted<S = Infallible> {
    Denied(Denied),
    /// With the denial of the caller's own check if it has sent one.
    TooManyWaiters(usize, Option<Denied>),
    Store(StoreError),
    /// The caller sends no further check.
    Stopped(S),
}

impl<S> NotAdmitted<S> {
    const fn kind(&self) -> &'static str {
        match self {
            Self::Denied(_) => "denied",
            Self::TooManyWaiters(..) => "too_many_waiters",
            Self::Store(_) => "error",
            Self::Stopped(_) => "stopped",
        }
    }
}

impl<S> From<StoreError> for NotAdmitted<S> {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<NotAdmitted> for WaitError {
    fn from(not_admitted: NotAdmitted) -> Self {
        match not_admitted {
            NotAdmitted::Denied(denied) => Self::Denied(denied),
            NotAdmitted::TooManyWaiters(most, _) => Self::TooManyWaiters { most },
            NotAdmitted::Store(error) => Self::Store(error),
            NotAdmitted::Stopped(never) => match never {},
        }
    }
}

/// Waits until a request is admitted, behind those that wait for room in one of its logs.
///
/// `again` makes each check after the first, or says why there is none. If the future is dropped, the request
/// is not counted.
pub(crate) async fn until_admitted<S>(
    waiting: &WaitQueues,
    store: &Arc<dyn Store>,
    check: Check,
    again: impl Fn() -> Result<Check, S>,
    bounds: Bounds,
) -> Result<Admitted, NotAdmitted<S>> {
    let (start, policy) = (Instant::now(), check.logs.first().map(|log| log.policy.clone()));
    let result = wait_in_order(waiting, store, check, again, bounds).await;
    let outcome = result.as_ref().err().map_or("admitted", NotAdmitted::kind);
    if let Some(policy) = policy {
        telemetry::waited(policy.label(), outcome, start.elapsed());
    }
    result
}

async fn wait_in_order<S>(
    waiting: &WaitQueues,
    store: &Arc<dyn Store>,
    mut check: Check,
    again: impl Fn() -> Result<Check, S>,
    Bounds { deadline, max_waiters }: Bounds,
) -> Result<Admitted, NotAdmitted<S>> {
    let ticket = waiting.ticket();
    let (mut counted, mut denied, mut place_before) = (None, None, None);
    ensure_cost_fits(&check)?;
    loop {
        let index = match (&denied, waiting.behind(&check, ticket)) {
            (Some(denied), _) => longest_full(denied),
            (None, Some(behind)) => {
                let log = &check.logs[behind];
                let waiter = Waiter::new(check.cost_in(behind), log.policy.clone(), deadline);
                // The first in the queue of a single log looks for all.
                if check.logs.len() > 1 && !waiting.is_too_long(log, ticket, &waiter) {
                    counted = counted.or_else(|| waiting.count(max_waiters));
                    // Meanwhile it has its place in the order, if it may wait, and takes none in the log.
                    place_before = counted.as_ref().map(|_| {
                        let log = check.logs[behind].clone();
                        let waiter = Waiter::new(0, log.policy.clone(), None);
                        waiting.join(log, ticket, waiter, None)
                    });
                    peek_before_waiting(waiting, store, &check, deadline).await?;
                }
                behind
            }
            (None, None) => match decide_or_cancel(store, check.clone()).await? {
                Decision::Admitted(admitted) => return Ok(admitted),
                Decision::Denied(now) => longest_full(denied.insert(worth_a_wait(now, deadline)?)),
            },
        };
        let log = check.logs[index].clone();
        let waiter = Waiter::new(check.cost_in(index), log.policy.clone(), deadline);
        if waiting.is_too_long(&log, ticket, &waiter) {
            drop(place_before);
            return give_up(waiting, store, check).await;
        }
        counted = counted.or_else(|| waiting.count(max_waiters));
        if counted.is_none() {
            return Err(NotAdmitted::TooManyWaiters(max_waiters, denied));
        }
        let known = denied.take().map(|denied| denied.part(|it| it == index));
        let mut place = waiting.join(log, ticket, waiter, known);
        // Not sooner: nobody behind it goes first meanwhile.
        drop(place_before.take());
        while denied.is_none() {
            match place.turn() {
                Turn::GiveUp => {
                    // Those that go on are no longer behind it.
                    drop(place);
                    return give_up(waiting, store, check).await;
                }
                Turn::Wait(None) => place.waiter.wake.notified().await,
                Turn::Wait(Some(at)) => {
                    let _ = timeout_at(at, place.waiter.wake.notified()).await;
                }
                Turn::Check => {
                    check = again().map_err(NotAdmitted::Stopped)?;
                    ensure_cost_fits(&check)?;
                    if waiting.behind(&check, ticket).is_some() {
                        break;
                    }
                    match decide_or_cancel(store, check.clone()).await? {
                        Decision::Admitted(admitted) => {
                            place.is_admitted = true;
                            return Ok(admitted);
                        }
                        Decision::Denied(now) => {
                            let index = longest_full(&now);
                            let now = worth_a_wait(now, None)?;
                            let is_here = check.logs[index] == place.log;
                            if is_here {
                                place.deny(now.part(|it| it == index));
                            }
                            // Its own denial, which is reported already.
                            let now = worth_a_wait(now, deadline)?;
                            denied = (!is_here).then_some(now);
                        }
                    }
                }
            }
        }
    }
}

/// Returns the index of the log that is full for longest.
fn longest_full(denied: &Denied) -> usize {
    let wait = |outcome: &LogOutcome| outcome.quotas().iter().map(QuotaState::wait).max();
    let waits = denied.usage().logs().enumerate().map(|(index, (_, it))| (wait(it), index));
    waits.max().map_or(0, |(_, index)| index)
}

/// Decides on a check that is possible. If the future is dropped, the request is cancelled.
async fn decide_or_cancel<S>(
    store: &Arc<dyn Store>,
    check: Check,
) -> Result<Decision, NotAdmitted<S>> {
    let mut pending = PendingCheck::send(store, check, true);
    let (check, outcome) = poll_fn(|cx| pending.poll(cx)).await;
    let outcome = outcome.map(|outcome| with_looks(&check, outcome));
    Ok(conclude(check, outcome, false)?)
}

/// Returns an outcome whose wait for a request in flight is the time until the next look.
fn with_looks(check: &Check, mut outcome: Outcome) -> Outcome {
    let logs = check.logs.iter().zip(outcome.logs_mut());
    for (_, log) in logs.filter(|(log, _)| log.policy.counts() == Counts::InFlight) {
        log.quotas_mut().iter_mut().for_each(|it| it.wait_us = it.wait_us.min(LOOK_AGAIN_US));
    }
    outcome
}

fn ensure_cost_fits<S>(check: &Check) -> Result<(), NotAdmitted<S>> {
    Ok(check.ensure_admissible().inspect_err(StoreError::report)?)
}

/// Looks at the logs of a request that would wait behind others for one of them. It is denied at once if a key
/// is banned, or if a log is full for longer than it may wait.
async fn peek_before_waiting<S>(
    waiting: &WaitQueues,
    store: &Arc<dyn Store>,
    check: &Check,
    deadline: Option<Instant>,
) -> Result<(), NotAdmitted<S>> {
    // If the store fails, the request's own check decides.
    if let Ok(outcome) = store.peek(check).await
        && let mut outcome = with_looks(check, outcome)
        && let Decision::Denied(denied) = Decision::new(check.clone(), outcome.clone())
        && worth_a_wait::<S>(denied, deadline).is_err()
    {
        waiting.deny_behind_all(check, &mut outcome);
        let decision = Decision::new(check.clone(), outcome);
        report(&decision, false);
        if let Decision::Denied(denied) = decision {
            return Err(NotAdmitted::Denied(denied));
        }
    }
    Ok(())
}

/// Ends a wait behind others.
async fn give_up<S>(
    waiting: &WaitQueues,
    store: &Arc<dyn Store>,
    check: Check,
) -> Result<Admitted, NotAdmitted<S>> {
    match deny_behind(waiting, store, check).await? {
        // Not counted, in an outage.
        Decision::Admitted(admitted) => Ok(admitted),
        Decision::Denied(denied) => Err(NotAdmitted::Denied(denied)),
    }
}

/// Denies and reports a request behind others that wait for its logs, without a check that would overtake them. Its other
/// logs may be full for longer, or it may have another plan than they, which only the store knows.
pub(crate) async fn deny_behind(
    waiting: &WaitQueues,
    store: &Arc<dyn Store>,
    check: Check,
) -> Result<Decision, StoreError> {
    let outcome = match waiting.known_denial(&check) {
        Some(outcome) => Ok(outcome),
        None => store.peek(&check).await.map(|mut outcome| {
            waiting.deny_behind_all(&check, &mut outcome);
            outcome
        }),
    };
    conclude(check, outcome, false)
}

/// Returns a denial after which the caller can wait, or an error.
fn worth_a_wait<S>(denied: Denied, deadline: Option<Instant>) -> Result<Denied, NotAdmitted<S>> {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    // A request in flight may be over at any time: the caller looks again until its deadline.
    let known = denied.usage().logs().filter(|(log, _)| log.policy.counts() != Counts::InFlight);
    let known_us = known.map(|(_, outcome)| outcome.wait_us()).max().unwrap_or(0);
    let is_too_long = left.is_some_and(|it| it.is_zero() || micros(it) < known_us);
    if is_too_long || denied.usage().banned_for().is_some() {
        return Err(NotAdmitted::Denied(denied));
    }
    Ok(denied)
}
