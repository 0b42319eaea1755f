//! [`Downstream`]: the supplier that sends the messages. This one is simulated, with knobs.

use std::sync::Mutex;
use std::time::Duration;

use clap::Args;

use crate::message::Message;
use crate::share::Share;
use example_support::flags::span;
use example_support::lock;

/// How the simulated downstream behaves.
#[derive(Args, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conduct {
    /// How long the simulated downstream takes over a message.
    #[arg(long, value_name = "DURATION", default_value = "20ms", value_parser = span)]
    pub(crate) downstream_latency: Duration,

    /// What share of the messages the simulated downstream fails to take.
    #[arg(long, value_name = "PERCENT", default_value = "0%")]
    pub(crate) downstream_errors: Share,
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

impl Downstream {
    pub(crate) fn new(conduct: Conduct) -> Self {
        Self(Mutex::new(State { conduct, received: 0, failed: 0, under_way: 0 }))
    }

    pub(crate) fn conduct(&self) -> Conduct {
        lock(&self.0).conduct
    }

    pub(crate) fn set(&self, conduct: Conduct) {
        let mut state = lock(&self.0);
        *state = State { conduct, received: 0, failed: 0, under_way: state.under_way };
    }

    /// Returns how many messages it is busy with.
    pub(crate) fn under_way(&self) -> u64 {
        lock(&self.0).under_way
    }

    /// Hands a message over, and returns whether it will be sent.
    ///
    /// The future must not be dropped early: the message would be under way for ever.
    pub(crate) async fn send(&self, message: &Message) -> bool {
        let (latency, fails) = {
            let mut state = lock(&self.0);
            state.received += 1;
            state.under_way += 1;
            // Failures are evenly spread over the messages.
            let fails = state.failed < state.conduct.downstream_errors.of(state.received);
            state.failed += u64::from(fails);
            (state.conduct.downstream_latency, fails)
        };
        let (characters, parts) = (message.text.chars().count(), message.parts);
        let (institution, channel) = (message.institution.as_str(), message.channel.as_str());
        let to = &message.to;
        tracing::debug!(?institution, ?channel, ?to, characters, parts, "handed to the downstream");
        tokio::time::sleep(latency).await;
        lock(&self.0).under_way -= 1;
        !fails
    }
}
