//! [`until_admitted`]: waits until there is room.

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use super::queue::{Turn, Waiter};
use super::{Logs, Refused, WaitError, Waiting};
use crate::error::StoreError;
use crate::store::{PendingCheck, Store, conclude, report};
use crate::telemetry;
use crate::window::{Admitted, Check, Decision, Denied};

/// How long a caller may wait, and how many callers may wait at once.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) deadline: Option<Instant>,
    pub(crate) max_waiters: usize,
}

/// Why a wait ended without an admission.
pub(crate) enum Ended<S = Infallible> {
    Denied(Denied),
    /// With the denial of the caller's own check if it has sent one.
    TooManyWaiters(usize, Option<Denied>),
    Store(StoreError),
    /// The caller sends no further check.
    Stopped(S),
}

impl<S> Ended<S> {
    const fn kind(&self) -> &'static str {
        match self {
            Self::Denied(_) => "denied",
            Self::TooManyWaiters(..) => "too_many_waiters",
            Self::Store(_) => "error",
            Self::Stopped(_) => "stopped",
        }
    }
}

impl<S> From<StoreError> for Ended<S> {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<Ended> for WaitError {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Denied(denied) => Self::Denied(denied),
            Ended::TooManyWaiters(most, _) => Self::TooManyWaiters { most },
            Ended::Store(error) => Self::Store(error),
            Ended::Stopped(never) => match never {},
        }
    }
}

/// Waits until a request is admitted, behind those that wait for room in the same logs.
///
/// `check` is the first check, and `again` makes each further one from the logs of the first, or says why
/// there is none. If the
/// future is dropped, the request is not counted.
pub(crate) async fn until_admitted<S>(
    waiting: &Waiting,
    store: &Arc<dyn Store>,
    check: Check,
    again: impl Fn(&Logs) -> Result<Check, S>,
    bounds: Bounds,
) -> Result<Admitted, Ended<S>> {
    let (start, policy) = (Instant::now(), check.logs[0].policy.clone());
    let result = wait_in_order(waiting, store, check, again, bounds).await;
    let outcome = result.as_ref().err().map_or("admitted", Ended::kind);
    telemetry::waited(policy.label(), outcome, start.elapsed());
    result
}

async fn wait_in_order<S>(
    waiting: &Waiting,
    store: &Arc<dyn Store>,
    check: Check,
    again: impl Fn(&Logs) -> Result<Check, S>,
    Bounds { deadline, max_waiters }: Bounds,
) -> Result<Admitted, Ended<S>> {
    let (ticket, cost) = (waiting.ticket(), check.cost);
    let (logs, first) = if waiting.has(&check.logs) {
        ensure_possible(&check)?;
        (check.logs.clone(), None)
    } else {
        match decide_or_cancel(store, check).await? {
            Decision::Admitted(admitted) => return Ok(admitted),
            Decision::Denied(denied) => {
                let denied = worth_a_wait(denied, deadline)?;
                (denied.check().logs.clone(), Some(denied))
            }
        }
    };
    let waiter = Waiter::new(cost, deadline);
    let place = match waiting.join(logs, ticket, waiter, first, max_waiters) {
        Ok(place) => place,
        Err(Refused::TooLong(denied)) => return Err(gives_up(denied)),
        Err(Refused::TooMany(denied)) => {
            return Err(Ended::TooManyWaiters(max_waiters, denied));
        }
    };
    loop {
        match place.turn() {
            Turn::GiveUp(denied) => return Err(gives_up(denied)),
            Turn::Wait(None) => place.woken().await,
            Turn::Wait(Some(at)) => {
                let _ = timeout_at(at, place.woken()).await;
            }
            Turn::Check => {
                let check = again(&place.logs).map_err(Ended::Stopped)?;
                match decide_or_cancel(store, check).await? {
                    Decision::Admitted(admitted) => {
                        place.leave_admitted();
                        return Ok(admitted);
                    }
                    Decision::Denied(denied) => place.deny(worth_a_wait(denied, None)?),
                }
            }
        }
    }
}

/// Decides on a check. If the future is dropped, the request is cancelled.
async fn decide_or_cancel<S>(store: &Arc<dyn Store>, check: Check) -> Result<Decision, Ended<S>> {
    ensure_possible(&check)?;
    let mut pending = PendingCheck::send(store, check, true);
    let (check, outcome) = poll_fn(|cx| pending.poll(cx)).await;
    Ok(conclude(check, outcome, false)?)
}

fn ensure_possible<S>(check: &Check) -> Result<(), Ended<S>> {
    Ok(check.ensure_possible().inspect_err(StoreError::report)?)
}

/// Reports the denial of a caller that has sent no check.
fn gives_up<S>(denied: Denied) -> Ended<S> {
    report(&Decision::Denied(denied.clone()), false);
    Ended::Denied(denied)
}

/// Returns a denial after which the caller can wait, or an error.
fn worth_a_wait<S>(denied: Denied, deadline: Option<Instant>) -> Result<Denied, Ended<S>> {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let is_too_long = left.is_some_and(|left| denied.retry_after() > left);
    if is_too_long || denied.usage().banned_for().is_some() {
        return Err(Ended::Denied(denied));
    }
    Ok(denied)
}
