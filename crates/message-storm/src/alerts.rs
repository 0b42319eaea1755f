//! [`Alerts`]: delivers events to a hook on a thread of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot};

use crate::event::StormEvent;

/// How many events may wait for the hook: as many as storms that start at once. An event takes about
/// 200 bytes, and none until it waits.
const CAPACITY: usize = 100_000;

/// A bounded queue of events for a hook, with a thread that calls it.
///
/// A thread and not a task, because a hook that blocks would delay the runtime and its shutdown.
pub(crate) struct Alerts {
    /// None if the system has no thread left.
    jobs: Option<mpsc::Sender<Job>>,
    pub(crate) shed: AtomicU64,
    pub(crate) panics: Arc<AtomicU64>,
}

enum Job {
    Deliver(StormEvent),
    Flush(oneshot::Sender<()>),
}

impl Alerts {
    pub(crate) fn new(hook: impl Fn(&StormEvent) + Send + 'static) -> Self {
        let (jobs, mut queue) = mpsc::channel(CAPACITY);
        let panics = Arc::new(AtomicU64::new(0));
        let counted = panics.clone();
        let deliver = move || {
            while let Some(job) = queue.blocking_recv() {
                match job {
                    // Unwind safe: only the hook can see the state that its panic left behind.
                    Job::Deliver(event) => {
                        if catch_unwind(AssertUnwindSafe(|| hook(&event))).is_err() {
                            counted.fetch_add(1, Ordering::Relaxed);
                            metrics::counter!("sliding_window_storm_alert_panics_total")
                                .increment(1);
                            tracing::error!("the hook for storms has panicked");
                        }
                    }
                    // The caller of `flush` may be gone.
                    Job::Flush(flushed) => drop(flushed.send(())),
                }
            }
        };
        let thread = std::thread::Builder::new().name("storm-alerts".to_owned()).spawn(deliver);
        Self { jobs: thread.ok().map(|_| jobs), shed: AtomicU64::new(0), panics }
    }

    /// Queues an event for the hook, or drops and counts it if the queue is full. Never waits.
    pub(crate) fn send(&self, event: &StormEvent) {
        let job = Job::Deliver(event.clone());
        if self.jobs.as_ref().is_none_or(|jobs| jobs.try_send(job).is_err()) {
            metrics::counter!("sliding_window_storm_alerts_shed_total").increment(1);
            let times = self.shed.fetch_add(1, Ordering::Relaxed) + 1;
            // So that a flood of them is a few lines.
            if times.is_power_of_two() {
                tracing::warn!(times, "events of storms are not passed to the hook: too many wait");
            }
        }
    }

    /// Waits until the hook has returned from all earlier events.
    pub(crate) async fn flush(&self) {
        let (flushed, until_flushed) = oneshot::channel();
        if let Some(jobs) = &self.jobs
            && jobs.send(Job::Flush(flushed)).await.is_ok()
        {
            let _ = until_flushed.await;
        }
    }
}
