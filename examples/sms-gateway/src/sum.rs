//! [`Sum`]: what the levels admit altogether, which the global rate must not be below.
//!
//! Every message takes a place in the window of its institution. So in the long run the levels admit no
//! more than the sum of the institutions' rates, on all servers together. Channels and receivers are
//! not summed: they only narrow what the institutions' windows let through.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;

use serde_json::{Value, json};
use tower_sliding_window::{Policy, Quota};

use crate::bucket::Portion;
use crate::name::Name;

/// How many terms a message shows.
const SHOWN_TERMS: usize = 10;
/// What rounding may add to a sum of rates, as a part of it.
const ROUNDING: f64 = 1e-9;

/// What the buckets of all servers admit altogether.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Global {
    /// What the bucket of each server admits.
    pub(crate) each: Quota,
    /// How many servers there are.
    pub(crate) servers: NonZeroU32,
}

impl Global {
    fn rate(&self) -> f64 {
        rate(&self.each) * f64::from(self.servers.get())
    }
}

impl fmt::Display for Global {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.servers.get() {
            1 => write!(f, "{}, that is {} a second,", self.each, shown(self.rate())),
            more => write!(
                f,
                "{} of each of {more} servers, that is {} a second,",
                self.each,
                shown(self.rate())
            ),
        }
    }
}

/// The institutions' rates, added up.
#[derive(Clone, Debug)]
pub(crate) struct Sum {
    /// The institution of the highest rate first.
    terms: Vec<(Name, Policy)>,
}

/// Returns how many requests a second a quota admits in the long run.
fn rate(quota: &Quota) -> f64 {
    f64::from(quota.limit()) / quota.window().as_secs_f64()
}

/// Returns how many requests a second a policy admits in the long run, and how many more at once:
/// by the quota that holds it back.
fn rate_and_burst(policy: &Policy) -> (f64, u64) {
    let both = policy.quotas().iter().map(|quota| (rate(quota), u64::from(quota.limit())));
    both.min_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)))
        .unwrap_or_default()
}

impl Sum {
    pub(crate) fn new<'a>(institutions: impl Iterator<Item = (&'a Name, &'a Policy)>) -> Self {
        let mut terms: Vec<_> =
            institutions.map(|(name, policy)| (name.clone(), policy.clone())).collect();
        let rate = |(_, policy): &(Name, Policy)| rate_and_burst(policy).0;
        terms.sort_by(|one, other| rate(other).total_cmp(&rate(one)));
        Self { terms }
    }

    /// Returns the sum, in messages a second.
    pub(crate) fn rate(&self) -> f64 {
        self.terms.iter().map(|(_, policy)| rate_and_burst(policy).0).sum()
    }

    /// Divides a bucket among the institutions: what comes, as their rates are; what a full one holds,
    /// evenly, but to none more than its quotas admit at once.
    pub(crate) fn portions(&self, bucket: Quota) -> BTreeMap<Name, Portion> {
        let sum = self.rate();
        let mut portions: Vec<(&Name, f64, u64)> = self
            .terms
            .iter()
            .map(|(name, policy)| {
                let (rate, burst) = rate_and_burst(policy);
                (name, rate / sum, burst)
            })
            .collect();
        portions.sort_by_key(|(_, _, burst)| *burst);
        let (mut left, mut institutions) = (bucket.limit(), portions.len() as u32);
        let mut divided = BTreeMap::new();
        for (name, rate, burst) in portions {
            let tokens = (left / institutions).min(u32::try_from(burst).unwrap_or(u32::MAX));
            divided.insert(name.clone(), Portion { rate, tokens });
            left -= tokens;
            institutions -= 1;
        }
        divided
    }

    /// Holds a global rate against the sum.
    ///
    /// # Errors
    ///
    /// [`GlobalTooLow`] if the rate is below the sum.
    pub(crate) fn check(self, global: Global) -> Result<(), GlobalTooLow> {
        if self.rate() > global.rate() * (1.0 + ROUNDING) {
            return Err(GlobalTooLow { sum: self, global });
        }
        Ok(())
    }

    /// Returns how many tokens the buckets must hold to refuse nothing that the levels admit, if that is
    /// more than they hold.
    pub(crate) fn burst_above(&self, global: Global) -> Option<u64> {
        let burst = self.terms.iter().map(|(_, policy)| rate_and_burst(policy).1).sum();
        let held = u64::from(global.each.limit()) * u64::from(global.servers.get());
        (burst > held).then_some(burst)
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} a second", shown(self.rate()))?;
        for (index, (institution, policy)) in self.terms.iter().take(SHOWN_TERMS).enumerate() {
            let sign = if index == 0 { "=" } else { "+" };
            write!(f, " {sign} {institution} {policy}")?;
        }
        match self.terms.len().saturating_sub(SHOWN_TERMS) {
            0 => Ok(()),
            more => write!(f, " + {more} more"),
        }
    }
}

/// The global rate is below the sum of what it fronts.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the global rate {global} is below the sum of the institutions' rates: {sum}")]
pub(crate) struct GlobalTooLow {
    sum: Sum,
    global: Global,
}

impl GlobalTooLow {
    /// Returns the lowest rate of each server in whole messages a second that would do.
    pub(crate) fn enough(&self) -> u64 {
        let servers = f64::from(self.global.servers.get());
        (self.sum.rate() / servers * (1.0 - ROUNDING)).ceil() as u64
    }

    /// Returns the sum, its terms and the global rate for a problem document, rates a second.
    pub(crate) fn members(&self) -> [(&'static str, Value); 4] {
        let term = |(name, policy): &(Name, Policy)| {
            let (rate, _) = rate_and_burst(policy);
            json!({ "institution": name.as_str(), "policy": policy.to_string(), "rate": rate })
        };
        let terms: Vec<_> = self.sum.terms.iter().take(SHOWN_TERMS).map(term).collect();
        let Global { each, servers } = self.global;
        let global = json!({ "policy": each.to_string(), "rate": rate(&each) });
        let sum = self.sum.rate().into();
        [
            ("sum", sum),
            ("terms", terms.into()),
            ("global", global),
            ("servers", servers.get().into()),
        ]
    }
}

/// Returns a rate with at most three decimals.
fn shown(rate: f64) -> String {
    let text = format!("{rate:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(policies: &[&str]) -> Sum {
        let named = policies
            .iter()
            .enumerate()
            .map(|(index, policy)| (format!("i{index}").parse().unwrap(), policy.parse().unwrap()));
        let terms: Vec<(Name, Policy)> = named.collect();
        Sum::new(terms.iter().map(|(name, policy)| (name, policy)))
    }

    fn global(each: &str, servers: u32) -> Global {
        Global { each: each.parse().unwrap(), servers: NonZeroU32::new(servers).unwrap() }
    }

    fn fits(policies: &[&str], each: &str) -> bool {
        sum(policies).check(global(each, 1)).is_ok()
    }

    #[test]
    fn the_bound_is_the_sum_itself() {
        assert!(fits(&["100/1s", "400/1s"], "500/1s"));
        assert!(!fits(&["100/1s", "400/1s"], "499/1s"));
        assert!(!fits(&["100/1s", "400/1s", "1/1h"], "500/1s"));
        assert!(fits(&["100/3s"; 3], "100/1s"), "thirds add up to a whole");
        assert!(fits(&["1/7s"; 7], "60/60s") && !fits(&["1/7s"; 8], "60/60s"));
        assert!(fits(&["100/1s,60/60s"], "1/1s"), "the lowest rate of a policy counts");
        assert!(fits(&[], "1/24h"));
    }

    #[test]
    fn message_shows_sum_terms_and_rate() {
        let error = sum(&["50/60s", "400/1s"]).check(global("24000/60s", 1)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the global rate 24000/60s, that is 400 a second, is below the sum of the institutions' \
             rates: 400.833 a second = i1 400/1s + i0 50/60s"
        );
        assert_eq!(error.enough(), 401);
        assert!(sum(&["1/1s"; 12]).to_string().ends_with("+ i9 1/1s + 2 more"));
    }

    #[test]
    fn bucket_must_hold_bursts_above_the_rates() {
        let sum = sum(&["1000/60s", "5/1s,100/60s"]);
        assert_eq!(sum.burst_above(global("1099/1s", 1)), Some(1100));
        assert_eq!(sum.burst_above(global("1100/1s", 1)), None);
        assert_eq!(sum.burst_above(global("550/1s", 2)), None);
    }

    #[test]
    fn a_bucket_is_divided_among_all() {
        let divided = |policies: &[&str], bucket: &str| -> Vec<(f64, u32)> {
            let portions = sum(policies).portions(bucket.parse().unwrap());
            portions.values().map(|it| ((it.rate * 1000.0).round(), it.tokens)).collect()
        };
        assert_eq!(divided(&["400/1s", "100/1s"], "500/1s"), [(800.0, 400), (200.0, 100)]);
        assert_eq!(divided(&["400/1s", "100/1s"], "900/1s"), [(800.0, 400), (200.0, 100)]);
        assert_eq!(divided(&["60/60s", "540/60s"], "10/1s"), [(100.0, 5), (900.0, 5)]);
        let three = ["6000/60s", "6000/60s", "10/1h"];
        assert_eq!(divided(&three, "200/1s"), [(500.0, 95), (500.0, 95), (0.0, 10)]);
        assert_eq!(divided(&[], "200/1s"), []);
    }

    #[test]
    fn every_server_adds_its_bucket() {
        let institutions = ["500/1s", "401/1s"];
        assert!(sum(&institutions).check(global("301/1s", 3)).is_ok());
        let error = sum(&institutions).check(global("300/1s", 3)).unwrap_err();
        let shown = "300/1s of each of 3 servers, that is 900 a second, is below";
        assert!(error.to_string().contains(shown), "{error}");
        assert_eq!(error.enough(), 301, "on each server");
    }
}
