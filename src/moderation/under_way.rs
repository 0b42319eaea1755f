//! [`UnderWay`]: how many messages of a sender are checked at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ahash::RandomState;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::key::Key;

/// How many messages of a sender are checked at a time.
const AT_A_TIME: usize = 4;

/// The senders of the messages that are being checked or wait for it.
#[derive(Default)]
pub(super) struct UnderWay(Mutex<HashMap<Key, Sender, RandomState>>);

struct Sender {
    /// How many messages are checked or wait.
    messages: usize,
    turns: Arc<Semaphore>,
}

/// A message that is under way until this is dropped.
pub(super) struct Turn<'a> {
    under_way: &'a UnderWay,
    sender: &'a Key,
    permit: Option<OwnedSemaphorePermit>,
}

impl UnderWay {
    /// Waits until few enough messages of a sender are under way, in the order of the calls.
    pub(super) async fn turn<'a>(&'a self, sender: &'a Key) -> Turn<'a> {
        let turns = {
            let mut senders = self.lock();
            let new = || Sender { messages: 0, turns: Arc::new(Semaphore::new(AT_A_TIME)) };
            let entry = senders.entry(sender.clone()).or_insert_with(new);
            entry.messages += 1;
            entry.turns.clone()
        };
        let mut turn = Turn { under_way: self, sender, permit: None };
        // The semaphore is never closed.
        turn.permit = turns.acquire_owned().await.ok();
        turn
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Sender, RandomState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.permit = None;
        let mut senders = self.under_way.lock();
        if let Some(sender) = senders.get_mut(self.sender) {
            sender.messages -= 1;
            if sender.messages == 0 {
                senders.remove(self.sender);
            }
        }
    }
}
