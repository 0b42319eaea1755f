//! [`Alerts`]: tells a hook of events without anybody waiting for it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender, TrySendError};

use tokio::sync::oneshot;

use super::reading::StormEvent;
use crate::hook::Hook;
use crate::telemetry;

/// How many events may wait for the hook.
const WAITING: usize = 1024;

/// Events on their way to a hook, which has a thread of its own from the first event on.
///
/// Not a task: a hook that blocks would hold up the runtime, and its end.
pub(super) struct Alerts {
    hook: Hook<StormEvent>,
    jobs: OnceLock<Option<SyncSender<Job>>>,
    shed: AtomicU64,
}

enum Job {
    Tell(StormEvent),
    Reached(oneshot::Sender<()>),
}

impl Alerts {
    pub(super) fn new(hook: impl Fn(&StormEvent) + Send + Sync + 'static) -> Self {
        let hook = Hook::new(hook, telemetry::storm_hook_panicked);
        Self { hook, jobs: OnceLock::new(), shed: AtomicU64::new(0) }
    }

    /// Has the hook told of an event, unless too many wait. Never waits.
    pub(super) fn tell(&self, event: &StormEvent) {
        let jobs = self.jobs.get_or_init(|| start(self.hook.clone()).ok());
        let told =
            jobs.as_ref().is_some_and(|jobs| jobs.try_send(Job::Tell(event.clone())).is_ok());
        if !told {
            self.shed.fetch_add(1, Ordering::Relaxed);
            telemetry::storm_event_shed();
        }
    }

    /// Waits until the hook has been told of all events before.
    pub(super) async fn flush(&self) {
        let Some(Some(jobs)) = self.jobs.get() else { return };
        let (reached, until) = oneshot::channel();
        let mut job = Job::Reached(reached);
        while let Err(TrySendError::Full(full)) = jobs.try_send(job) {
            job = full;
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        let _ = until.await;
    }

    pub(super) fn shed(&self) -> u64 {
        self.shed.load(Ordering::Relaxed)
    }

    pub(super) fn panicked(&self) -> u64 {
        self.hook.panics()
    }
}

fn start(hook: Hook<StormEvent>) -> std::io::Result<SyncSender<Job>> {
    let (jobs, waiting) = mpsc::sync_channel(WAITING);
    let tell = move || {
        while let Ok(job) = waiting.recv() {
            match job {
                Job::Tell(event) => hook.call(&event),
                // Who asked may no longer care.
                Job::Reached(reached) => drop(reached.send(())),
            }
        }
    };
    std::thread::Builder::new().name("storm-alerts".to_owned()).spawn(tell)?;
    Ok(jobs)
}
