//! [`SpeechQueue`]: checks messages in the background.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Semaphore, mpsc, oneshot};

use super::message::Message;
use super::monitor::SpeechMonitor;
use super::shares::{Shares, UnderWay};
use crate::telemetry;

/// How many places a sender has in a small queue.
const SMALLEST_SHARE: usize = 16;

/// A queue of messages that a [`SpeechMonitor`] checks in the background, so that senders do not wait
/// for the store.
///
/// Made by [`SpeechMonitor::spawn`]. Cloning is cheap. Clones share the queue.
///
/// ## Behavior
///
/// - Messages are checked one after another, in the order of submission.
/// - **If the queue is full, a new message is dropped**: it is neither recorded nor checked, and is
///   counted in [`SpeechQueue::shed`]. Queued messages keep their places. Dropped messages make mutes
///   later or fewer, never more.
/// - **A sender has at most a hundredth of the places**, or 16 if that is more. Further messages of the
///   sender are dropped, so that one sender does not take the places of the others.
/// - If the store fails, the message is counted in [`SpeechQueue::failed`] and not checked again.
/// - Call [`SpeechMonitor::mute_of`] to find out whether a sender is muted. The message that triggers a
///   rule, and the messages that are sent before it is checked, are delivered.
/// - After the last handle is dropped, the queued messages are checked, and then the queue ends.
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
    shares: Arc<Shares>,
    shed: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
}

enum Job {
    Check(Message, UnderWay),
    Flush(oneshot::Sender<()>),
}

/// Whether a submitted message will be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Submitted {
    /// The message will be checked.
    Queued,
    /// The queue or the share of the sender is full, and the message was dropped.
    Shed,
}

impl SpeechMonitor {
    /// Starts a task that checks messages in the background, with a queue for `capacity` messages.
    ///
    /// A queued message takes about 100 bytes and its fingerprint of at most 258 bytes.
    ///
    /// # Panics
    ///
    /// If there is no tokio runtime.
    #[track_caller]
    #[must_use = "the queue ends when its last handle is dropped"]
    pub fn spawn(&self, capacity: NonZeroUsize) -> SpeechQueue {
        let capacity = capacity.get().min(Semaphore::MAX_PERMITS);
        let (jobs, queue) = mpsc::channel(capacity);
        let shares = Shares::new((capacity / 100).max(SMALLEST_SHARE));
        let (shed, failed) = (Arc::default(), Arc::default());
        tokio::spawn(check_all(self.clone(), queue, Arc::clone(&failed)));
        SpeechQueue { jobs, shares, shed, failed }
    }
}

async fn check_all(monitor: SpeechMonitor, mut queue: mpsc::Receiver<Job>, failed: Arc<AtomicU64>) {
    while let Some(job) = queue.recv().await {
        match job {
            Job::Check(message, under_way) => {
                drop(under_way);
                if monitor.check(&message).await.is_err() {
                    failed.fetch_add(1, Ordering::Relaxed);
                }
            }
            // The caller of `flush` may be gone.
            Job::Flush(flushed) => drop(flushed.send(())),
        }
    }
}

impl SpeechQueue {
    /// Queues a message, or drops it if the queue or the share of its sender is full. Never waits.
    pub fn submit(&self, message: Message) -> Submitted {
        let under_way = self.shares.try_take(&message.sender);
        if let Some(under_way) = under_way
            && self.jobs.try_send(Job::Check(message, under_way)).is_ok()
        {
            return Submitted::Queued;
        }
        self.shed.fetch_add(1, Ordering::Relaxed);
        telemetry::message_shed();
        Submitted::Shed
    }

    /// Waits until all earlier messages have been checked.
    pub async fn flush(&self) {
        let (flushed, until_flushed) = oneshot::channel();
        // The channel is closed only if the runtime has ended. Then there is nothing to wait for.
        if self.jobs.send(Job::Flush(flushed)).await.is_ok() {
            let _ = until_flushed.await;
        }
    }

    /// Returns how many messages were dropped because the queue or the share of a sender was full.
    #[must_use]
    pub fn shed(&self) -> u64 {
        self.shed.load(Ordering::Relaxed)
    }

    /// Returns how many messages could not be checked because the store failed.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryStore;

    #[tokio::test]
    async fn any_capacity_is_taken() {
        let queue = SpeechMonitor::new([], MemoryStore::new()).spawn(NonZeroUsize::MAX);
        assert_eq!(queue.submit(Message::from("alice")), Submitted::Queued);
        queue.flush().await;
    }
}
