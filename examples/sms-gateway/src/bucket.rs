//! [`Bucket`]: the global token bucket of this server.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use example_support::lock;
use tokio::time::Instant;
use tower_sliding_window::Quota;

/// How many institutions are remembered. Above that, those are forgotten that have all their tokens.
const MOST: usize = 2000;

/// Admits a number of parts in a length of time, and after a pause as many at once.
///
/// An equal portion of the tokens belongs to each institution. One that needs more uses those of the others
/// as long as the bucket has the portions of all others, so that none can empty it for them.
pub(crate) struct Bucket {
    pub(crate) quota: Quota,
    /// How long a token takes to come.
    period: Duration,
    epoch: Instant,
    filled: Mutex<Filled>,
}

/// When the bucket is full again, counted from the epoch. An earlier time is as good as now.
#[derive(Default)]
struct Filled {
    all: Duration,
    /// Of what belongs to each institution.
    own: HashMap<String, Duration>,
}

impl Bucket {
    /// Creates a bucket that is full.
    pub(crate) fn new(quota: Quota) -> Self {
        // The clock tells no shorter time.
        let period = (quota.window() / quota.limit()).max(Duration::from_nanos(1));
        Self { quota, period, epoch: Instant::now(), filled: Mutex::default() }
    }

    /// Takes a token for each part of a message of one of so many institutions, or none. Returns how long
    /// until there are enough. A message may not have more parts than the bucket holds tokens.
    pub(crate) fn take(
        &self,
        institution: &str,
        institutions: usize,
        parts: u32,
    ) -> Result<(), Duration> {
        let (now, cost) = (self.epoch.elapsed(), self.period * parts);
        let whole = self.period * self.quota.limit();
        // A portion holds as many times fewer tokens as they take longer to come.
        let institutions = u32::try_from(institutions).unwrap_or(u32::MAX).max(1);
        let own_cost = cost.saturating_mul(institutions);
        // Tokens that take `cost` to come again, from a bucket of which `room` may be empty. Or how long until it can be done.
        let take = |full_at: Duration, cost: Duration, room: Duration| {
            let full_at = full_at.max(now).saturating_add(cost);
            let wait = full_at.saturating_sub(now.saturating_add(room));
            if wait.is_zero() { Ok(full_at) } else { Err(wait) }
        };
        let mut filled = lock(&self.filled);
        let own = filled.own.get(institution).copied().unwrap_or_default();
        let own_taken = take(own, own_cost, whole.max(own_cost));
        let (own, all) = match (own_taken, take(filled.all, cost, whole)) {
            (Ok(own), Ok(all)) => (own, all),
            (taken, all) => {
                let wait = taken.err().max(all.err()).unwrap_or_default();
                let room = (whole / institutions).max(cost);
                let all = take(filled.all, cost, room).map_err(|it| it.min(wait))?;
                // What is left of its own portion is used first, for the others have no more than theirs.
                (own.max(now.saturating_add(whole)), all)
            }
        };
        if filled.own.len() >= MOST {
            filled.own.retain(|_, full_at| *full_at > now);
        }
        filled.own.insert(institution.to_owned(), own);
        filled.all = all;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn institutions_with_all_their_tokens_are_forgotten() {
        let bucket = Bucket::new("1000/1s".parse().unwrap());
        for number in 0..3 * MOST {
            bucket.take(&number.to_string(), 1, 1).unwrap();
            tokio::time::advance(Duration::from_millis(2)).await;
        }
        assert!(lock(&bucket.filled).own.len() <= MOST);
    }
}
