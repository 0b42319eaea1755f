//! [`SpeechQueue`]: messages that are judged in the background.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use super::message::Message;
use super::monitor::SpeechMonitor;
use crate::telemetry;

/// Messages that wait to be judged by a [`SpeechMonitor`], so that no sender waits for the store.
///
/// Made by [`SpeechMonitor::spawn`]. A cheap handle: clones share the queue.
///
/// ## Behavior
///
/// - Messages are judged one after another, in the order in which they came.
/// - **When the queue is full, the message that comes is shed**: it is neither recorded nor judged,
///   and is counted in [`SpeechQueue::shed`]. Those that wait keep their places, so that whoever was
///   there first is judged, whatever comes after. Shedding makes mutes later or fewer, never more.
/// - A message that the store could not decide on is counted in [`SpeechQueue::failed`], and is not
///   judged again.
/// - Whether the sender is muted is for [`SpeechMonitor::mute_of`] to say: the message that completes
///   a rule, and those that pass while it waits, are delivered.
/// - When the last handle is gone, what waits is judged, and then the queue ends.
///
/// ```
/// use std::num::NonZeroUsize;
/// use tower_sliding_window::MemoryStore;
/// use tower_sliding_window::moderation::{Message, Rule, SpeechMonitor, Submitted};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_sliding_window::StoreError> {
/// let monitor = SpeechMonitor::new(Rule::recommended(), MemoryStore::new());
/// let queue = monitor.spawn(NonZeroUsize::new(10_000).expect("it is not zero"));
///
/// if monitor.mute_of("alice").await?.is_none() {
///     // deliver the message
/// }
/// assert_eq!(queue.submit(Message::from("alice").text("hello")), Submitted::Queued);
/// # queue.flush().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SpeechQueue {
    jobs: mpsc::Sender<Job>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    shed: AtomicU64,
    failed: AtomicU64,
}

enum Job {
    Judge(Message),
    Tell(oneshot::Sender<()>),
}

/// What becomes of a message that was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Submitted {
    /// It waits to be judged.
    Queued,
    /// The queue is full, and the message will not be judged.
    Shed,
}

impl SpeechMonitor {
    /// Has messages judged in the background, of which up to `capacity` wait.
    ///
    /// A message waits in about 100 bytes beside its text, which is at most 500 characters.
    ///
    /// # Panics
    ///
    /// If there is no tokio runtime.
    #[track_caller]
    #[must_use = "the queue ends when its last handle is gone"]
    pub fn spawn(&self, capacity: NonZeroUsize) -> SpeechQueue {
        let (jobs, waiting) = mpsc::channel(capacity.get());
        let counts = Arc::new(Counts::default());
        tokio::spawn(judge(self.clone(), waiting, counts.clone()));
        SpeechQueue { jobs, counts }
    }
}

async fn judge(monitor: SpeechMonitor, mut waiting: mpsc::Receiver<Job>, counts: Arc<Counts>) {
    while let Some(job) = waiting.recv().await {
        match job {
            Job::Judge(message) => {
                if monitor.check(&message).await.is_err() {
                    counts.failed.fetch_add(1, Ordering::Relaxed);
                }
            }
            // Who asked may no longer care.
            Job::Tell(judged) => drop(judged.send(())),
        }
    }
}

impl SpeechQueue {
    /// Has a message judged later, if there is room. Never waits.
    pub fn submit(&self, message: Message) -> Submitted {
        match self.jobs.try_send(Job::Judge(message)) {
            Ok(()) => Submitted::Queued,
            Err(TrySendError::Full(_) | TrySendError::Closed(_)) => {
                self.counts.shed.fetch_add(1, Ordering::Relaxed);
                telemetry::message_shed();
                Submitted::Shed
            }
        }
    }

    /// Waits until all messages that were queued before have been judged.
    pub async fn flush(&self) {
        let (tell, judged) = oneshot::channel();
        // The queue ends before its handles only with the runtime; then nothing is left to be waited
        // for.
        if self.jobs.send(Job::Tell(tell)).await.is_ok() {
            let _ = judged.await;
        }
    }

    /// Returns how many messages found the queue full.
    #[must_use]
    pub fn shed(&self) -> u64 {
        self.counts.shed.load(Ordering::Relaxed)
    }

    /// Returns how many messages the store could not decide on.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.counts.failed.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for SpeechQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpeechQueue")
            .field("capacity", &self.jobs.max_capacity())
            .field("room", &self.jobs.capacity())
            .field("shed", &self.shed())
            .field("failed", &self.failed())
            .finish_non_exhaustive()
    }
}
