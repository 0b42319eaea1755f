//! The traffic that every limiter gets: random, but the same for all.

use std::time::Duration;

use fastrand::Rng;

use crate::setup::LIMIT;

/// How long the traffic lasts.
pub(crate) const LENGTH: Duration = Duration::from_secs(24);
/// How many keys have traffic of their own.
pub(crate) const KEYS: u64 = 8;
/// The seed of the traffic.
const SEED: u64 = 20_261_122;

/// Requests at the same instant.
pub(crate) struct Burst {
    pub(crate) at: Duration,
    pub(crate) requests: u32,
}

/// Returns the traffic of one key.
///
/// It is a sequence of bursts, of steady rates just below and just above the limit, and of pauses that
/// are nearly as long as the window or a little longer.
pub(crate) fn of_key(key: u64, window: Duration) -> Vec<Burst> {
    let mut random = Rng::with_seed(SEED + key);
    let (mut traffic, mut at) = (Vec::new(), random_part(&mut random, window, 0.0, 1.0));
    let fair = window / LIMIT;
    while at < LENGTH {
        match random.u32(..4) {
            0 => {
                for _ in 0..random.u32(1..=4) {
                    traffic.push(Burst { at, requests: random.u32(1..=2 * LIMIT + 2) });
                    at += random_part(&mut random, window, 0.0, 0.4);
                }
            }
            1 => steady(&mut traffic, &mut at, &mut random, fair, 1.02),
            2 => steady(&mut traffic, &mut at, &mut random, fair, 0.9),
            _ => {
                // The second of the two is often the first that fits again.
                let requests = random.u32(1..=LIMIT);
                traffic.push(Burst { at, requests });
                at += random_part(&mut random, window, 0.97, 1.03);
                traffic.push(Burst { at, requests: LIMIT });
                at += random_part(&mut random, window, 0.0, 1.03);
            }
        }
    }
    traffic.retain(|burst| burst.at < LENGTH);
    traffic
}

/// Adds single requests at a rate, each a little early or late.
fn steady(traffic: &mut Vec<Burst>, at: &mut Duration, random: &mut Rng, fair: Duration, gap: f64) {
    for _ in 0..random.u32(5..=20) {
        traffic.push(Burst { at: *at, requests: 1 });
        *at += random_part(random, fair, gap - 0.05, gap + 0.05);
    }
}

fn random_part(random: &mut Rng, whole: Duration, least: f64, most: f64) -> Duration {
    whole.mul_f64(least + (most - least) * random.f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_is_the_same_each_time() {
        let starts = || -> Vec<Duration> {
            of_key(3, Duration::from_secs(1)).iter().map(|burst| burst.at).collect()
        };
        assert_eq!(starts(), starts());
        assert!(starts().len() > 30, "{}", starts().len());
        assert!(starts().is_sorted());
    }
}
