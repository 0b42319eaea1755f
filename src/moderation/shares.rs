//! [`Shares`]: how many messages of a sender may be under way.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ahash::RandomState;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::key::Key;

/// Of each sender, as many messages as its share are under way. Further ones wait.
pub(super) struct Shares {
    share: usize,
    senders: Mutex<HashMap<Key, Sender, RandomState>>,
}

struct Sender {
    /// How many messages are under way or wait.
    messages: usize,
    room: Arc<Semaphore>,
}

/// A message that is under way until this is dropped.
pub(super) struct UnderWay {
    shares: Arc<Shares>,
    sender: Key,
    permit: Option<OwnedSemaphorePermit>,
}

impl Shares {
    pub(super) fn new(share: usize) -> Arc<Self> {
        Arc::new(Self { share, senders: Mutex::default() })
    }

    /// Waits until there is room in the share of a sender, in the order of the calls.
    pub(super) async fn wait(self: &Arc<Self>, sender: &Key) -> UnderWay {
        let (mut entered, room) = self.enter(sender);
        // The semaphore is never closed.
        entered.permit = room.acquire_owned().await.ok();
        entered
    }

    fn enter(self: &Arc<Self>, sender: &Key) -> (UnderWay, Arc<Semaphore>) {
        let mut senders = self.lock();
        let new = || Sender { messages: 0, room: Arc::new(Semaphore::new(self.share)) };
        let found = senders.entry(sender.clone()).or_insert_with(new);
        found.messages += 1;
        let room = found.room.clone();
        (UnderWay { shares: self.clone(), sender: sender.clone(), permit: None }, room)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Sender, RandomState>> {
        self.senders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        // Before the sender may be removed with its semaphore.
        self.permit = None;
        let mut senders = self.shares.lock();
        if let Some(sender) = senders.get_mut(&self.sender) {
            sender.messages -= 1;
            if sender.messages == 0 {
                senders.remove(&self.sender);
            }
        }
    }
}
