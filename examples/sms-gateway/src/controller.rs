//! [`Controller`]: lowers thresholds while the downstream suffers, and raises them again.
//!
//! Additive increase, multiplicative decrease, as TCP does (RFC 5681): quick to make room, slow to
//! take it back, so that servers that share a downstream settle beside each other.

use std::sync::Mutex;
use std::time::Duration;

use clap::Args;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::gateway::Gateway;
use crate::share::Share;
use crate::tally::{Tally, window};
use crate::thresholds::Level;
use example_support::flags::span;
use example_support::lock;

/// What a decrease leaves of the share there was.
const DECREASE: Share = Share::thousandths(700);
/// What an increase adds.
const INCREASE: Share = Share::thousandths(50);
/// The share of results that may be slower than the target: the target is of the 95th percentile.
const SLOW: Share = Share::thousandths(50);
/// How many results it takes to lower a threshold.
const LEAST_RESULTS: u64 = 5;
/// How often a window the controller looks.
const LOOKS: u32 = 10;

/// What the downstream is to keep to, and how far thresholds may be lowered if it does not.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Targets {
    /// The share of a configured threshold below which it is not lowered; 100% never lowers any.
    #[arg(long, value_name = "PERCENT", default_value = "10%")]
    pub(crate) adapt_floor: Share,

    /// How far back the downstream's results count.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = window)]
    pub(crate) adapt_window: Duration,

    /// The downstream suffers if more than 5% of its results take longer than this.
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = span)]
    pub(crate) target_latency: Duration,

    /// The downstream suffers if more than this share of messages fail.
    #[arg(long, value_name = "PERCENT", default_value = "5%")]
    pub(crate) target_errors: Share,
}

/// How the downstream did in the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Health {
    pub(crate) results: u64,
    pub(crate) failed: u64,
    pub(crate) slow: u64,
}

impl Health {
    fn suffers(&self, targets: &Targets) -> bool {
        // The 95th percentile is above the target if, and only if, more than 5 % of the results are.
        targets.target_errors.is_below(self.failed, self.results)
            || SLOW.is_below(self.slow, self.results)
    }
}

/// Results of the downstream over the window.
pub(crate) struct Results {
    tally: Mutex<Tally<3>>,
    slow_above: Duration,
}

impl Results {
    pub(crate) fn new(targets: &Targets) -> Self {
        let tally = Mutex::new(Tally::new(targets.adapt_window));
        Self { tally, slow_above: targets.target_latency }
    }

    pub(crate) fn add(&self, latency: Duration, failed: bool) {
        lock(&self.tally).add([true, failed, latency > self.slow_above]);
    }

    pub(crate) fn health(&self) -> Health {
        let [results, failed, slow] = lock(&self.tally).sum();
        Health { results, failed, slow }
    }
}

/// Decides what share of the configured thresholds is in use.
pub(crate) struct Controller {
    targets: Targets,
    share: Share,
    /// Until then the window holds results from before the last decrease.
    settles_at: Option<Instant>,
}

impl Controller {
    pub(crate) fn new(targets: Targets) -> Self {
        Self { targets, share: Share::ALL, settles_at: None }
    }

    /// Looks at how the downstream does, and returns the share from now on.
    ///
    /// While it suffers, the share is lowered by three tenths of itself, and again only after a
    /// whole window, when all results are younger than the last decrease. Else each look raises it by
    /// a twentieth of the whole. Without any result it stays as it is. It is never below the floor nor
    /// above the whole.
    pub(crate) fn look(&mut self, health: Health) -> Share {
        let settling = self.settles_at.is_some_and(|at| Instant::now() < at);
        if settling || health.results == 0 {
            return self.share;
        }
        if !health.suffers(&self.targets) {
            self.share = self.share.plus(INCREASE);
        } else if health.results >= LEAST_RESULTS {
            self.share = self.share.times(DECREASE).max(self.targets.adapt_floor);
            self.settles_at = Some(Instant::now() + self.targets.adapt_window);
        }
        self.share
    }
}

/// Looks again and again, and applies what the controller decides to the levels it is in charge of.
pub(crate) async fn run(targets: Targets, gateway: &Gateway, adapted: Vec<Level>) {
    let mut controller = Controller::new(targets);
    let mut looks = interval(targets.adapt_window / LOOKS);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let (before, health) = (controller.share, gateway.results.health());
        let share = controller.look(health);
        if share == before {
            continue;
        }
        let Health { results, failed, slow } = health;
        if share < before {
            tracing::warn!(%share, results, failed, slow, "the downstream suffers: thresholds are lowered");
        } else if share == Share::ALL {
            tracing::info!("the downstream keeps to its targets: thresholds are as configured");
        } else {
            tracing::debug!(%share, "the downstream keeps to its targets: thresholds are raised");
        }
        adapted.iter().for_each(|level| gateway.levels.leave(*level, share));
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const FINE: Health = Health { results: 100, failed: 5, slow: 5 };
    const FAILING: Health = Health { failed: 6, ..FINE };
    const SLOW: Health = Health { slow: 6, ..FINE };

    fn controller() -> Controller {
        let (target_errors, adapt_floor) = (Share::thousandths(50), Share::thousandths(100));
        let (target_latency, adapt_window) = (SECOND / 2, 10 * SECOND);
        Controller::new(Targets { target_latency, target_errors, adapt_window, adapt_floor })
    }

    #[tokio::test(start_paused = true)]
    async fn it_lowers_fast_and_raises_slowly() {
        let mut controller = controller();
        let mut shares = Vec::new();
        for health in [FAILING, SLOW, FAILING, SLOW, FAILING, SLOW, FAILING, SLOW] {
            shares.push(controller.look(health).to_string());
            advance(10 * SECOND).await;
        }
        assert_eq!(shares, ["70%", "49%", "34.3%", "24%", "16.8%", "11.7%", "10%", "10%"]);
        let raised: Vec<_> = (0..20).map(|_| controller.look(FINE).to_string()).collect();
        assert_eq!(raised[..2], ["15%", "20%"]);
        assert_eq!(raised[17..], ["100%", "100%", "100%"]);
    }

    #[tokio::test(start_paused = true)]
    async fn it_does_nothing_without_results() {
        let mut controller = controller();
        let few = Health { results: 4, failed: 4, slow: 4 };
        assert_eq!(controller.look(few), Share::ALL, "four results are too few to lower anything");
        let lowered = controller.look(FAILING);
        for _ in 0..100 {
            advance(SECOND).await;
            assert_eq!(controller.look(Health::default()), lowered);
        }
        let one = Health { results: 1, failed: 0, slow: 0 };
        assert!(controller.look(one) > lowered, "but one good result may raise");
    }
}
