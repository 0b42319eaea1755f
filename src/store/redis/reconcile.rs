//! How a [`RedisStore`] makes Redis agree with what this process knows, after an outage or a loss.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use super::journal::{State, WriteResult, Writer};
use super::requests::{self, ReconcileRequest};
use super::{Ban, Inner, RedisStore};
use crate::error::StoreError;
use crate::telemetry;
use crate::time::pause_after;
use crate::window::LogId;

/// How many logs the background task writes at once.
const MOST_LOGS: usize = 128;
/// How many places the requests of one call take. They keep Redis busy for about half a millisecond.
const MOST_PLACES: usize = 512;
/// How many calls a writer has under way. More than one, for Redis may be far away and the log in constant use.
const MOST_CALLS: usize = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// How long a check waits for the write of its logs.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

// # Interleavings
//
// - A check arrives while its log is being written. It waits for the writer and then goes to Redis. If
//   that takes longer than a second, or the write fails, it is decided here instead.
// - A request is cancelled or settled while its admission is being written. Its state in the journal
//   changes, so it stays there, and is written again. Test: `cancelled_request_stays_cancelled`.
// - Another process resets the log or lifts a ban during an outage. Redis leaves out what is older than
//   the reset, and a ban that was seen before it was lifted, to within the time of a call, and says so. A request counts if it is not
//   clear which was first, also because the slot of a Cluster is on its way and another node has the mark. Tests:
//   `reset_elsewhere_in_outage_stays_reset`, `outage_leaves_the_bans_that_it_should` and
//   `log_of_a_slot_that_moves_is_written_back`.
// - A reply from before a loss is read when its log is written already. The admission goes into the journal
//   by itself. Test: `late_reply_from_before_a_loss_is_written_back`.
// - This process lifts a ban that is being written or imposed. The reply brings it not back. Tests:
//   `ban_that_is_lifted_beside_its_write_stays_lifted` and `ban_that_is_lifted_beside_its_imposition_stays_lifted`.
// - A ban comes to be written while an earlier one of its key is being written. The journal counts, and the ban is written
//   again. Test: `longer_ban_is_written_after_the_write_of_a_shorter_one`.
// - Several checks of a log find the same loss. Whoever finds that it was seen finds the log in the journal.
//   Test: `no_check_overtakes_the_reconciliation`.
// - A runtime ends during a write. The tokens of its tasks are dropped, and the next check starts other
//   tasks. What is written twice counts once.
// - A future or a runtime is no longer polled, but not dropped either. A writer is a task of its own, and
//   checks wait for it for at most a second. Some seconds later it counts as gone, and so does the background
//   task. When it goes on after all, Redis may know more than it, such as that a request was cancelled, so it
//   writes nothing. Test: `writer_that_was_at_rest_brings_nothing_back`.
impl RedisStore {
    /// Writes what Redis does not know of some logs, or waits for the caller that does.
    pub(super) async fn reconcile(&self, logs: &[LogId]) -> Result<(), StoreError> {
        if self.0.journal.is_empty() {
            return Ok(());
        }
        self.ensure_task();
        let end = Instant::now() + LONGEST_WAIT;
        for log in logs {
            while let Some(mut result) = self.start_write(log) {
                match timeout_at(end, result.wait_for(Option::is_some)).await {
                    Ok(Ok(result)) => result.clone().unwrap_or(Ok(()))?,
                    // It takes too long, or the runtime of the writer has ended.
                    _ => return Err(StoreError::Unavailable),
                }
            }
        }
        Ok(())
    }

    /// Starts a write of a log in a task of its own, unless there is one. Returns where its result will be, or `None` if
    /// there is nothing to write.
    fn start_write(&self, log: &LogId) -> Option<watch::Receiver<WriteResult>> {
        let claim =
            self.0.journal.with(|state| state.claim(log, MOST_CALLS * MOST_PLACES, Instant::now()));
        let (result, writer) = claim?;
        if let Some(writer) = writer {
            tokio::spawn(self.clone().run_writer(writer));
        }
        Some(result)
    }

    /// Starts the background task if there is something to write and no task.
    pub(super) fn ensure_task(&self) {
        if !self.0.journal.is_empty()
            && let Ok(runtime) = Handle::try_current()
            && let Some(token) = self.0.journal.with(State::claim_task)
        {
            runtime.spawn(self.clone().write_all(token));
        }
    }

    /// Writes all logs until nothing is left. This is the background task.
    async fn write_all(self, token: Arc<()>) {
        let (mut failures, mut first) = (0, 0);
        let mut logs_of = BTreeMap::<_, Arc<Vec<_>>>::new();
        // Another task may have taken its place while it was at rest.
        while self.0.journal.with(|state| state.renew_task(&token)) {
            let began = Instant::now();
            // Without a connection it tries the same again: to look for all logs takes time, for all who decide here.
            if self.0.client.has_connection() || logs_of.is_empty() {
                logs_of.clear();
                for log in self.0.journal.with(State::all_logs) {
                    let logs = logs_of.entry(self.0.client.number_of(Some(&log))).or_default();
                    Arc::make_mut(logs).push(log);
                }
            }
            if logs_of.is_empty() {
                return self.0.journal.report_lost();
            }
            let took = began.elapsed();
            // A server that is gone, is slow or refuses what it is told delays no other one.
            let write = |logs: &Arc<Vec<LogId>>| self.clone().write_to_server(logs.clone(), first);
            let mut writes: JoinSet<_> = logs_of.values().map(write).collect();
            let mut has_failed = false;
            while let Some(written) = writes.join_next().await {
                // An error means that its runtime ends.
                let Ok(is_written) = written else { return };
                has_failed |= !is_written;
            }
            if has_failed {
                self.0.journal.report_lost();
                first += MOST_LOGS;
                // To look for many of them holds up those that decide here.
                let pause = pause_after(failures, FIRST_PAUSE, LONGEST_PAUSE);
                failures += 1;
                sleep(pause.max(LONGEST_PAUSE.min(9 * took))).await;
            } else {
                failures = 0;
                logs_of.clear();
            }
        }
    }

    /// Writes the logs of one server, from one of them on, and returns whether it has taken them.
    async fn write_to_server(self, logs: Arc<Vec<LogId>>, first: usize) -> bool {
        let began = Instant::now();
        // Those that it can't use delay the others: the next round begins with other ones.
        let (later, sooner) = logs.split_at(first % logs.len());
        let logs: Vec<_> = sooner.iter().chain(later).collect();
        for logs in logs.chunks(MOST_LOGS) {
            let writes: Vec<_> = logs.iter().filter_map(|log| self.start_write(log)).collect();
            let (mut written, all) = (0, writes.len());
            for mut write in writes {
                let result = write.wait_for(Option::is_some).await;
                written += usize::from(matches!(result.as_deref(), Ok(Some(Ok(())))));
            }
            if written == 0 && all > 0 {
                return false;
            }
            // What came meanwhile for other servers is in the next round.
            if began.elapsed() > LONGEST_WAIT {
                break;
            }
        }
        true
    }

    pub(super) async fn run_writer(self, writer: Writer) {
        if self.0.journal.with(|state| state.is_of(&writer)) {
            let result = self.write_to_redis(&writer).await;
            self.0.journal.with(|state| state.finish(&writer, result));
        }
    }

    /// Writes what a writer has to write.
    pub(super) async fn write_to_redis(&self, writer: &Writer) -> Result<(), StoreError> {
        let Inner { local, reconciles, denials, .. } = &*self.0;
        let (log, requests) = (&writer.log, &writer.requests);
        if !requests.is_empty() {
            let sent = Instant::now();
            let request = |it: &[_]| ReconcileRequest::new(log, it.to_vec());
            let calls: Vec<_> = requests
                .chunks(MOST_PLACES)
                .map(|some| reconciles.send(request(some), sent))
                .collect();
            let mut replies = Vec::with_capacity(calls.len());
            for call in calls {
                // All of them: what is under way must not run after the next write.
                replies.push(call.await);
            }
            // What Redis did not know makes the waits longer.
            denials.forget(std::slice::from_ref(log));
            for reply in replies {
                // From before the call: what was admitted after the reset stays, however late the reply is.
                if let Some(reset_at) = reply?.reset.and_then(|reset| sent.checked_sub(reset)) {
                    local.forget_until(log, reset_at);
                }
            }
        }
        if writer.bans > 0
            && let Some((ban, now_us)) = local.standing_ban(log)
        {
            let age = Some(Duration::from_micros(now_us.saturating_sub(ban.seen_us)));
            let length = (ban.wait_us(now_us), ban.length_us, ban.level);
            let (sent, generation) = (Instant::now(), denials.generation_of(log));
            // A repeated call would say that the ban was seen later than it was.
            let client = self.0.client.once();
            let reply = requests::impose(&client, log, length, &ban.reason, age, false).await?;
            // This process may have lifted it since. If it stands, the next check writes it again.
            if denials.generation_of(log) == generation {
                if reply.was_lifted {
                    local.lift_ban(log);
                }
                // After a lift it is another ban.
                if !reply.ban.remaining.is_zero() {
                    self.see_ban(log, &Ban { is_new: false, ..reply.ban }, sent);
                }
            }
        }
        telemetry::written_back(requests.len() as u64);
        Ok(())
    }
}
