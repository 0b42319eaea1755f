//! [`Alerts`]: delivers events to a hook on a thread of its own.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot};

use super::reading::StormEvent;
use crate::hook::Hook;
use crate::telemetry;

/// How many events may wait for the hook: as many as storms that start at once. An event takes about
/// 200 bytes, and none until it waits.
const CAPACITY: usize = 100_000;

/// A bounded queue of events for a hook, with a thread that starts at the first event.
///
/// A thread and not a task, because a hook that blocks would delay the runtime and its shutdown.
pub(super) struct Alerts {
    hook: Hook<StormEvent>,
    jobs: OnceLock<Option<mpsc::Sender<Job>>>,
    shed: AtomicU64,
}

enum Job {
    Deliver(StormEvent),
    Flush(oneshot::Sender<()>),
}

impl Alerts {
    pub(super) fn new(hook: impl Fn(&StormEvent) + Send + Sync + 'static) -> Self {
        let hook = Hook::new(hook, telemetry::storm_hook_panicked);
        Self { hook, jobs: OnceLock::new(), shed: AtomicU64::new(0) }
    }

    /// Queues an event for the hook, or drops and counts it if the queue is full. Never waits.
    pub(super) fn send(&self, event: &StormEvent) {
        let jobs = self.jobs.get_or_init(|| start(self.hook.clone()).ok());
        let is_queued =
            jobs.as_ref().is_some_and(|jobs| jobs.try_send(Job::Deliver(event.clone())).is_ok());
        if !is_queued {
            telemetry::storm_event_shed(self.shed.fetch_add(1, Ordering::Relaxed) + 1);
        }
    }

    /// Waits until the hook has returned from all earlier events.
    pub(super) async fn flush(&self) {
        let Some(Some(jobs)) = self.jobs.get() else { return };
        let (flushed, until_flushed) = oneshot::channel();
        if jobs.send(Job::Flush(flushed)).await.is_ok() {
            let _ = until_flushed.await;
        }
    }

    pub(super) fn shed(&self) -> u64 {
        self.shed.load(Ordering::Relaxed)
    }

    pub(super) fn panicked(&self) -> u64 {
        self.hook.panics()
    }
}

fn start(hook: Hook<StormEvent>) -> std::io::Result<mpsc::Sender<Job>> {
    let (jobs, mut queue) = mpsc::channel(CAPACITY);
    let deliver = move || {
        while let Some(job) = queue.blocking_recv() {
            match job {
                Job::Deliver(event) => hook.call(&event),
                // The caller of `flush` may be gone.
                Job::Flush(flushed) => drop(flushed.send(())),
            }
        }
    };
    std::thread::Builder::new().name("storm-alerts".to_owned()).spawn(deliver)?;
    Ok(jobs)
}
