//! [`Penalty`]: who keeps running into a quota is sent away, for longer each time.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use uuid::Uuid;

use crate::quota::{ParseQuotaError, Quota};
use crate::time::micros;

/// The longest ban: a year.
pub(crate) const LONGEST_BAN: Duration = Duration::from_secs(365 * 24 * 3600);
/// The most levels of a levels, and the most strikes before a ban.
const MOST: usize = 100;
/// The text of a penalty that counts no strikes.
const BY_HAND: &str = "manual";
/// How long a key has to stay unbanned to come down a level, unless told otherwise.
const DEFAULT_DECAY: Duration = Duration::from_secs(24 * 3600);

/// So many strikes within a time, then a ban; the next one is longer.
///
/// A strike is one episode of running into the policy's quotas: the first denial counts, and no
/// other until as much time has passed as the longest quota is long that was full. So whoever
/// hammers on a `5/60s` gets one strike a minute, as does who came a sixth time once.
///
/// A ban is the next level of a levels. For each `decay` that a key stays unbanned after a ban it comes
/// down a level. A ban only ever lengthens, and hammering does not lengthen it.
///
/// [`Penalty::manual`] counts no strikes: it only has the bans enforced that
/// [`Bans::impose`](crate::Bans::impose) imposes.
///
/// Written `STRIKES/TIME:LEVEL,LEVEL,...`, or `manual`:
///
/// ```
/// use tower_sliding_window::{Penalty, Policy, Quota};
///
/// let penalty: Penalty = "3/10m:1m,1h,24h".parse()?;
/// assert_eq!(penalty.to_string(), "3/600s:60s,1h,24h");
/// let user = Policy::new("user").quota(Quota::per_minute(5)).penalty(penalty);
/// # Ok::<(), tower_sliding_window::ParsePenaltyError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Penalty {
    /// How many in which time are a ban. None if no strike is counted.
    strikes: Option<Quota>,
    levels: Vec<Duration>,
    decay: Duration,
    jitter_percent: u8,
}

impl Penalty {
    /// Creates a penalty: a ban when `strikes.limit()` strikes lie within `strikes.window()`. The
    /// first ban is as long as the first level, the next as the second, and so on; the last repeats.
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

    /// Creates a penalty, or says what is wrong with it.
    ///
    /// # Errors
    ///
    /// [`ParsePenaltyError`] if there are more than 100 strikes or levels, no level, or a level that
    /// is shorter than a second, longer than a year or shorter than the one before it.
    pub fn try_new(
        strikes: Quota,
        levels: impl IntoIterator<Item = Duration>,
    ) -> Result<Self, ParsePenaltyError> {
        let levels: Vec<Duration> = levels.into_iter().collect();
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

    /// Creates a penalty that counts no strikes: bans are imposed and lifted by hand alone.
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

    /// Sets how long a key has to stay unbanned to come down a level. Defaults to a day.
    #[must_use]
    pub fn decay(mut self, decay: Duration) -> Self {
        self.decay = decay.clamp(Duration::from_secs(1), LONGEST_BAN);
        self
    }

    /// Sets by how many percent a ban is lengthened at the most, at random, so that scripts that were
    /// banned together do not come back together. Defaults to 0; above 100 is 100.
    #[must_use]
    pub fn jitter(mut self, percent: u8) -> Self {
        self.jitter_percent = percent.min(100);
        self
    }

    /// Returns how many strikes within which time are a ban, if strikes are counted.
    #[must_use]
    pub fn strikes(&self) -> Option<Quota> {
        self.strikes
    }

    /// Returns how long the bans are, one after the other.
    #[must_use]
    pub fn levels(&self) -> &[Duration] {
        &self.levels
    }

    /// Returns how long the bans are for one request, one after the other, lengthened by its share of
    /// the jitter. Every store computes the same lengths from the request's identity.
    ///
    /// For authors of a [`Store`](crate::store::Store).
    #[must_use]
    pub fn ban_lengths(&self, id: Uuid) -> Vec<Duration> {
        self.ban_lengths_us(id).into_iter().map(Duration::from_micros).collect()
    }

    /// Returns how long a key has to stay unbanned to come down a level.
    #[must_use]
    pub fn decay_time(&self) -> Duration {
        self.decay
    }

    /// Returns how long a ban of strikes can be at the most, lengthened as far as it may be.
    #[cfg(feature = "redis")]
    pub(crate) fn longest_us(&self) -> u64 {
        2 * self.levels.last().map_or(0, |level| micros(*level))
    }

    pub(crate) fn decay_us(&self) -> u64 {
        micros(self.decay)
    }

    /// Returns the levels for one request, lengthened at random.
    pub(crate) fn ban_lengths_us(&self, id: Uuid) -> Vec<u64> {
        // The request's identity is random enough, and the same when it is asked again.
        let random = id.as_u64_pair().1 as u32;
        let share = f64::from(random) / f64::from(u32::MAX);
        let factor = 1.0 + f64::from(self.jitter_percent) / 100.0 * share;
        self.levels.iter().map(|level| micros(level.mul_f64(factor))).collect()
    }
}

impl fmt::Display for Penalty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(strikes) = self.strikes else { return f.write_str(BY_HAND) };
        write!(f, "{strikes}")?;
        for (index, level) in self.levels.iter().enumerate() {
            // A duration is written as in a quota.
            let quota = Quota::new(1, *level).to_string();
            let text = quota.split_once('/').map_or("", |(_, window)| window);
            write!(f, "{}{text}", if index == 0 { ':' } else { ',' })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Penalty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Penalty({self}, decay {:?}, jitter {} %)", self.decay, self.jitter_percent)
    }
}

impl FromStr for Penalty {
    type Err = ParsePenaltyError;

    fn from_str(text: &str) -> Result<Self, ParsePenaltyError> {
        if text.trim() == BY_HAND {
            return Ok(Self::manual());
        }
        let (strikes, levels) = text.split_once(':').ok_or(ParsePenaltyError::NoLevels)?;
        let strikes: Quota = strikes.trim().parse().map_err(ParsePenaltyError::Strikes)?;
        let level = |(index, level): (usize, &str)| {
            // A duration is read as in a quota.
            let quota: Result<Quota, _> = format!("1/{}", level.trim()).parse();
            let wrong = |source| ParsePenaltyError::Level { position: index + 1, source };
            quota.map(|quota| quota.window()).map_err(wrong)
        };
        let levels: Vec<Duration> =
            levels.split(',').enumerate().map(level).collect::<Result<_, _>>()?;
        Self::try_new(strikes, levels)
    }
}

/// What is wrong with a [`Penalty`] or its text.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ParsePenaltyError {
    /// There is no colon.
    #[error("write STRIKES/TIME:LEVEL,LEVEL,..., such as 3/10m:1m,1h,24h, or manual")]
    NoLevels,
    /// What stands before the colon can't be read.
    #[error("the strikes, before the colon: {0}")]
    Strikes(ParseQuotaError),
    /// A level can't be read.
    #[error("level number {position}: {source}")]
    Level {
        /// Which of the comma-separated levels, counted from 1.
        position: usize,
        /// What is wrong with it.
        source: ParseQuotaError,
    },
    /// Too many strikes.
    #[error("{strikes} strikes are too many: a ban comes after 1 to 100")]
    TooManyStrikes {
        /// How many.
        strikes: u32,
    },
    /// No level, or too many.
    #[error("a levels has 1 to 100 levels, not {levels}")]
    LevelCount {
        /// How many.
        levels: usize,
    },
    /// A level has a length that no level can have there.
    #[error(
        "level number {position} must be a second to a year long, and no shorter than the one before"
    )]
    LevelLength {
        /// Which of the levels, counted from 1.
        position: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_as_they_are_written() {
        for text in ["3/10m:60s,1h,24h", "1/1s:1s", "100/1h:30s,30s", "manual"] {
            let penalty: Penalty = text.parse().unwrap();
            assert_eq!(penalty.to_string().parse::<Penalty>().unwrap(), penalty);
        }
    }

    #[test]
    fn errors_say_which_part_is_wrong() {
        for (text, part) in [
            ("3/10m", "write STRIKES/TIME:LEVEL"),
            ("0/10m:1m", "the strikes, before the colon: the limit is zero"),
            ("3/10m:", "level number 1"),
            ("3/10m:1m,x", "level number 2"),
            ("3/10m:1h,1m", "level number 2 must be a second to a year long"),
            ("3/10m:10ms", "level number 1 must be a second"),
            ("3/10m:366d", "level number 1 must be a second to a year long"),
            ("101/10m:1m", "101 strikes are too many"),
        ] {
            let error = text.parse::<Penalty>().unwrap_err().to_string();
            assert!(error.starts_with(part), "{text}: {error}");
        }
    }

    #[test]
    fn jitter_only_lengthens_and_is_the_same_for_one_request() {
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
