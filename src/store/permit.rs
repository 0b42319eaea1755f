//! [`Permit`]: the places of a request in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::{SettleHandle, Store};
use crate::failure::FailurePolicy;
use crate::policy::Counts;
use crate::window::{Check, LogId};

/// The places that a request holds under policies that count requests [in flight](crate::Policy::in_flight).
///
/// [`Limiter::acquire`](crate::Limiter::acquire) and [`Limiter::hold`](crate::Limiter::hold) return it. Dropping it gives
/// the places back, and [`release`](Self::release) waits for that. While it lives, a task renews their leases, three
/// times within the shortest. If the store fails for a whole lease, the places are free for others until it answers
/// again, and the holder is not told.
///
/// Store it in a variable that lives as long as the work: `let _ = ...` drops it at once, and `let _permit = ...` at
/// the end of the block. It is made in a tokio runtime with its timer, which has to run until the permit is dropped, on any thread.
/// Without one, no lease is renewed, and a permit on Redis that is dropped leaves its places until the end of the lease.
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::{Limiter, MemoryStore, Policy, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_sliding_window::WaitError> {
/// // At most two exports of a tenant at a time. The places of a dead process are free after 30 seconds.
/// let exports = Policy::new("exports").quota(Quota::new(2, Duration::from_secs(30))).in_flight();
/// let limiter = Limiter::new(exports, MemoryStore::new());
/// let first = limiter.acquire("tenant-7", Duration::ZERO).await?;
/// let second = limiter.acquire("tenant-7", Duration::ZERO).await?;
/// assert!(limiter.acquire("tenant-7", Duration::ZERO).await.is_err());
/// drop(first);
/// assert!(limiter.acquire("tenant-7", Duration::ZERO).await.is_ok());
/// # drop(second);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the places are given back when it is dropped"]
pub struct Permit(Option<Box<Held>>);

struct Held {
    places: SettleHandle,
    stage: Arc<AtomicU8>,
    renewals: Option<JoinHandle<()>>,
}

/// The task sleeps, or has ended.
const IDLE: u8 = 0;
/// A renewal is under way.
const RENEWING: u8 = 1;
const RELEASED: u8 = 2;

// # Interleavings
//
// The places are released while a renewal is under way, which may reach the store later. Then the task gives them
// back after the renewal. Otherwise whoever drops the permit does, and the task is aborted in its sleep.
impl Permit {
    /// Holds the places of an admitted check, if it has any.
    pub(crate) fn hold(store: &Arc<dyn Store>, check: &Check) -> Option<Self> {
        let is_in_flight = |log: &LogId| log.policy.counts() == Counts::InFlight;
        let mut check = check.part(|index| is_in_flight(&check.logs[index]));
        if check.logs.is_empty() {
            return None;
        }
        // It runs, whatever the limits and the bans become, and whether the store fails.
        check.logs.iter_mut().for_each(|log| log.policy = log.policy.without_limits());
        check.on_failure = FailurePolicy::default();
        let stage = Arc::new(AtomicU8::new(IDLE));
        let renewals = Handle::try_current()
            .ok()
            .map(|runtime| runtime.spawn(renew(store.clone(), check.clone(), stage.clone())));
        let places = SettleHandle::new(store, check);
        Some(Self(Some(Box::new(Held { places, stage, renewals }))))
    }

    /// Returns a permit without a place.
    pub(crate) fn empty() -> Self {
        Self(None)
    }

    /// Gives the places back, and waits until the store has them.
    ///
    /// If the permit is dropped, this happens in the background, and a caller that asks at once may find no place.
    pub async fn release(mut self) {
        if let Some(task) = self.give_back() {
            let _ = task.await;
        }
    }

    /// Gives the places back, as [`SettleHandle::settle`] does.
    pub(crate) fn give_back(&mut self) -> Option<JoinHandle<()>> {
        let Held { places, stage, renewals } = *self.0.take()?;
        match stage.swap(RELEASED, Ordering::SeqCst) {
            IDLE => {
                renewals.iter().for_each(JoinHandle::abort);
                places.settle(0)
            }
            // The task gives them back.
            _ => renewals,
        }
    }
}

async fn renew(store: Arc<dyn Store>, check: Check, stage: Arc<AtomicU8>) {
    let quotas = check.logs.iter().flat_map(|log| log.policy.quotas());
    let lease = quotas.map(|quota| quota.window()).min().unwrap_or(Duration::MAX);
    let changes =
        |from, to| stage.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    loop {
        sleep(lease / 3).await;
        if !changes(IDLE, RENEWING) {
            return;
        }
        // Also above the limit, if others have taken the places after the end of the lease. Each log by itself: a
        // node of a Cluster that fails must not cost the request its places on the others.
        for index in 0..check.logs.len() {
            let _ = store.admit(&check.part(|it| it == index)).await;
        }
        if !changes(RENEWING, IDLE) {
            // A cancellation that fails is written later by the store.
            let _ = store.settle(&check, 0).await;
            return;
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let logs = self.places.check().logs.iter();
        f.debug_list().entries(logs.map(|log| log.policy.name())).finish()
    }
}
