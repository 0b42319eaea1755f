//! [`Bucket`]: the global token bucket behind the levels.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use example_support::lock;
use tokio::time::Instant;
use tower_sliding_window::Quota;

use crate::name::Name;

/// How many institutions are remembered. Above that, those are forgotten that have all their tokens.
const MOST: usize = 1000;

/// Admits a number of parts in a length of time, and after a pause as many at once.
///
/// It is this server's own, and guards what is behind it: every message that the levels admit takes a
/// token for each of its parts.
///
/// A portion of the tokens belongs to each institution. An institution that needs more uses those of the
/// others, as long as the bucket is at least half full. So none can empty it for the others: not by a
/// burst that its quota admits, and not on a server that gets more than its share of the messages. A
/// limiter of the crate `governor` has no such reserve.
pub(crate) struct Bucket {
    quota: Quota,
    /// How long a token takes to come.
    period: Duration,
    epoch: Instant,
    fillings: Mutex<Fillings>,
}

/// What belongs to an institution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Portion {
    /// Its part of the tokens that come, above 0 and at most 1.
    pub(crate) rate: f64,
    /// How many tokens of a full bucket are its own.
    pub(crate) tokens: u32,
}

#[derive(Default)]
struct Fillings {
    all: Filling,
    /// Of what belongs to each institution.
    own: HashMap<Name, Filling>,
}

impl Fillings {
    fn remember(&mut self, institution: &Name, own: Filling, now: Duration) {
        if self.own.len() >= MOST {
            self.own.retain(|_, filling| filling.0 > now);
        }
        self.own.insert(institution.clone(), own);
    }
}

/// When a bucket is full again, counted from the epoch. An earlier time is as good as now.
#[derive(Clone, Copy, Default)]
struct Filling(Duration);

impl Filling {
    /// Takes tokens that take `cost` to come again from a bucket of which `room` may be empty. Returns
    /// how long until it can be done if it can't.
    fn take(self, cost: Duration, room: Duration, now: Duration) -> Result<Self, Duration> {
        let full_at = self.0.max(now).saturating_add(cost);
        let wait = full_at.saturating_sub(now.saturating_add(room));
        if wait.is_zero() { Ok(Self(full_at)) } else { Err(wait) }
    }
}

impl Bucket {
    /// Creates a bucket that is full.
    pub(crate) fn new(quota: Quota) -> Result<Self, TooFast> {
        let period = quota.window().checked_div(quota.limit()).filter(|it| !it.is_zero());
        let (epoch, fillings) = (Instant::now(), Mutex::default());
        Ok(Self { quota, period: period.ok_or(TooFast)?, epoch, fillings })
    }

    /// Takes a token for each part of a message, or none. Returns how long until there are enough. A
    /// message may not have more parts than the bucket holds tokens.
    pub(crate) fn take(
        &self,
        institution: &Name,
        belongs: Portion,
        parts: u32,
    ) -> Result<(), Duration> {
        let most = self.quota.limit();
        let (now, whole, cost) = (self.epoch.elapsed(), self.period * most, self.period * parts);
        let mut fillings = lock(&self.fillings);
        let own = fillings.own.get(institution).copied().unwrap_or_default();
        // Rounded down, as the period is: no token comes too late.
        let own_period =
            Duration::from_nanos((self.period.as_nanos() as f64 / belongs.rate) as u64);
        let own_room = own_period.saturating_mul(belongs.tokens.max(parts));
        let own = own.take(own_period.saturating_mul(parts), own_room, now);
        let wait = match (own, fillings.all.take(cost, whole, now)) {
            (Ok(own), Ok(all)) => {
                fillings.remember(institution, own, now);
                fillings.all = all;
                return Ok(());
            }
            (own, all) => own.err().max(all.err()),
        };
        match fillings.all.take(cost, (whole / 2).max(cost), now) {
            Ok(all) => fillings.all = all,
            Err(besides) => {
                return Err(wait.map_or(besides, |wait| wait.min(besides)));
            }
        }
        Ok(())
    }

    pub(crate) fn quota(&self) -> Quota {
        self.quota
    }
}

/// A rate is higher than a clock of nanoseconds can tell.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("more than a token a nanosecond: lower the limit or lengthen the window")]
pub(crate) struct TooFast;
