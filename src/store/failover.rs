//! [`Failover`]: logs in this process for when the store can't answer, and what the store has to
//! be told afterwards.

mod journal;
mod settle;
#[cfg(test)]
mod tests;
mod write_back;

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::time::Instant;

use self::journal::{ChangeKind, SharedJournal};
use super::{LogSnapshot, MemoryStore, Restored, Store, StoreFuture};
use crate::error::StoreError;
use crate::failure::FailurePolicy;
use crate::redis::Outage;
use crate::window::{Check, LogId, Outcome};

/// A store that goes on deciding while another one, which it stands in front of, does not answer.
///
/// With one process no key gets more than its quota. That follows from three rules:
///
/// - What the store admits is recorded in a log in this process, so that the local log knows what
///   was admitted before an outage.
/// - What is decided here in an outage is noted, log by log. The first check of a log after the
///   outage tells the store what it lacks, under the requests' own identities, and is then decided
///   by the store: so the store decides again at once, however busy the log is. Logs that are not
///   asked about are told of in the background.
/// - While an outage lasts and for one window afterwards, an admission by the store is compared with
///   the local log. If that holds more than the store, which has lost its memory or did not know of
///   requests that were under way, the store is told everything that is known here. If the admission
///   is one too many, it is taken back and the store is asked again.
///
/// The store leaves out what other processes have reset or lifted meanwhile, and says so; then it
/// is forgotten here too.
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
}

type Decided = Result<Outcome, StoreError>;

impl<S: Store> Failover<S> {
    /// Puts local logs, and as many unwritten changes as there may be of them, in front of a store.
    pub(super) fn new(store: S, local: MemoryStore, outage: Outage) -> Self {
        let journal = SharedJournal::new(local.capacity());
        Self(Arc::new(Inner { store, local, journal, outage }))
    }

    /// Notes what the store has to be told about a request.
    fn note(&self, check: &Check, kind: ChangeKind) -> Result<(), StoreError> {
        let mut journal = self.0.journal.lock();
        journal.note(check, kind, Instant::now())?;
        self.ensure_worker(&mut journal);
        Ok(())
    }

    /// Has the store told all that is known here about some logs.
    fn survey(&self, logs: &[LogId], always: bool) {
        let reconnections = self.0.outage.reconnections();
        let mut journal = self.0.journal.lock();
        logs.iter().for_each(|log| journal.survey(log, reconnections, always));
        self.ensure_worker(&mut journal);
    }

    /// Tells whether requests of these logs were decided on without the store, and sees to it that the
    /// store is told of them and of all others: the runtime of the task that did so may have ended.
    fn has_changes(&self, logs: &[LogId]) -> bool {
        if self.0.journal.is_empty() {
            return false;
        }
        let mut journal = self.0.journal.lock();
        self.ensure_worker(&mut journal);
        journal.changes(logs) > 0
    }

    fn ensure_worker(&self, journal: &mut journal::Journal) {
        if let Ok(runtime) = Handle::try_current()
            && let Some(worker) = journal.begin()
        {
            runtime.spawn(self.clone().work_off(worker));
        }
    }
}

/// Returns the answer of the in-process store, which never has to be waited for.
fn now<T>(answer: StoreFuture<T>) -> Result<T, StoreError> {
    answer.into_ready().unwrap_or_else(|_| {
        Err(StoreError::Protocol { message: "expected an answer at once".to_owned() })
    })
}

fn is_local(check: &Check) -> bool {
    matches!(check.on_failure, FailurePolicy::Local { .. })
}

impl<S: Store> Store for Failover<S> {
    fn admit(&self, check: &Arc<Check>) -> StoreFuture<Outcome> {
        if self.has_changes(&check.logs) {
            let (this, check) = (self.clone(), check.clone());
            return StoreFuture::later(async move { this.admit_after_changes(&check).await });
        }
        match self.0.store.admit(check).into_ready() {
            Ok(answer) => match self.settle(check, None, answer) {
                Ok(decided) => StoreFuture::ready(decided),
                Err(doubt) => {
                    let (this, check) = (self.clone(), check.clone());
                    StoreFuture::later(async move { this.resolve(&check, doubt).await })
                }
            },
            Err(answer) => {
                // Nothing is sent before the answer is polled for.
                let sent = Instant::now();
                let (this, check) = (self.clone(), check.clone());
                StoreFuture::later(async move { this.conclude(&check, sent, answer.await).await })
            }
        }
    }

    fn peek(&self, check: &Arc<Check>) -> StoreFuture<Outcome> {
        let (this, check) = (self.clone(), check.clone());
        StoreFuture::later(async move {
            let told = this.tell_changes(&check.logs).await;
            let answer = match told {
                Ok(()) => this.0.store.peek(&check).await,
                Err(error) => Err(error),
            };
            match answer {
                Err(error) if is_local(&check) && !error.is_impossible() => {
                    this.peek_here(&check, &error)
                }
                answer => answer,
            }
        })
    }

    fn cancel(&self, check: &Arc<Check>) -> StoreFuture<bool> {
        // Here first: what is told about a log from now on does not hold the request.
        let was_here = now(self.0.local.cancel(check));
        if self.0.journal.concerns(&check.logs) {
            // After what is being told about these logs, which may hold the request.
            let noted = self.note(check, ChangeKind::Cancel);
            return match is_local(check) {
                true => StoreFuture::ready(noted.and(was_here)),
                false => self.cancel_after_changes(check, noted),
            };
        }
        let (this, check) = (self.clone(), check.clone());
        let answer = self.0.store.cancel(&check);
        StoreFuture::later(async move {
            match answer.await {
                Err(error) => {
                    this.note(&check, ChangeKind::Cancel)?;
                    if is_local(&check) { was_here } else { Err(error) }
                }
                answer => answer,
            }
        })
    }

    fn restore(&self, log: &LogId, known: &LogSnapshot) -> StoreFuture<Restored> {
        let _ = now(self.0.local.restore(log, known));
        self.0.store.restore(log, known)
    }

    fn reset(&self, logs: &[LogId]) -> StoreFuture<()> {
        let _ = now(self.0.local.reset(logs));
        self.0.journal.lock().forget(logs);
        self.0.store.reset(logs)
    }
}

impl<S: Store> Failover<S> {
    /// Cancels a request whose local log does not say whether it was there.
    fn cancel_after_changes(
        &self,
        check: &Arc<Check>,
        noted: Result<(), StoreError>,
    ) -> StoreFuture<bool> {
        let (this, check) = (self.clone(), check.clone());
        StoreFuture::later(async move {
            noted?;
            let was_there = this.0.store.cancel(&check).await;
            this.tell_changes(&check.logs).await?;
            was_there
        })
    }
}
