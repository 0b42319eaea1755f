//! [`Queues`]: the messages that wait to one receiver, in the order in which they came.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use example_support::lock;
use tokio::sync::Notify;

use crate::message::Message;
use crate::name::Name;

/// A queue for each receiver that messages wait for, and none for others.
#[derive(Clone, Default)]
pub(super) struct Queues(Arc<Mutex<HashMap<String, Queue>>>);

#[derive(Default)]
struct Queue {
    entries: Vec<Entry>,
    next_number: u64,
    changed: Arc<Notify>,
}

struct Entry {
    number: u64,
    institution: Name,
    /// Whether something else than the receiver holds the message up.
    is_gated: bool,
}

impl Queue {
    /// Returns the messages before a number that are in the way of a message of an institution. A message
    /// of another institution is not if that is held up, or waits behind one of its own that is.
    fn in_the_way<'a>(
        &'a self,
        institution: &'a Name,
        number: u64,
    ) -> impl Iterator<Item = &'a Entry> {
        let mut gated: Vec<&Name> = Vec::new();
        let before = self.entries.iter().take_while(move |entry| entry.number < number);
        before.filter(move |entry| {
            if entry.institution == *institution {
                return true;
            }
            if entry.is_gated {
                gated.push(&entry.institution);
            }
            !gated.contains(&&entry.institution)
        })
    }
}

impl Queues {
    /// Tells whether a message that comes now must wait for others.
    pub(super) fn hold_up(&self, message: &Message) -> bool {
        self.length(message) > 0
    }

    /// Returns how many messages are in the way of one that comes now.
    pub(super) fn length(&self, message: &Message) -> usize {
        let queues = lock(&self.0);
        let queue = queues.get(&message.to);
        queue.map_or(0, |queue| queue.in_the_way(&message.institution, u64::MAX).count())
    }

    /// Puts a message at the end of its queue.
    pub(super) fn join(&self, message: &Message) -> InQueue {
        let mut queues = lock(&self.0);
        let queue = queues.entry(message.to.clone()).or_default();
        let (number, institution) = (queue.next_number, message.institution.clone());
        queue.next_number += 1;
        queue.entries.push(Entry { number, institution: institution.clone(), is_gated: false });
        let changed = queue.changed.clone();
        InQueue { queues: self.clone(), receiver: message.to.clone(), institution, number, changed }
    }
}

/// A message in its queue, until it is dropped.
pub(super) struct InQueue {
    queues: Queues,
    receiver: String,
    institution: Name,
    number: u64,
    changed: Arc<Notify>,
}

impl InQueue {
    /// Tells whether no message is in the way.
    pub(super) fn has_turn(&self) -> bool {
        let queues = lock(&self.queues.0);
        let queue = queues.get(&self.receiver);
        queue.is_none_or(|it| it.in_the_way(&self.institution, self.number).next().is_none())
    }

    /// Waits until no message is in the way.
    pub(super) async fn reach_turn(&self) {
        loop {
            // Made before the check, so that no change between the two is missed.
            let changed = self.changed.notified();
            if self.has_turn() {
                return;
            }
            changed.await;
        }
    }

    /// Says whether something else than the receiver holds the message up.
    pub(super) fn set_gated(&self, is_gated: bool) {
        let mut queues = lock(&self.queues.0);
        let entries = queues.get_mut(&self.receiver).map(|queue| &mut queue.entries);
        for entry in entries.into_iter().flatten().filter(|entry| entry.number == self.number) {
            entry.is_gated = is_gated;
        }
        self.changed.notify_waiters();
    }
}

impl Drop for InQueue {
    fn drop(&mut self) {
        let mut queues = lock(&self.queues.0);
        if let Some(queue) = queues.get_mut(&self.receiver) {
            queue.entries.retain(|entry| entry.number != self.number);
            if queue.entries.is_empty() {
                queues.remove(&self.receiver);
            }
        }
        self.changed.notify_waiters();
    }
}
