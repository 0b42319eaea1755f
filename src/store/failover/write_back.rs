//! How the store is told what it has missed.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use super::Failover;
use super::journal::{Change, ChangeKind, Lead, Turn};
use crate::error::StoreError;
use crate::redis::Backoff;
use crate::store::{Admission, BanStore, Check, LogId, LogSnapshot, Restored, Store, StoreFuture};
use crate::telemetry;

/// How many logs the store is told about at once in the background.
const LOGS_AT_ONCE: usize = 128;
/// How many places the admissions of one call take: what keeps Redis busy for about half a
/// millisecond.
const PLACES_AT_ONCE: usize = 512;
/// How long until the store is asked again after it has refused something.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// How long the turn of another caller is waited for. Its runtime may be one that does not run now.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

impl<S: Store> Failover<S> {
    /// Tells the store what it has missed, until nothing is left.
    pub(super) async fn work_off(self, _worker: Arc<()>) {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            let logs = {
                let mut journal = self.0.journal.lock();
                let logs = journal.next(LOGS_AT_ONCE);
                if logs.is_empty() {
                    return journal.end();
                }
                logs
            };
            let mut under_way = JoinSet::new();
            for log in logs {
                let this = self.clone();
                under_way.spawn(async move { this.take_turn(&log).await });
            }
            let mut all_done = true;
            while let Some(done) = under_way.join_next().await {
                all_done &= matches!(done, Ok(Ok(())));
            }
            if all_done {
                backoff.reset();
            } else {
                backoff.pause().await;
            }
        }
    }

    /// Tells whether no check is to wait until the store is told of some logs: their changes take more
    /// than a call, or the store has just failed to take them.
    pub(super) fn is_not_worth_waiting(&self, logs: &[LogId]) -> bool {
        let (now, connections) = (Instant::now(), self.0.outage.connections());
        let mut journal = self.0.journal.lock();
        journal.places(logs) > PLACES_AT_ONCE || journal.is_stalled(logs, now, connections)
    }

    /// Tells whether one of some local logs takes more than a few client.
    pub(super) fn is_long(&self, logs: &[LogId]) -> bool {
        logs.iter().any(|log| self.0.local.log_len(log) > 4 * PLACES_AT_ONCE)
    }

    /// Tells the store what was decided on some logs without it until now.
    ///
    /// What is noted meanwhile is for others to tell: there may be more of it without end.
    pub(super) async fn tell_changes(&self, logs: &[LogId]) -> Result<(), StoreError> {
        if !self.has_changes(logs) {
            return Ok(());
        }
        let last = self.0.journal.lock().last_number();
        for log in logs {
            while self.0.journal.lock().has_until(log, last) {
                self.take_turn(log).await?;
            }
        }
        Ok(())
    }

    /// Tells the store all that is to be told about some logs until now.
    pub(super) async fn tell_everything(&self, logs: &[LogId]) -> Result<(), StoreError> {
        let last = self.0.journal.lock().last_number();
        let is_left = |log: &LogId| {
            let journal = self.0.journal.lock();
            journal.is_surveyed(log) || journal.has_until(log, last)
        };
        for log in logs {
            while is_left(log) {
                self.take_turn(log).await?;
            }
        }
        Ok(())
    }

    /// Tells the store about a log, or waits for the caller that does.
    ///
    /// If the leader's task is dropped, by a runtime that ends, the others find its end of the
    /// channel closed, and one of them takes the turn. What it had sent may still run: all of it can
    /// be done twice.
    async fn take_turn(&self, log: &LogId) -> Result<(), StoreError> {
        let turn = self.0.journal.lock().turn(log, PLACES_AT_ONCE, Instant::now());
        match turn {
            Turn::Nothing => Ok(()),
            Turn::Wait(mut outcome) => {
                match timeout(LONGEST_WAIT, outcome.wait_for(Option::is_some)).await {
                    Ok(Ok(outcome)) => outcome.clone().unwrap_or(Ok(())),
                    Ok(Err(_)) => Ok(()),
                    Err(_) => Err(StoreError::Unavailable),
                }
            }
            Turn::Lead(lead) => {
                // In a task of its own: others wait for it, also if this future is not polled again.
                let this = self.clone();
                let Ok(runtime) = Handle::try_current() else { return this.lead(lead).await };
                let led = runtime.spawn(async move { this.lead(lead).await });
                led.await.unwrap_or(Err(StoreError::Unavailable))
            }
        }
    }

    /// Tells the store about a log, and notes how that has ended.
    async fn lead(self, lead: Lead) -> Result<(), StoreError> {
        let (outcome, surveyed_until_us) = match self.tell(&lead).await {
            Ok(surveyed_until_us) => (Ok(()), surveyed_until_us),
            // No other log is told so: the rest is not held up.
            Err(error) if error.concerns_one_window() => {
                telemetry::write_back_lost(&error);
                (Ok(()), None)
            }
            Err(error) => (Err(error), None),
        };
        self.0.journal.lock().finish(&lead, &outcome, surveyed_until_us);
        outcome
    }

    /// Tells the store what a leader has to tell, and returns from where a survey goes on.
    async fn tell(&self, lead: &Lead) -> Result<Option<u64>, StoreError> {
        let mut surveyed_until_us = None;
        if let Some(after_us) = lead.survey {
            // Before the changes: a request that was cancelled meanwhile is among those.
            let known;
            (known, surveyed_until_us) =
                self.0.local.snapshot_after(&lead.log, after_us, PLACES_AT_ONCE);
            if !known.is_empty() {
                self.restore(&lead.log, &known).await?;
            }
        }
        let cancelled = self.cancel_all(lead).await;
        let now = Instant::now();
        let restores = lead.changes.iter().filter(|change| change.kind == ChangeKind::Restore);
        let admission =
            |it: &Change| Admission::new(it.id, it.cost, now.saturating_duration_since(it.at));
        let known = LogSnapshot::new(restores.map(admission).collect());
        if !known.is_empty() {
            self.restore(&lead.log, &known).await?;
            telemetry::written_back(known.admissions.len() as u64);
        }
        cancelled.map(|()| surveyed_until_us)
    }

    /// Tells the store what is known of a log, and forgets here what other processes have undone.
    async fn restore(&self, log: &LogId, known: &LogSnapshot) -> Result<(), StoreError> {
        let sent = Instant::now();
        let Restored { reset, lifted, .. } = self.0.store.restore(log, known).await?;
        if let Some(reset_at) = reset.and_then(|reset| Instant::now().checked_sub(reset)) {
            self.0.local.forget_older(log, reset_at.elapsed());
            self.cancel_before(log, known, sent, reset_at).await?;
        }
        if lifted {
            let _ = super::now(self.0.local.lift(log));
        }
        Ok(())
    }

    /// Cancels what was decided here before a reset, and was recorded all the same.
    ///
    /// The store knows the age of an admission as it was when the call was sent, and takes it for
    /// younger by the time that the call was under way. So it may record an admission from just
    /// before the reset. If the order can't be told, the reset has the last word.
    async fn cancel_before(
        &self,
        log: &LogId,
        known: &LogSnapshot,
        sent: Instant,
        reset_at: Instant,
    ) -> Result<(), StoreError> {
        let under_way = sent.elapsed();
        for admission in known.admissions.iter().filter(|admission| !admission.confirmed) {
            let Some(at) = sent.checked_sub(admission.age) else { continue };
            if at <= reset_at && at + under_way >= reset_at {
                self.0.store.cancel(&cancellation(log, admission.id, admission.cost)).await?;
            }
        }
        Ok(())
    }

    /// Cancels requests in the store, all at once.
    async fn cancel_all(&self, lead: &Lead) -> Result<(), StoreError> {
        let cancelled = lead.changes.iter().filter(|change| change.kind == ChangeKind::Cancel);
        let mut answers: Vec<StoreFuture<bool>> = cancelled
            .map(|change| self.0.store.cancel(&cancellation(&lead.log, change.id, change.cost)))
            .collect();
        let count = answers.len() as u64;
        let mut failed = None;
        poll_fn(|cx| {
            answers.retain_mut(|answer| match std::pin::Pin::new(answer).poll(cx) {
                Poll::Pending => true,
                Poll::Ready(Ok(_)) => false,
                Poll::Ready(Err(error)) => {
                    failed = Some(error);
                    false
                }
            });
            if answers.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        match failed {
            Some(error) => Err(error),
            None => {
                telemetry::written_back(count);
                Ok(())
            }
        }
    }
}

/// Names a request to cancel it in one log.
fn cancellation(log: &LogId, id: Uuid, cost: u32) -> Arc<Check> {
    let mut check = Check::new([log.clone()]);
    (check.id, check.cost) = (id, cost);
    Arc::new(check)
}
