//! [`Alerts`]: tells a hook of events without anybody waiting for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::sync::{Arc, OnceLock};

use tokio::sync::oneshot;

use super::reading::StormEvent;
use crate::report;

/// How many events may wait for the hook.
const WAITING: usize = 1024;

pub(super) type Hook = dyn Fn(&StormEvent) + Send + Sync;

/// Events on their way to a hook, which has a thread of its own from the first event on.
///
/// Not a task: a hook that blocks would hold up the runtime, and its end.
pub(super) struct Alerts {
    hook: Arc<Hook>,
    jobs: OnceLock<Option<SyncSender<Job>>>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    shed: AtomicU64,
    panicked: AtomicU64,
}

enum Job {
    Tell(StormEvent),
    Reached(oneshot::Sender<()>),
}

impl Alerts {
    pub(super) fn new(hook: Arc<Hook>) -> Self {
        Self { hook, jobs: OnceLock::new(), counts: Arc::default() }
    }

    /// Has the hook told of an event, unless too many wait. Never waits.
    pub(super) fn tell(&self, event: &StormEvent) {
        let jobs = self.jobs.get_or_init(|| start(self.hook.clone(), self.counts.clone()).ok());
        let told =
            jobs.as_ref().is_some_and(|jobs| jobs.try_send(Job::Tell(event.clone())).is_ok());
        if !told {
            self.counts.shed.fetch_add(1, Ordering::Relaxed);
            report::storm_alert_shed();
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
        self.counts.shed.load(Ordering::Relaxed)
    }

    pub(super) fn panicked(&self) -> u64 {
        self.counts.panicked.load(Ordering::Relaxed)
    }
}

fn start(hook: Arc<Hook>, counts: Arc<Counts>) -> std::io::Result<SyncSender<Job>> {
    let (jobs, waiting) = mpsc::sync_channel(WAITING);
    let tell = move || {
        while let Ok(job) = waiting.recv() {
            match job {
                Job::Tell(event) => {
                    if catch_unwind(AssertUnwindSafe(|| hook(&event))).is_err() {
                        counts.panicked.fetch_add(1, Ordering::Relaxed);
                        report::storm_hook_panicked();
                    }
                }
                // Who asked may no longer care.
                Job::Reached(reached) => drop(reached.send(())),
            }
        }
    };
    std::thread::Builder::new().name("storm-alerts".to_owned()).spawn(tell)?;
    Ok(jobs)
}
