//! [`Penalty`]: bans for keys that are denied repeatedly.

mod text;

use std::cmp::Reverse;
use std::time::Duration;

use uuid::Uuid;

use super::ParsePenaltyError;
use crate::quota::Quota;
use crate::time::micros;

/// The longest ban: a year.
pub(crate) const LONGEST_BAN: Duration = Duration::from_secs(365 * 24 * 3600);
const MOST: usize = 100;
const DEFAULT_DECAY: Duration = Duration::from_secs(24 * 3600);

/// A ban after a number of strikes within a time. Later bans are longer.
///
/// A strike is an episode of denials by the policy's quotas. The first denial is the strike. The
/// episode lasts as long as the longest window among the quotas that were full, and further denials in
/// it are no strikes. So under `5/60s`, a client that never stops sending gets one strike a minute, and
/// a client that sends a sixth request once gets one strike.
///
/// The lengths of the bans are the levels. The first ban has the length of the first level, the next
/// ban that of the next level, and the last level repeats. A key comes down one level for each `decay`
/// that passes after its ban without a new one. A ban can become longer but not shorter, and denials
/// during a ban do not make it longer.
///
/// [`Penalty::manual`] counts no strikes. It enforces only the bans that
/// [`Bans::impose`](crate::Bans::impose) imposes.
///
/// The text form is `STRIKES/TIME:LENGTH,LENGTH,...` or `manual`, and after that, unless they have
/// their defaults, `decay LENGTH` and `jitter PERCENT%`:
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::{Penalty, Policy, Quota};
///
/// let penalty: Penalty = "3/10m:1m,1h,24h".parse()?;
/// assert_eq!(penalty.to_string(), "3/600s:60s,1h,24h");
/// let spread = penalty.clone().decay(Duration::from_secs(7 * 86_400)).jitter(20);
/// assert_eq!("3/10m:1m,1h,24h decay 7d jitter 20%".parse(), Ok(spread));
/// let user = Policy::new("user").quota(Quota::per_minute(5)).penalty(penalty);
/// # Ok::<(), tower_sliding_window::ParsePenaltyError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Penalty {
    /// How many strikes within what time cause a ban. `None` if strikes are not counted.
    strikes: Option<Quota>,
    levels: Vec<Duration>,
    decay: Duration,
    jitter_percent: u8,
}

impl Penalty {
    /// Creates a penalty: a ban when `strikes.limit()` strikes lie within `strikes.window()`. The levels
    /// are the lengths of the first ban, the second, and so on, rounded down to microseconds. The last
    /// level repeats.
    ///
    /// # Panics
    ///
    /// Where [`Penalty::try_new`] returns an error.
    #[must_use]
    #[track_caller]
    pub fn new(strikes: Quota, levels: impl IntoIterator<Item = Duration>) -> Self {
        match Self::try_new(strikes, levels) {
            Ok(penalty) => penalty,
            Err(error) => panic!("{error}"),
        }
    }

    /// Creates a penalty, or returns an error.
    ///
    /// # Errors
    ///
    /// [`ParsePenaltyError`] if there are more than 100 strikes or levels, no level, or a level that
    /// is shorter than a second, longer than a year or shorter than the one before it.
    pub fn try_new(
        strikes: Quota,
        levels: impl IntoIterator<Item = Duration>,
    ) -> Result<Self, ParsePenaltyError> {
        let levels: Vec<Duration> = levels.into_iter().map(whole_micros).collect();
        if strikes.limit() as usize > MOST {
            return Err(ParsePenaltyError::TooManyStrikes { strikes: strikes.limit() });
        }
        if levels.is_empty() || levels.len() > MOST {
            return Err(ParsePenaltyError::LevelCount { levels: levels.len() });
        }
        let mut least = Duration::from_secs(1);
        for (index, level) in levels.iter().enumerate() {
            if *level < least || *level > LONGEST_BAN {
                return Err(ParsePenaltyError::LevelLength { position: index + 1 });
            }
            least = *level;
        }
        Ok(Self { strikes: Some(strikes), levels, decay: DEFAULT_DECAY, jitter_percent: 0 })
    }

    /// Creates a penalty that counts no strikes: only [`Bans`](crate::Bans) imposes and lifts bans.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{Bans, Limiter, MemoryStore, Penalty, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_sliding_window::StoreError> {
    /// let user = Policy::new("user").quota(Quota::per_minute(5)).penalty(Penalty::manual());
    /// let store = MemoryStore::new();
    /// let bans = Bans::new(user.clone(), store.clone());
    /// bans.impose("mallory", Duration::from_secs(3600), "sells accounts").await?;
    /// assert!(!Limiter::new(user, store).check("mallory").await?.is_admitted());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn manual() -> Self {
        Self { strikes: None, levels: Vec::new(), decay: DEFAULT_DECAY, jitter_percent: 0 }
    }

    /// Sets how long a key must stay unbanned to come down one level. Defaults to a day; at least a
    /// second and at most a year.
    #[must_use]
    pub fn decay(mut self, decay: Duration) -> Self {
        self.decay = whole_micros(decay).clamp(Duration::from_secs(1), LONGEST_BAN);
        self
    }

    /// Sets by how many percent at most a ban is lengthened at random, so that scripts that were banned
    /// together do not return together. Defaults to 0. A value above 100 counts as 100.
    #[must_use]
    pub fn jitter(mut self, percent: u8) -> Self {
        self.jitter_percent = percent.min(100);
        self
    }

    /// Returns how many strikes within what time cause a ban, or `None` if strikes are not counted.
    #[must_use]
    pub fn strikes(&self) -> Option<Quota> {
        self.strikes
    }

    /// Returns the lengths of the bans, without jitter.
    #[must_use]
    pub fn levels(&self) -> &[Duration] {
        &self.levels
    }

    /// Returns the lengths of the bans with the jitter of one request. It depends only on the request's
    /// identity, so every store computes the same lengths.
    ///
    /// For authors of a [`Store`](crate::store::Store).
    #[must_use]
    pub fn ban_lengths(&self, id: Uuid) -> Vec<Duration> {
        self.ban_lengths_us(id).into_iter().map(Duration::from_micros).collect()
    }

    /// Returns how long a key must stay unbanned to come down one level.
    #[must_use]
    pub fn decay_time(&self) -> Duration {
        self.decay
    }

    /// Orders penalties, the severest first.
    pub(super) fn severity(&self) -> impl Ord + use<'_> {
        let strikes = self.strikes.map_or((u32::MAX, Reverse(0)), |strikes| {
            (strikes.limit(), Reverse(strikes.window_us()))
        });
        (strikes, Reverse(&self.levels), Reverse(self.decay), Reverse(self.jitter_percent))
    }

    #[cfg(feature = "redis")]
    pub(crate) fn longest_us(&self) -> u64 {
        2 * self.levels.last().map_or(0, |level| micros(*level))
    }

    pub(crate) fn decay_us(&self) -> u64 {
        micros(self.decay)
    }

    pub(crate) fn ban_lengths_us(&self, id: Uuid) -> Vec<u64> {
        // The identity is random enough, and a repeated check has the same one.
        let random = id.as_u64_pair().1 as u32;
        let share = f64::from(random) / f64::from(u32::MAX);
        let factor = 1.0 + f64::from(self.jitter_percent) / 100.0 * share;
        self.levels.iter().map(|level| micros(level.mul_f64(factor))).collect()
    }
}

/// Drops what is below a microsecond, the resolution of every store.
fn whole_micros(time: Duration) -> Duration {
    Duration::from_micros(micros(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_lengthens_by_the_request_identity() {
        let penalty = "3/10m:1m,1h".parse::<Penalty>().unwrap().jitter(50);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..100 {
            let id = Uuid::new_v4();
            let levels = penalty.ban_lengths_us(id);
            assert_eq!(levels, penalty.ban_lengths_us(id));
            assert!((60_000_000..=90_000_000).contains(&levels[0]), "{levels:?}");
            seen.insert(levels[0]);
        }
        assert!(seen.len() > 90);
        let id = Uuid::from_u64_pair(0, u64::MAX);
        for (percent, longest) in [(100, 120_000_000), (255, 120_000_000)] {
            assert_eq!(penalty.clone().jitter(percent).ban_lengths_us(id)[0], longest);
        }
    }
}
