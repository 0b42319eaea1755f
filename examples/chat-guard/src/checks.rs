//! [`Checks`]: messages are checked after their senders have an answer, and delivered after that.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tower_sliding_window::moderation::{Message, SpeechMonitor};

use crate::board::{Board, Place, Post};
use crate::history::History;
use crate::names::Name;
use example_support::lock;
use example_support::logs::Throttle;

/// How many bytes of messages may wait for their check.
const MOST_BYTES: u32 = 64 * 1024 * 1024;
/// How many of them may be of one sender: more than `--quota` lets through in ten seconds. Whoever
/// could fill it could tell from it how long their checks take.
const MOST_BYTES_OF_ONE: usize = 4 * 1024 * 1024;
/// What a message costs beside its text, with the call to Redis.
const OVERHEAD: usize = 4 * 1024;
/// How long after the answer the checks of a sender begin. On a busy machine they would otherwise take
/// the processor while the answer is on its way, and longer for who is not muted.
const PAUSE: Duration = Duration::from_millis(10);
/// How long the checks that are left at the end may take.
const LAST_CHECKS: Duration = Duration::from_secs(10);

static UNCHECKED: Throttle = Throttle::new();

/// Takes messages, and checks them in the background. Clones share everything.
///
/// The sender gets an answer before the check, so that the time to it can't tell a mute. Until a message
/// is checked, only its sender sees it, as if it were delivered. The messages of one sender are checked
/// in their order, those of several at the same time. All stand in the order in which they were
/// accepted, whenever their checks end.
#[derive(Clone)]
pub(crate) struct Checks(Arc<Shared>);

struct Shared {
    monitor: SpeechMonitor,
    board: Mutex<Board>,
    room: Arc<Semaphore>,
    /// The messages of each sender that has a task.
    waiting: Mutex<HashMap<Name, VecDeque<Waiting>>>,
}

struct Waiting {
    place: Place,
    text: String,
    number: u64,
    room: OwnedSemaphorePermit,
}

impl Checks {
    pub(crate) fn new(monitor: SpeechMonitor) -> Self {
        let room = Arc::new(Semaphore::new(MOST_BYTES as usize));
        Self(Arc::new(Shared { monitor, board: Mutex::default(), room, waiting: Mutex::default() }))
    }

    /// Takes a message, or returns `false` if too many wait.
    pub(crate) fn accept(&self, place: Place, id: &str, from: Name, text: String) -> bool {
        let mut waiting = lock(&self.0.waiting);
        let bytes = text.len() + OVERHEAD;
        let queue = waiting.get(&from).into_iter().flatten();
        let held: usize = queue.map(|it| it.room.num_permits()).sum();
        let wanted = u32::try_from(bytes).unwrap_or(u32::MAX);
        let Ok(room) = self.0.room.clone().try_acquire_many_owned(wanted) else { return false };
        if held + bytes > MOST_BYTES_OF_ONE {
            return false;
        }
        // Under the lock of the queue, which gets the order of the numbers.
        let post = Post { id, from: &from, text: &text };
        let number = lock(&self.0.board).accept(place.clone(), &post);
        let message = Waiting { place, text, number, room };
        match waiting.get_mut(&from) {
            Some(queue) => queue.push_back(message),
            None => {
                waiting.insert(from.clone(), VecDeque::from([message]));
                tokio::spawn(self.clone().check_all(from));
            }
        }
        true
    }

    async fn check_all(self, from: Name) {
        sleep(PAUSE).await;
        while let Some(next) = self.next(&from) {
            let mut message = Message::from(&from).text(&next.text);
            if let Place::Private(peer) = &next.place {
                message = message.to(peer);
            }
            let decision = self.0.monitor.check(&message).await;
            let is_delivered = decision.map_or_else(
                |error| {
                    // The chat goes on while the store does not answer.
                    UNCHECKED.log(move |times| {
                        tracing::warn!(%error, times, "messages are delivered without a check");
                    });
                    true
                },
                |decision| decision.is_delivered(),
            );
            if is_delivered {
                lock(&self.0.board).deliver(next.number);
            }
            drop(next.room);
        }
    }

    /// Returns the next message of a sender. If there is none, the sender's task is to end.
    fn next(&self, from: &Name) -> Option<Waiting> {
        let mut waiting = lock(&self.0.waiting);
        let next = waiting.get_mut(from).and_then(VecDeque::pop_front);
        if next.is_none() {
            waiting.remove(from);
        }
        next
    }

    pub(crate) fn view(&self, place: &Place, viewer: &Name) -> History {
        lock(&self.0.board).view(place, viewer)
    }

    /// Returns how many messages wait or are being checked.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.0.waiting).values().map(|queue| 1 + queue.len()).sum()
    }

    /// Waits until all messages are checked, but no longer than is good for a server that is to end.
    pub(crate) async fn finish(&self) {
        if timeout(LAST_CHECKS, self.0.room.acquire_many(MOST_BYTES)).await.is_err() {
            tracing::warn!(messages = self.waiting(), "the end comes before these are checked");
        }
    }
}
