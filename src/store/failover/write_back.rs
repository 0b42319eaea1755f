//! Writes changes back to the store.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use super::journal::{Change, ChangeKind, Claim, LogWriter, Resync};
use super::{Failover, immediate};
use crate::error::StoreError;
use crate::redis::Backoff;
use crate::store::underlying::Underlying;
use crate::store::{Admission, BanStore, Check, LogId, LogSnapshot, Restored, StoreFuture};
use crate::telemetry;

const MAX_LOGS: usize = 128;
/// How many places the admissions of one call take. They keep Redis busy for about half a
/// millisecond.
const MAX_PLACES: usize = 512;
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// How long to wait for the writer of another caller, whose runtime may not run now.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

impl<S: Underlying> Failover<S> {
    /// Writes back all logs until nothing is left. This is the background task.
    pub(super) async fn write_back(self, _token: Arc<()>) {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            let logs = self.0.journal.with(|journal| {
                let logs = journal.next_logs(MAX_LOGS);
                if logs.is_empty() {
                    // Under the same lock: a change that is added from now on starts another task.
                    journal.release_task();
                }
                logs
            });
            if logs.is_empty() {
                return;
            }
            let mut writes = JoinSet::new();
            for log in logs {
                let this = self.clone();
                writes.spawn(async move { this.write_back_log(&log).await });
            }
            let mut all_done = true;
            while let Some(done) = writes.join_next().await {
                all_done &= matches!(done, Ok(Ok(())));
            }
            if all_done {
                backoff.reset();
            } else {
                backoff.pause().await;
            }
        }
    }

    /// Returns whether checks must not wait for the write-back of some logs: their changes take
    /// more than one call, or the store has just failed to take them.
    pub(super) fn is_write_back_slow(&self, logs: &[LogId]) -> bool {
        let (now, connections) = (Instant::now(), self.0.outage.new_connections());
        self.0.journal.with(|journal| {
            journal.places(logs) > MAX_PLACES || journal.is_failing(logs, now, connections)
        })
    }

    /// Returns whether a resync of one of some logs takes more than four calls.
    pub(super) fn is_log_long(&self, logs: &[LogId]) -> bool {
        logs.iter().any(|log| self.0.local.log_len(log) > 4 * MAX_PLACES)
    }

    /// Writes back the changes of some logs up to now.
    ///
    /// Later changes are left to later callers: there may be no end of them.
    pub(super) async fn write_back_changes(&self, logs: &[LogId]) -> Result<(), StoreError> {
        if !self.has_changes(logs) {
            return Ok(());
        }
        let last = self.0.journal.with(|journal| journal.last_number());
        for log in logs {
            while self.0.journal.with(|journal| journal.has_changes_until(log, last)) {
                self.write_back_log(log).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn write_back_and_resync(&self, logs: &[LogId]) -> Result<(), StoreError> {
        let last = self.0.journal.with(|journal| journal.last_number());
        for log in logs {
            while self.0.journal.with(|it| it.needs_resync(log) || it.has_changes_until(log, last))
            {
                self.write_back_log(log).await?;
            }
        }
        Ok(())
    }

    /// Writes back a part of a log, or waits for the caller that does.
    ///
    /// If the runtime of that caller ends, its channel closes, and one of the others becomes the
    /// writer. A call that was sent may still run, so every call can be repeated without harm.
    async fn write_back_log(&self, log: &LogId) -> Result<(), StoreError> {
        match self.0.journal.with(|journal| journal.claim(log, MAX_PLACES, Instant::now())) {
            Claim::Nothing => Ok(()),
            Claim::Wait(mut result) => {
                match timeout(LONGEST_WAIT, result.wait_for(Option::is_some)).await {
                    Ok(Ok(result)) => result.clone().unwrap_or(Ok(())),
                    Ok(Err(_)) => Ok(()),
                    Err(_) => Err(StoreError::Unavailable),
                }
            }
            Claim::Write(writer) => {
                // A task of its own: other callers wait for it, even if this future is not polled.
                let this = self.clone();
                let Ok(runtime) = Handle::try_current() else { return this.run(writer).await };
                let task = runtime.spawn(async move { this.run(writer).await });
                task.await.unwrap_or(Err(StoreError::Unavailable))
            }
        }
    }

    async fn run(self, writer: LogWriter) -> Result<(), StoreError> {
        let (result, resynced_until_us) = match self.write(&writer).await {
            Ok(resynced_until_us) => (Ok(()), resynced_until_us),
            // Given up: this log would fail again.
            Err(error) if error.is_about_one_log() => {
                telemetry::write_back_lost(&error);
                (Ok(()), None)
            }
            Err(error) => (Err(error), None),
        };
        self.0.journal.with(|journal| journal.finish(&writer, &result, resynced_until_us));
        result
    }

    /// Writes what a writer has to write. Returns the timestamp after which a resync goes on.
    async fn write(&self, writer: &LogWriter) -> Result<Option<u64>, StoreError> {
        let mut resynced_until_us = None;
        if let Resync::After(after_us) = writer.resync {
            // Before the changes, among which is a request that was cancelled after the snapshot.
            let snapshot;
            (snapshot, resynced_until_us) =
                self.0.local.snapshot_after(&writer.log, after_us, MAX_PLACES);
            if !snapshot.is_empty() {
                self.restore_in_store(&writer.log, &snapshot).await?;
            }
        }
        let settled = self.settle_all(writer, |kind| !kind.restores()).await;
        let now = Instant::now();
        let restores = writer.changes.iter().filter(|change| change.kind.restores());
        let admission =
            |it: &Change| Admission::new(it.id, it.cost, now.saturating_duration_since(it.at));
        let snapshot = LogSnapshot::new(restores.map(admission).collect());
        if !snapshot.is_empty() {
            self.restore_in_store(&writer.log, &snapshot).await?;
        }
        // An earlier write may have restored them with another number of places.
        self.settle_all(writer, |kind| kind == ChangeKind::RestoreAndSettle).await?;
        settled?;
        telemetry::written_back(writer.changes.len() as u64);
        Ok(resynced_until_us)
    }

    /// Restores a log in the store, and drops here what other processes have reset or lifted.
    async fn restore_in_store(
        &self,
        log: &LogId,
        snapshot: &LogSnapshot,
    ) -> Result<(), StoreError> {
        let sent = Instant::now();
        let Restored { reset, lifted, .. } = self.0.store.restore(log, snapshot).await?;
        if let Some(reset_at) = reset.and_then(|reset| Instant::now().checked_sub(reset)) {
            self.0.local.forget_older(log, reset_at.elapsed());
            self.cancel_before(log, snapshot, sent, reset_at).await?;
        }
        if lifted {
            let _ = immediate(self.0.local.lift(log));
        }
        Ok(())
    }

    /// Cancels admissions that the store has recorded although they may precede a reset.
    ///
    /// An admission carries its age at the time of sending, so the store takes it for younger by
    /// the time until the call ran, and may record one from just before the reset. If the order is
    /// unclear, the reset wins.
    async fn cancel_before(
        &self,
        log: &LogId,
        snapshot: &LogSnapshot,
        sent: Instant,
        reset_at: Instant,
    ) -> Result<(), StoreError> {
        let round_trip = sent.elapsed();
        for admission in &snapshot.admissions {
            let Some(at) = sent.checked_sub(admission.age) else { continue };
            if at <= reset_at && at + round_trip >= reset_at {
                self.0.store.cancel(&check_of(log, admission.id, admission.cost)).await?;
            }
        }
        Ok(())
    }

    /// Sets the number of places of the requests whose changes are of some kinds.
    async fn settle_all(
        &self,
        writer: &LogWriter,
        has_kind: impl Fn(ChangeKind) -> bool,
    ) -> Result<(), StoreError> {
        let settle = |change: &Change| {
            let cost = if change.kind == ChangeKind::Cancel { 0 } else { change.cost };
            self.0.store.settle(&check_of(&writer.log, change.id, change.cost), cost)
        };
        let changes = writer.changes.iter().filter(|change| has_kind(change.kind));
        let mut pending: Vec<StoreFuture<bool>> = changes.map(settle).collect();
        let mut result = Ok(());
        poll_fn(|cx| {
            pending.retain_mut(|settled| match Pin::new(settled).poll(cx) {
                Poll::Pending => true,
                Poll::Ready(Ok(_)) => false,
                Poll::Ready(Err(error)) => {
                    result = Err(error);
                    false
                }
            });
            if pending.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        result
    }
}

/// Returns the check of a request in one log, with which the store finds its entries.
fn check_of(log: &LogId, id: Uuid, cost: u32) -> Check {
    let mut check = Check::new([log.clone()]);
    (check.id, check.cost) = (id, cost);
    check
}
