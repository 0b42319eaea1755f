//! [`Outbox`]: messages that wait, in order, until their receivers may have them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tower_sliding_window::{Decision, Limiter, StoreError};

/// When to try again a message that the store will not take however long it waits.
const SOON: Duration = Duration::from_secs(1);

/// Asks whether a receiver may have a message now, and counts it if so.
pub(crate) async fn admit(limiter: &Limiter, receiver: &str) -> Result<(), Hold> {
    match limiter.check(receiver).await {
        Ok(Decision::Admitted(_)) => Ok(()),
        Ok(Decision::Denied(denied)) => Err(Hold { wait: denied.retry_after(), error: None }),
        Err(error) => {
            let wait = error.retry_after().unwrap_or(SOON);
            Err(Hold { wait, error: Some(error) })
        }
    }
}

/// Why a message can't be sent now, and for how long.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    /// How long until the receiver may have its next message.
    pub(crate) wait: Duration,
    /// What kept the store from deciding; nothing if it is the quota that is used up.
    pub(crate) error: Option<StoreError>,
}

/// Holds messages back until their receivers may have them.
///
/// The messages of one receiver leave in the order in which they came. A receiver who has to wait
/// holds nobody else up. Over all receivers no more than a given number wait.
///
/// It takes turns with whatever else its owner does, needs no lock and no task, and leaves the
/// sending to the owner:
///
/// ```text
/// loop {
///     select! {
///         () = outbox.due() => if let Some(message) = outbox.try_due().await { send(message) },
///         message = incoming.recv() => match outbox.offer(receiver, message).await {
///             Offer::Admitted(message) => send(message),
///             Offer::Held(hold) => {}
///             Offer::NoRoom(message) => give_up(message),
///         },
///     }
/// }
/// ```
pub(crate) struct Outbox<M> {
    limiter: Limiter,
    at_most: usize,
    waiting: usize,
    /// The receivers for whom messages wait, and no others.
    queues: HashMap<Arc<str>, Queue<M>>,
    /// When the first message of each queue is tried. Not tokio-util's `DelayQueue`, which panics
    /// at waits above two years: a window may be longer.
    due: BinaryHeap<Reverse<(Instant, Arc<str>)>>,
}

struct Queue<M> {
    messages: VecDeque<M>,
    until: Instant,
    error: Option<StoreError>,
}

/// What becomes of a message.
#[derive(Debug)]
pub(crate) enum Offer<M> {
    /// It has been counted and is to be sent now.
    Admitted(M),
    /// It waits.
    Held(Hold),
    /// It can't be sent now, and as many wait already as may. It is given back.
    NoRoom(M),
}

impl<M> Outbox<M> {
    /// Creates an outbox in which at most so many messages wait, whoever they are for.
    pub(crate) fn new(limiter: Limiter, at_most: usize) -> Self {
        let (queues, due) = (HashMap::new(), BinaryHeap::new());
        Self { limiter, at_most, waiting: 0, queues, due }
    }

    /// Returns how many messages wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Takes a message, to be sent now or held.
    ///
    /// The wait of a message that comes behind others is that of the first of them.
    pub(crate) async fn offer(&mut self, receiver: &str, message: M) -> Offer<M> {
        if let Some(queue) = self.queues.get_mut(receiver) {
            if self.waiting >= self.at_most {
                return Offer::NoRoom(message);
            }
            queue.messages.push_back(message);
            self.waiting += 1;
            let wait = queue.until.saturating_duration_since(Instant::now());
            return Offer::Held(Hold { wait, error: queue.error.clone() });
        }
        let Err(hold) = admit(&self.limiter, receiver).await else {
            return Offer::Admitted(message);
        };
        if self.waiting >= self.at_most {
            return Offer::NoRoom(message);
        }
        let (receiver, until) = (Arc::<str>::from(receiver), Instant::now() + hold.wait);
        let queue = Queue { messages: [message].into(), until, error: hold.error.clone() };
        self.queues.insert(receiver.clone(), queue);
        self.due.push(Reverse((until, receiver)));
        self.waiting += 1;
        Offer::Held(hold)
    }

    /// Waits until a message is worth trying; for ever if none waits. May be dropped at any time.
    pub(crate) async fn due(&self) {
        match self.due.peek() {
            Some(Reverse((until, _))) => sleep_until(*until).await,
            None => std::future::pending().await,
        }
    }

    /// Tries the message that has been due for longest, and returns it if it is to be sent now.
    ///
    /// Not to be dropped before it is over: a message might be counted and not be returned.
    pub(crate) async fn try_due(&mut self) -> Option<M> {
        let Reverse((until, receiver)) = self.due.peek()?;
        if *until > Instant::now() {
            return None;
        }
        let answer = admit(&self.limiter, receiver).await;
        let Reverse((_, receiver)) = self.due.pop()?;
        let queue = self.queues.get_mut(&receiver)?;
        let message = match answer {
            Ok(()) => {
                (queue.until, queue.error) = (Instant::now(), None);
                queue.messages.pop_front()
            }
            // Others who share the windows took the place, or the store has failed.
            Err(hold) => {
                (queue.until, queue.error) = (Instant::now() + hold.wait, hold.error);
                None
            }
        };
        self.waiting -= usize::from(message.is_some());
        if queue.messages.is_empty() {
            self.queues.remove(&receiver);
        } else {
            self.due.push(Reverse((queue.until, receiver)));
        }
        message
    }

    /// Gives up: takes all messages that wait, those of each receiver in order.
    pub(crate) fn take_all(&mut self) -> Vec<M> {
        self.waiting = 0;
        self.due.clear();
        self.queues.drain().flat_map(|(_, queue)| queue.messages).collect()
    }
}
