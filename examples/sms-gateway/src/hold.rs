//! [`Hold`]: messages that wait for room instead of being refused.
//!
//! The messages to one receiver wait in a queue and are admitted in its order. One that its
//! institution, channel or destination holds up is passed by those of other institutions. Of these messages one at a
//! time tries again, so that a thousand messages that wait do not ask the store a thousand times for one
//! place.

mod line;
mod queue;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Args;
use example_support::flags::span;
use example_support::lock;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};

use self::line::{InLine, Lines};
use self::queue::{InQueue, Queues};
use crate::message::Message;
use crate::name::Name;

/// The longest wait: as long as most callers and proxies wait for a response.
const LONGEST: Duration = Duration::from_secs(60);
/// How long a denial is believed: a place can become free earlier than it says, by a message that was
/// not sent or by a higher threshold.
const BELIEVED: Duration = Duration::from_secs(1);

/// How long messages may wait, and how many.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct HoldFlags {
    /// Lets a message that a level refuses wait for up to this long, up to 60s, instead of refusing it
    /// at once. This server admits the messages to one receiver in their order. With 0s none waits.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = bound)]
    pub(crate) hold: Duration,

    /// Messages that may wait at one time, each of up to 16 KiB and with its connection. Each
    /// institution has an equal share of these places.
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    pub(crate) hold_messages: u32,
}

/// Reads how long a message may wait.
fn bound(text: &str) -> Result<Duration, Box<dyn Error + Send + Sync>> {
    let bound = span(text)?;
    if bound <= LONGEST { Ok(bound) } else { Err("it is longer than 60s".into()) }
}

/// The messages that wait.
pub(crate) struct Hold {
    flags: HoldFlags,
    places: Arc<Mutex<Places>>,
    queues: Queues,
    /// Where one message at a time tries again.
    gates: Lines<Gate>,
    /// When the store last failed to decide.
    failure: watch::Sender<Option<Instant>>,
    stopping: watch::Receiver<bool>,
}

/// What holds a message up besides its receiver: the name of a policy, and the key that counts there.
pub(crate) type Gate = (&'static str, String);

#[derive(Default)]
struct Places {
    taken: usize,
    by_institution: HashMap<Name, usize>,
}

/// Why a message no longer waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It has waited for as long as it may.
    Late,
    /// The server stops.
    Stopping,
}

impl Hold {
    /// Creates the queues. Nothing waits any longer once `stopping` is true.
    pub(crate) fn new(flags: HoldFlags, stopping: watch::Receiver<bool>) -> Self {
        let (queues, gates) = (Queues::default(), Lines::default());
        let (places, failure) = (Arc::default(), watch::Sender::default());
        Self { flags, places, queues, gates, failure, stopping }
    }

    /// Says that the store did not decide on a message. Each message that waits tries once more as
    /// soon as it has its turn, for the failure policy decides now and not the windows.
    ///
    /// A failure soon after another one changes nothing, so that a flood in an outage does not make
    /// those try all the time that the failure policy refuses.
    pub(crate) fn store_failed(&self) {
        self.failure.send_if_modified(|last| {
            let is_new = last.is_none_or(|last| last.elapsed() >= BELIEVED);
            if is_new {
                *last = Some(Instant::now());
            }
            is_new
        });
    }

    /// Returns how long a message may wait, zero if none may.
    pub(crate) fn bound(&self) -> Duration {
        self.flags.hold
    }

    /// Returns whether a new message must wait behind others.
    pub(crate) fn holds_up(&self, message: &Message) -> bool {
        self.queues.hold_up(message)
    }

    /// Returns how many messages of an institution wait.
    pub(crate) fn waiting(&self, institution: &Name) -> usize {
        lock(&self.places).by_institution.get(institution).copied().unwrap_or(0)
    }

    /// Puts a message at the end of the queue of its receiver, unless the places of its institution are
    /// taken, one of `institutions`, or `longest` messages are in its way.
    pub(crate) fn join(
        &self,
        message: &Message,
        institutions: usize,
        longest: usize,
    ) -> Option<Turn<'_>> {
        let most = self.flags.hold_messages as usize;
        let share = (most / institutions.max(1)).max(1);
        let mut places = lock(&self.places);
        if places.taken >= most || self.queues.length(message) >= longest {
            return None;
        }
        let own = places.by_institution.entry(message.institution.clone()).or_default();
        if *own >= share {
            return None;
        }
        *own += 1;
        places.taken += 1;
        let place = Place { places: self.places.clone(), institution: message.institution.clone() };
        let queue = self.queues.join(message);
        let failure = self.failure.subscribe();
        Some(Turn { hold: self, queue, gate: None, failure, _place: place })
    }
}

/// The place that a message has while it waits.
struct Place {
    places: Arc<Mutex<Places>>,
    institution: Name,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = lock(&self.places);
        places.taken -= 1;
        if let Some(own) = places.by_institution.get_mut(&self.institution) {
            *own -= 1;
            if *own == 0 {
                places.by_institution.remove(&self.institution);
            }
        }
    }
}

/// A message in the queue of its receiver. The next one moves up when it is dropped.
pub(crate) struct Turn<'a> {
    hold: &'a Hold,
    queue: InQueue,
    gate: Option<(Gate, InLine<Gate>)>,
    /// Changed by each failure that the message has not tried again after.
    failure: watch::Receiver<Option<Instant>>,
    _place: Place,
}

impl Turn<'_> {
    /// Waits until it is the message's turn, and `again`, but no longer than `until`. A message with a
    /// gate is held up there and not by its receiver.
    pub(crate) async fn wait(
        &mut self,
        gate: Option<Gate>,
        again: Instant,
        until: Instant,
    ) -> Result<(), Ended> {
        let mut stopping = self.hold.stopping.clone();
        let turn = async {
            if let Some(gate) = gate {
                self.pass(gate, again).await;
                // While it was held up, messages of others may have come before it.
                if !self.queue.has_turn() {
                    self.gate = None;
                    self.queue.reach_turn().await;
                }
            } else {
                self.gate = None;
                self.queue.reach_turn().await;
                self.pause(again).await;
            }
        };
        tokio::select! {
            biased;
            // An error means that the end of the program is near too.
            _ = stopping.wait_for(|stopping| *stopping) => Err(Ended::Stopping),
            turn = timeout_at(until, turn) => turn.map_err(|_| Ended::Late),
        }
    }

    /// Waits at a gate until it is the message's turn there, and `again`.
    async fn pass(&mut self, gate: Gate, again: Instant) {
        self.queue.set_gated(true);
        let (_, line) = match self.gate.take() {
            Some(at) if at.0 == gate => self.gate.insert(at),
            _ => self.gate.insert((gate.clone(), self.hold.gates.join(gate))),
        };
        line.reach_head().await;
        self.pause(again).await;
        self.queue.set_gated(false);
    }

    /// Waits until `again`, or until a denial is not to be believed any longer.
    async fn pause(&mut self, again: Instant) {
        tokio::select! {
            () = sleep_until(again.min(Instant::now() + BELIEVED)) => {}
            _ = self.failure.changed() => {}
        }
    }
}
