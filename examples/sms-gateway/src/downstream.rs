//! [`Downstream`]: the supplier that sends the messages. This one is simulated, with knobs.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::message::Message;
use crate::share::Share;

/// How the simulated downstream behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conduct {
    /// How long it takes over a message.
    pub(crate) latency: Duration,
    /// What share of the messages it fails to take, evenly spread.
    pub(crate) errors: Share,
}

/// A downstream that sends nothing anywhere.
pub(crate) struct Downstream(Mutex<State>);

struct State {
    conduct: Conduct,
    /// Messages received and failed since the conduct was set.
    received: u64,
    failed: u64,
    under_way: u64,
}

/// The downstream did not take a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the downstream did not take the message")]
pub(crate) struct NotTaken;

impl Downstream {
    pub(crate) fn new(conduct: Conduct) -> Self {
        Self(Mutex::new(State { conduct, received: 0, failed: 0, under_way: 0 }))
    }

    pub(crate) fn conduct(&self) -> Conduct {
        self.state().conduct
    }

    pub(crate) fn set(&self, conduct: Conduct) {
        let mut state = self.state();
        *state = State { conduct, received: 0, failed: 0, under_way: state.under_way };
    }

    /// Returns how many messages it is busy with.
    pub(crate) fn under_way(&self) -> u64 {
        self.state().under_way
    }

    /// Hands a message over.
    ///
    /// The future must not be dropped early: the message would be under way for ever.
    ///
    /// # Errors
    ///
    /// [`NotTaken`] if it will not be sent.
    pub(crate) async fn send(&self, message: &Message) -> Result<(), NotTaken> {
        let (latency, fails) = self.state().begin();
        let characters = message.text.chars().count();
        let (institution, channel, to) = (&message.institution, &message.channel, &message.to);
        tracing::debug!(%institution, %channel, %to, characters, "handed to the downstream");
        tokio::time::sleep(latency).await;
        self.state().under_way -= 1;
        if fails { Err(NotTaken) } else { Ok(()) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics between the assignments, so a poisoned lock guards a whole state.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Begins with a message; returns how long it takes, and whether it fails.
    fn begin(&mut self) -> (Duration, bool) {
        self.received += 1;
        self.under_way += 1;
        let fails = self.failed < self.conduct.errors.of(self.received);
        self.failed += u64::from(fails);
        (self.conduct.latency, fails)
    }
}
