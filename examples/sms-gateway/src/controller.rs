//! [`Controller`]: lowers thresholds while the downstream suffers, and raises them again.
//!
//! Additive increase, multiplicative decrease, as TCP does (RFC 5681): quick to make room, slow to
//! take it back, so that servers that share a downstream settle beside each other.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::levels::Levels;
use crate::share::Share;
use crate::tally::Tally;
use crate::thresholds::Level;

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
#[derive(Clone, Copy, Debug)]
pub(crate) struct Targets {
    /// The highest 95th percentile of the downstream's latency.
    pub(crate) latency: Duration,
    /// The highest share of messages that fail.
    pub(crate) errors: Share,
    /// How far back results count.
    pub(crate) window: Duration,
    /// The lowest share of a threshold that is ever in use.
    pub(crate) floor: Share,
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
        targets.errors.is_below(self.failed, self.results) || SLOW.is_below(self.slow, self.results)
    }
}

/// Results of the downstream over the window. Clones share them.
#[derive(Clone)]
pub(crate) struct Results {
    tally: Arc<Mutex<Tally<3>>>,
    slow_above: Duration,
}

impl Results {
    pub(crate) fn new(targets: &Targets) -> Self {
        let tally = Arc::new(Mutex::new(Tally::new(targets.window)));
        Self { tally, slow_above: targets.latency }
    }

    pub(crate) fn add(&self, latency: Duration, failed: bool) {
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        tally.add([true, failed, latency > self.slow_above]);
    }

    pub(crate) fn health(&self) -> Health {
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        let [results, failed, slow] = tally.sum();
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
            self.share = self.share.times(DECREASE).max(self.targets.floor);
            self.settles_at = Some(Instant::now() + self.targets.window);
        }
        self.share
    }
}

/// Looks again and again, and applies what the controller decides to the levels it is in charge of.
pub(crate) async fn run(
    targets: Targets,
    results: Results,
    levels: Arc<Levels>,
    adapted: Vec<Level>,
) {
    let mut controller = Controller::new(targets);
    let mut looks = interval(targets.window / LOOKS);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let (before, health) = (controller.share, results.health());
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
        adapted.iter().for_each(|level| levels.leave(*level, share));
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
        let (errors, floor) = (Share::thousandths(50), Share::thousandths(100));
        let latency = Duration::from_millis(500);
        Controller::new(Targets { latency, errors, window: 10 * SECOND, floor })
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
    async fn it_waits_for_the_effect_of_a_decrease() {
        let mut controller = controller();
        let lowered = controller.look(FAILING);
        for _ in 0..9 {
            advance(SECOND).await;
            assert_eq!((controller.look(FAILING), controller.look(FINE)), (lowered, lowered));
        }
        advance(SECOND).await;
        assert!(controller.look(FAILING) < lowered);
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
