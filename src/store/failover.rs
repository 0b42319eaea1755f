//! [`Failover`]: decides locally when the store can't, and writes the decisions back afterwards.

mod accept;
mod clock;
mod journal;
mod local;
#[cfg(test)]
mod tests;
mod write_back;

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::time::Instant;

use self::clock::StoreClock;
use self::journal::{ChangeKind, Journal, SharedJournal};
use super::underlying::{CheckResult, Underlying};
use super::{LogSnapshot, MemoryStore, Restored, Store, StoreFuture};
use crate::error::StoreError;
use crate::failure::FailurePolicy;
use crate::redis::Outage;
use crate::window::{Check, Explanation, LogId, Outcome};

/// A layer in front of a store that decides in an outage of the store.
///
/// With one process no key gets more than its quota. Three rules ensure that:
///
/// - Each admission by the store is recorded in a log in this process. So the local log holds what
///   was admitted before an outage.
/// - Each local decision is kept in a journal, as a change of its logs. The first check of a log
///   after the outage writes the changes back, under the identities of the requests, and is then
///   decided by the store. So the store decides again at once, however busy the log is. A
///   background task writes back the changes of all other logs.
/// - During an outage and for one window after it, each admission by the store is compared with the
///   local log. If the local log holds more, the store has lost its data or lacks requests that
///   were under way, and the local log is written back as a whole: a resync. If the admission is
///   one too many, it is cancelled and checked again.
///
/// The store leaves out what other processes have reset or lifted meanwhile and reports it. It is
/// then dropped here too.
///
/// # Interleavings
///
/// - A check arrives while the changes of its log are written back. It waits for the writer and
///   then goes to the store. If there are many changes or the store has just failed to take them,
///   it is decided locally instead. It waits only for changes from before it arrived, so later
///   changes never delay it. Test: `check_does_not_wait_for_later_changes`.
/// - A check finds the journal empty and goes to the store. Meanwhile another one fails and is
///   decided locally. The failure is recorded before the local decision, so the admission of the
///   first is compared with the local log. If both don't fit, it is cancelled and checked again,
///   see [`Failover::resolve`]. Test, with a store that lost its data: `last_place_is_taken_once`.
/// - A cancellation overtakes the write-back of its admission. The local log drops the request
///   first, so that no later resync contains it. If anything of the log is pending or being
///   written, the cancellation enters the journal: it replaces the admission, also one that is
///   being written, and is written after it. Else it goes to the store. Tests:
///   `replaced_change_is_written_again` and `cancelled_request_stays_cancelled`.
/// - A request is settled. It takes the way of a cancellation. If its admission is pending or being
///   written, both are written, the number of places after the admission. After a cancellation that
///   is pending there is nothing to settle. Tests: `admission_being_written_is_settled` and, on Redis,
///   `settled_in_an_outage_is_written_back`.
/// - Redis runs a check after its cancellation, because the connection of the check was given up in
///   between. The request then keeps its place for one window: too few are admitted, never too
///   many.
/// - Another process resets the log or lifts a ban during the write-back. The store does not record
///   admissions from before the reset, nor a ban that was seen before it was lifted, and says so.
///   An admission that was recorded although it may precede the reset is cancelled. Tests:
///   `reset_elsewhere_in_outage_stays_reset` and `ban_lifted_elsewhere_stays_lifted`.
/// - A runtime ends during the write-back. The tokens of its tasks are dropped, and the next check
///   starts other tasks. A change that is written twice counts once. Tests:
///   `write_back_outlives_a_runtime` and, on Redis, `outage_ends_when_its_runtime_is_gone`.
/// - A future or a runtime is no longer polled, but not dropped either. The writer of a log is a
///   task of its own, and checks wait for it for at most a second before they are decided locally.
///   Tests: `unpolled_check_delays_no_other` and `unpolled_runtime_delays_no_other`.
pub(super) struct Failover<S>(Arc<Inner<S>>);

impl<S> Clone for Failover<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

struct Inner<S> {
    store: S,
    local: MemoryStore,
    journal: SharedJournal,
    outage: Outage,
    clock: StoreClock,
}

impl<S: Underlying> Failover<S> {
    /// Puts local logs in front of a store. The journal has the same capacity as `local`.
    pub(super) fn new(store: S, local: MemoryStore, outage: Outage) -> Self {
        let journal = SharedJournal::new(local.capacity());
        Self(Arc::new(Inner { store, local, journal, outage, clock: StoreClock::new() }))
    }

    fn add_change(&self, check: &Check, kind: ChangeKind) -> Result<(), StoreError> {
        self.0.journal.with(|journal| {
            journal.add(check, kind, Instant::now())?;
            self.ensure_task(journal);
            Ok(())
        })
    }

    fn add_settlement(&self, check: &Check, cost: u32) -> Result<(), StoreError> {
        match cost {
            0 => self.add_change(check, ChangeKind::Cancel),
            _ => self.add_change(&check.at_cost(cost), ChangeKind::Settle),
        }
    }

    fn request_resync(&self, logs: &[LogId], always: bool) {
        let reconnections = self.0.outage.reconnections();
        self.0.journal.with(|journal| {
            logs.iter().for_each(|log| journal.request_resync(log, reconnections, always));
            self.ensure_task(journal);
        });
    }

    /// Returns whether logs have changes to be written back. Starts the background task if its
    /// runtime has ended.
    fn has_changes(&self, logs: &[LogId]) -> bool {
        let has_changes = |journal: &mut Journal| {
            self.ensure_task(journal);
            journal.change_count(logs) > 0
        };
        !self.0.journal.is_empty() && self.0.journal.with(has_changes)
    }

    fn ensure_task(&self, journal: &mut Journal) {
        if let Ok(runtime) = Handle::try_current()
            && let Some(token) = journal.claim_task()
        {
            runtime.spawn(self.clone().write_back(token));
        }
    }
}

/// Returns the result of a call of the in-process store, which is always ready.
fn immediate<T>(future: StoreFuture<T>) -> Result<T, StoreError> {
    future.into_ready().unwrap_or_else(|_| {
        Err(StoreError::Protocol { message: "expected a result at once".to_owned() })
    })
}

fn is_local(check: &Check) -> bool {
    matches!(check.on_failure, FailurePolicy::Local { .. })
}

impl<S: Underlying> Store for Failover<S> {
    fn admit(&self, check: &Check) -> StoreFuture<Outcome> {
        if self.has_changes(&check.logs) {
            let (this, check) = (self.clone(), check.clone());
            return StoreFuture::later(async move { this.admit_after_changes(&check).await });
        }
        match self.0.store.prepare(check, Instant::now()) {
            Ok(denial) => StoreFuture::ready(Ok(denial)),
            Err(prepared) => {
                let (this, check) = (self.clone(), check.clone());
                StoreFuture::later(async move {
                    let sent = Instant::now();
                    let result = this.0.store.send(&check, &prepared, sent).await;
                    match this.accept(&check, sent, result) {
                        Ok(result) => result,
                        Err(conflict) => Box::pin(this.resolve(&check, conflict)).await,
                    }
                })
            }
        }
    }

    fn peek(&self, check: &Check) -> StoreFuture<Outcome> {
        let (this, check) = (self.clone(), check.clone());
        StoreFuture::later(async move {
            let result = match this.write_back_changes(&check.logs).await {
                Ok(()) => this.0.store.peek(&check).await,
                Err(error) => Err(error),
            };
            match result {
                Err(error) if is_local(&check) && error.is_outage() => {
                    this.peek_locally(&check, &error)
                }
                result => result,
            }
        })
    }

    fn explain(&self, check: &Check) -> StoreFuture<Vec<Explanation>> {
        let (this, check) = (self.clone(), check.clone());
        StoreFuture::later(async move {
            // The changes are not written back for this: it must not change the store.
            let explained = if is_local(&check) && this.has_changes(&check.logs) {
                Err(StoreError::Unavailable)
            } else {
                this.0.store.explain(&check).await
            };
            match explained {
                Err(error) if is_local(&check) && error.is_outage() => {
                    this.explain_locally(&check, &error)
                }
                explained => explained,
            }
        })
    }

    fn settle(&self, check: &Check, cost: u32) -> StoreFuture<bool> {
        // Locally first: no resync from now on contains the earlier number of places.
        let was_here = immediate(self.0.local.settle(check, cost));
        if self.0.journal.has_backlog(&check.logs) {
            // Written after what is being written now, which may contain the request.
            let added = self.add_settlement(check, cost);
            if is_local(check) {
                return StoreFuture::ready(added.and(was_here));
            }
            // The local log does not say whether the request was there.
            let (this, check) = (self.clone(), check.clone());
            return StoreFuture::later(async move {
                added?;
                let was_there = this.0.store.settle(&check, cost).await;
                this.write_back_changes(&check.logs).await?;
                was_there
            });
        }
        let (this, check) = (self.clone(), check.clone());
        let settled = self.0.store.settle(&check, cost);
        StoreFuture::later(async move {
            match settled.await {
                Err(error) => {
                    this.add_settlement(&check, cost)?;
                    if is_local(&check) { was_here } else { Err(error) }
                }
                result => result,
            }
        })
    }

    fn restore(&self, log: &LogId, snapshot: &LogSnapshot) -> StoreFuture<Restored> {
        let _ = immediate(self.0.local.restore(log, snapshot));
        self.0.store.restore(log, snapshot)
    }

    fn reset(&self, logs: &[LogId]) -> StoreFuture<()> {
        let _ = immediate(self.0.local.reset(logs));
        self.0.journal.with(|journal| journal.forget(logs));
        self.0.store.reset(logs)
    }
}
