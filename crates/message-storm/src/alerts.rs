//! [`Alerts`]: delivers events to a hook on a thread of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::{mpsc, oneshot};

use crate::event::StormEvent;

/// How many events may wait for the hook: as many as storms that start at once. An event takes about
/// 200 bytes, and none until it waits.
const CAPACITY: usize = 100_000;

/// A bounded queue of events for a hook, with a thread that starts at the first event.
///
/// A thread and not a task, because a hook that blocks would delay the runtime and its shutdown.
pub(crate) struct Alerts {
    hook: Arc<dyn Fn(&StormEvent) + Send + Sync>,
    jobs: OnceLock<Option<mpsc::Sender<Job>>>,
    shed: AtomicU64,
    panics: Arc<AtomicU64>,
}

enum Job {
    Deliver(StormEvent),
    Flush(oneshot::Sender<()>),
}

impl Alerts {
    pub(crate) fn new(hook: impl Fn(&StormEvent) + Send + Sync + 'static) -> Self {
        let (shed, panics) = (AtomicU64::new(0), Arc::default());
        Self { hook: Arc::new(hook), jobs: OnceLock::new(), shed, panics }
    }

    /// Queues an event for the hook, or drops and counts it if the queue is full. Never waits.
    pub(crate) fn send(&self, event: &StormEvent) {
        let jobs = self.jobs.get_or_init(|| self.start().ok());
        let is_queued =
            jobs.as_ref().is_some_and(|jobs| jobs.try_send(Job::Deliver(event.clone())).is_ok());
        if !is_queued {
            metrics::counter!("sliding_window_storm_alerts_shed_total").increment(1);
            let times = self.shed.fetch_add(1, Ordering::Relaxed) + 1;
            // So that a flood of them is a few lines.
            if times.is_power_of_two() {
                tracing::warn!(times, "events of storms are not passed to the hook: too many wait");
            }
        }
    }

    fn start(&self) -> std::io::Result<mpsc::Sender<Job>> {
        let (jobs, mut queue) = mpsc::channel(CAPACITY);
        let (hook, panics) = (self.hook.clone(), self.panics.clone());
        let deliver = move || {
            while let Some(job) = queue.blocking_recv() {
                match job {
                    Job::Deliver(event) => {
                        // Unwind safe: only the hook can see the state that its panic left behind.
                        if catch_unwind(AssertUnwindSafe(|| hook(&event))).is_err() {
                            panics.fetch_add(1, Ordering::Relaxed);
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
        std::thread::Builder::new().name("storm-alerts".to_owned()).spawn(deliver)?;
        Ok(jobs)
    }

    /// Waits until the hook has returned from all earlier events.
    pub(crate) async fn flush(&self) {
        let Some(Some(jobs)) = self.jobs.get() else { return };
        let (flushed, until_flushed) = oneshot::channel();
        if jobs.send(Job::Flush(flushed)).await.is_ok() {
            let _ = until_flushed.await;
        }
    }

    pub(crate) fn shed(&self) -> u64 {
        self.shed.load(Ordering::Relaxed)
    }

    pub(crate) fn panicked(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }
}
