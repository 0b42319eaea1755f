//! [`Downstream`]: the supplier that sends the messages, here a simulated one, and the controller that lowers
//! thresholds while it suffers.

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

/// How the downstream did. A message that is late is a slow result before it ends.
#[derive(Default)]
struct Results {
    results: u64,
    failed: u64,
    slow: u64,
}

/// A downstream that sends nothing anywhere.
pub(crate) struct Downstream(Mutex<State>);

struct State {
    latency: Duration,
    /// How many of a hundred messages it fails to take.
    errors: u64,
    received: u64,
    /// How many messages it neither took nor failed to take yet.
    under_way: u64,
    /// Since the last look of the controller.
    recent: Results,
}

impl Downstream {
    pub(crate) fn new() -> Self {
        let (latency, recent) = (Duration::from_millis(20), Results::default());
        Self(Mutex::new(State { latency, errors: 0, received: 0, under_way: 0, recent }))
    }

    /// Returns how many messages it has that it neither took nor failed to take yet.
    pub(crate) fn under_way(&self) -> u64 {
        lock(&self.0).under_way
    }

    /// Changes how it behaves, where something is said.
    pub(crate) fn set(&self, latency: Option<Duration>, errors: Option<u64>) {
        let state = &mut *lock(&self.0);
        state.latency = latency.unwrap_or(state.latency);
        state.errors = errors.unwrap_or(state.errors).min(100);
    }

    /// Hands a message over, and returns whether it will be sent. Waits no longer than [`PATIENCE`].
    pub(crate) async fn send(&self, message: &Message) -> bool {
        let mut taken = pin!(self.take(message));
        let on_time = timeout(TARGET_LATENCY, &mut taken).await;
        {
            // What hangs is seen now: the controller does not wait for its end. So it is slow, and no failure later.
            let recent = &mut lock(&self.0).recent;
            recent.results += 1;
            recent.slow += u64::from(on_time.is_err());
            recent.failed += u64::from(on_time == Ok(false));
        }
        let is_taken = match on_time {
            Ok(is_taken) => is_taken,
            Err(_) => timeout(PATIENCE - TARGET_LATENCY, taken).await.unwrap_or(false),
        };
        lock(&self.0).under_way -= 1;
        is_taken
    }

    /// Takes a message as the supplier does.
    async fn take(&self, message: &Message) -> bool {
        let (latency, fails) = {
            let mut state = lock(&self.0);
            // Failures are evenly spread over the messages.
            let failures = |count: u64| count * state.errors / 100;
            let fails = failures(state.received + 1) > failures(state.received);
            state.received += 1;
            state.under_way += 1;
            (state.latency, fails)
        };
        let Message { institution, channel, to, text, parts } = message;
        let characters = text.chars().count();
        tracing::debug!(?institution, ?channel, ?to, characters, parts, "handed to the downstream");
        sleep(latency).await;
        !fails
    }

    /// Looks at the results again and again, and leaves the institutions what the controller decides.
    ///
    /// Additive increase, multiplicative decrease, as TCP does (RFC 5681): quick to make room, slow to
    /// take it back, so that servers that share a downstream settle beside each other.
    pub(crate) async fn control(&self, levels: &Levels, floor: u32) {
        let mut controller = Controller { floor, left: 100, settles: false, waited: 0 };
        loop {
            sleep(LOOK_EVERY).await;
            let before = controller.left;
            controller.look(&mut lock(&self.0).recent);
            if controller.left != before {
                levels.leave(controller.left);
            }
        }
    }
}

struct Controller {
    /// The share of a configured limit below which it is not lowered, in percent.
    floor: u32,
    /// What is left of the configured limits, in percent.
    left: u32,
    /// The next results may be of messages from before the last decrease.
    settles: bool,
    /// How many looks have found too few results.
    waited: u32,
}

impl Controller {
    /// Decides what is left, and takes the results. Without enough of them it waits for more.
    fn look(&mut self, recent: &mut Results) {
        let settles = std::mem::take(&mut self.settles);
        let are_few = recent.results < LEAST_RESULTS;
        // A limit below what each message needs lets nothing through that could say that all is well again.
        if !settles && are_few && self.waited < PATIENT_LOOKS {
            self.waited += 1;
            return;
        }
        let Results { results, failed, slow } = std::mem::take(recent);
        self.waited = 0;
        if settles {
            // They are used up.
        } else if !are_few && (failed + slow) * 100 > SUFFERS * results {
            let left = (self.left * 7 / 10).max(self.floor).min(self.left);
            self.settles = left < self.left;
            self.left = left;
            if self.settles {
                let what = "the downstream suffers: thresholds are lowered";
                tracing::warn!(left, results, failed, slow, "{what}");
            }
        } else if self.left < 100 {
            self.left = (self.left + INCREASE).min(100);
            if self.left == 100 {
                tracing::info!("the downstream keeps to its targets: thresholds are as configured");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_and_slow_results_count_together() {
        for (failed, slow, left) in [(4, 4, 70), (0, 6, 70), (6, 0, 70), (2, 3, 100)] {
            let mut controller = Controller { floor: 10, left: 100, settles: false, waited: 0 };
            controller.look(&mut Results { results: 100, failed, slow });
            assert_eq!(controller.left, left, "{failed} failed, {slow} slow");
        }
    }
}
