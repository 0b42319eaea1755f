//! [`Downstream`]: the supplier that sends the messages, here a simulated one, and the controller that lowers
//! thresholds while it suffers.

use std::mem::take;
use std::pin::pin;
use std::sync::Mutex;
use std::time::Duration;

use example_support::lock;
use tokio::time::{sleep, timeout};

use crate::levels::Levels;
use crate::message::Message;

/// A result is slow if it takes longer than this.
const TARGET_LATENCY: Duration = Duration::from_millis(500);
/// A message that it does not take within this has failed. It is less than a full server waits for a response, and a
/// server that ends for its last messages.
const PATIENCE: Duration = Duration::from_secs(5);
/// The downstream suffers if more than so many of a hundred results are failures or slow.
const SUFFERS: u64 = 5;
/// How often the controller looks at the results.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How many results it takes for a decision of the controller.
const LEAST_RESULTS: u64 = 5;
/// How many looks the controller waits for them. Then the limits rise.
const PATIENT_LOOKS: u32 = 30;
/// What an increase adds to what is left of the thresholds, in percent.
const INCREASE: u32 = 5;

/// How the downstream did. A message that is late is a bad result before it ends.
#[derive(Debug, Default)]
struct Results {
    all: u64,
    /// Failures, and slow results.
    bad: u64,
}

/// A downstream that sends nothing anywhere.
pub(crate) struct Downstream(Mutex<State>);

struct State {
    latency: Duration,
    /// How many of a hundred messages it fails to take.
    errors: u64,
    received: u64,
    /// Since the last look of the controller.
    recent: Results,
}

impl Downstream {
    pub(crate) fn new() -> Self {
        let (latency, recent) = (Duration::from_millis(20), Results::default());
        Self(Mutex::new(State { latency, errors: 0, received: 0, recent }))
    }

    /// Changes how it behaves, where something is said.
    pub(crate) fn set(&self, latency: Option<Duration>, errors: Option<u64>) {
        let state = &mut *lock(&self.0);
        state.latency = latency.unwrap_or(state.latency);
        state.errors = errors.unwrap_or(state.errors).min(100);
    }

    /// Hands a message over, and returns whether it will be sent. Waits no longer than [`PATIENCE`].
    pub(crate) async fn send(&self, message: &Message) -> bool {
        let mut taken = pin!(self.supply(message));
        let on_time = timeout(TARGET_LATENCY, &mut taken).await;
        {
            // What hangs is seen now: the controller does not wait for its end. So it is slow, and no failure later.
            let recent = &mut lock(&self.0).recent;
            recent.all += 1;
            recent.bad += u64::from(on_time != Ok(true));
        }
        match on_time {
            Ok(is_taken) => is_taken,
            Err(_) => timeout(PATIENCE - TARGET_LATENCY, taken).await.unwrap_or(false),
        }
    }

    /// Takes a message as the supplier does.
    async fn supply(&self, message: &Message) -> bool {
        let (latency, fails) = {
            let mut state = lock(&self.0);
            // Failures are evenly spread over the messages.
            let failures = |count: u64| count * state.errors / 100;
            let fails = failures(state.received + 1) > failures(state.received);
            state.received += 1;
            (state.latency, fails)
        };
        let Message { institution, channel, to, text, parts } = message;
        let characters = text.chars().count();
        tracing::debug!(?institution, ?channel, ?to, characters, parts, "handed to the downstream");
        sleep(latency).await;
        !fails
    }

    /// Looks at the results again and again, and leaves the institutions a share of their limits, at least the floor.
    ///
    /// Additive increase, multiplicative decrease, as TCP does (RFC 5681): quick to make room, slow to
    /// take it back, so that servers that share a downstream settle beside each other.
    pub(crate) async fn control(&self, levels: &Levels, floor: u32) {
        let (mut left, mut waited) = (100, 0);
        loop {
            sleep(LOOK_EVERY).await;
            let are_few = lock(&self.0).recent.all < LEAST_RESULTS;
            // A limit below what each message needs lets nothing through that could say that all is well again.
            if are_few && waited < PATIENT_LOOKS {
                waited += 1;
                continue;
            }
            let results = take(&mut lock(&self.0).recent);
            waited = 0;
            let before = left;
            if !are_few && results.bad * 100 > SUFFERS * results.all {
                left = (left * 7 / 10).max(floor).min(left);
            } else {
                left = (left + INCREASE).min(100);
            }
            if left == before {
                continue;
            }
            levels.leave(left);
            if left < before {
                tracing::warn!(left, ?results, "the downstream suffers: thresholds are lowered");
                // The next results may be of messages from before.
                sleep(LOOK_EVERY).await;
                take(&mut lock(&self.0).recent);
            } else if left == 100 {
                tracing::info!("the downstream keeps to its targets: thresholds are as configured");
            }
        }
    }
}
