//! [`Penalty`]: who keeps running into a quota is sent away, for longer each time.

mod standing;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use uuid::Uuid;

use crate::quota::{ParseQuotaError, Quota};
use crate::window::micros;
#[cfg(feature = "redis")]
pub(crate) use standing::REASON;
#[cfg(any(feature = "memory", feature = "contract"))]
pub(crate) use standing::Standing;
pub use standing::Struck;

/// The longest ban: a year.
pub(crate) const LONGEST_BAN: Duration = Duration::from_secs(365 * 24 * 3600);
/// The most rungs of a ladder, and the most strikes before a ban.
const MOST: usize = 100;
/// The text of a penalty that counts no strikes.
const BY_HAND: &str = "by-hand";
/// How long a key has to stay unbanned to come down a rung, unless told otherwise.
const DEFAULT_DECAY: Duration = Duration::from_secs(24 * 3600);

/// So many strikes within a time, then a ban; the next one is longer.
///
/// A strike is one episode of running into the policy's quotas: the first denial counts, and no
/// other until as much time has passed as the longest quota is long that was full. So whoever
/// hammers on a `5/60s` gets one strike a minute, as does who came a sixth time once.
///
/// A ban is the next rung of a ladder. For each `decay` that a key stays unbanned after a ban it comes
/// down a rung. A ban only ever lengthens, and hammering does not lengthen it.
///
/// [`Penalty::by_hand`] counts no strikes: it only has the bans enforced that
/// [`Bans::impose`](crate::Bans::impose) imposes.
///
/// Written `STRIKES/TIME:RUNG,RUNG,...`, or `by-hand`:
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
    ladder: Vec<Duration>,
    decay: Duration,
    jitter_percent: u8,
}

impl Penalty {
    /// Creates a penalty: a ban when `strikes.limit()` strikes lie within `strikes.window()`, as
    /// long as the rungs of the ladder, one after the other; the last one repeats.
    ///
    /// # Errors
    ///
    /// [`ParsePenaltyError`] if there are more than 100 strikes or rungs, no rung, or a rung that
    /// is shorter than a second, longer than a year or shorter than the one before it.
    pub fn new(
        strikes: Quota,
        ladder: impl IntoIterator<Item = Duration>,
    ) -> Result<Self, ParsePenaltyError> {
        let ladder: Vec<Duration> = ladder.into_iter().collect();
        if strikes.limit() as usize > MOST {
            return Err(ParsePenaltyError::TooManyStrikes { strikes: strikes.limit() });
        }
        if ladder.is_empty() || ladder.len() > MOST {
            return Err(ParsePenaltyError::Ladder { rungs: ladder.len() });
        }
        let mut least = Duration::from_secs(1);
        for (index, rung) in ladder.iter().enumerate() {
            if *rung < least || *rung > LONGEST_BAN {
                return Err(ParsePenaltyError::RungLength { position: index + 1 });
            }
            least = *rung;
        }
        Ok(Self { strikes: Some(strikes), ladder, decay: DEFAULT_DECAY, jitter_percent: 0 })
    }

    /// Creates a penalty that counts no strikes: bans are imposed and lifted by hand alone.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{Bans, Limiter, MemoryStore, Penalty, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_sliding_window::StoreError> {
    /// let user = Policy::new("user").quota(Quota::per_minute(5)).penalty(Penalty::by_hand());
    /// let store = MemoryStore::new();
    /// let bans = Bans::new(user.clone(), store.clone());
    /// bans.impose("mallory", Duration::from_secs(3600), "sells accounts").await?;
    /// assert!(!Limiter::new(user, store).check("mallory").await?.is_admitted());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn by_hand() -> Self {
        Self { strikes: None, ladder: Vec::new(), decay: DEFAULT_DECAY, jitter_percent: 0 }
    }

    /// Sets how long a key has to stay unbanned to come down a rung. Defaults to a day.
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
    pub fn ladder(&self) -> &[Duration] {
        &self.ladder
    }

    /// Returns how long the bans are for one request, one after the other, lengthened by its share of
    /// the jitter. Every store computes the same lengths from the request's identity.
    ///
    /// For authors of a [`Store`](crate::store::Store).
    #[must_use]
    pub fn ban_lengths(&self, id: Uuid) -> Vec<Duration> {
        self.rungs_us(id).into_iter().map(Duration::from_micros).collect()
    }

    /// Returns how long a key has to stay unbanned to come down a rung.
    #[must_use]
    pub fn decay_time(&self) -> Duration {
        self.decay
    }

    /// Returns how long a ban of strikes can be at the most, lengthened as far as it may be.
    #[cfg(feature = "redis")]
    pub(crate) fn longest_us(&self) -> u64 {
        2 * self.ladder.last().map_or(0, |rung| micros(*rung))
    }

    pub(crate) fn decay_us(&self) -> u64 {
        micros(self.decay)
    }

    /// Returns the rungs for one request, lengthened at random.
    pub(crate) fn rungs_us(&self, id: Uuid) -> Vec<u64> {
        // The request's identity is random enough, and the same when it is asked again.
        let random = id.as_u64_pair().1 as u32;
        let share = f64::from(random) / f64::from(u32::MAX);
        let factor = 1.0 + f64::from(self.jitter_percent) / 100.0 * share;
        self.ladder.iter().map(|rung| micros(rung.mul_f64(factor))).collect()
    }
}

impl fmt::Display for Penalty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(strikes) = self.strikes else { return f.write_str(BY_HAND) };
        write!(f, "{strikes}")?;
        for (index, rung) in self.ladder.iter().enumerate() {
            // A duration is written as in a quota.
            let quota = Quota::new(1, *rung).to_string();
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
            return Ok(Self::by_hand());
        }
        let (strikes, ladder) = text.split_once(':').ok_or(ParsePenaltyError::NoLadder)?;
        let strikes: Quota = strikes.trim().parse().map_err(ParsePenaltyError::Strikes)?;
        let rung = |(index, rung): (usize, &str)| {
            // A duration is read as in a quota.
            let quota: Result<Quota, _> = format!("1/{}", rung.trim()).parse();
            let wrong = |source| ParsePenaltyError::Rung { position: index + 1, source };
            quota.map(|quota| quota.window()).map_err(wrong)
        };
        let ladder: Vec<Duration> =
            ladder.split(',').enumerate().map(rung).collect::<Result<_, _>>()?;
        Self::new(strikes, ladder)
    }
}

/// What is wrong with a [`Penalty`] or its text.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ParsePenaltyError {
    /// There is no colon.
    #[error("write STRIKES/TIME:RUNG,RUNG,..., such as 3/10m:1m,1h,24h, or by-hand")]
    NoLadder,
    /// What stands before the colon can't be read.
    #[error("the strikes, before the colon: {0}")]
    Strikes(ParseQuotaError),
    /// A rung can't be read.
    #[error("rung number {position}: {source}")]
    Rung {
        /// Which of the comma-separated rungs, counted from 1.
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
    /// No rung, or too many.
    #[error("a ladder has 1 to 100 rungs, not {rungs}")]
    Ladder {
        /// How many.
        rungs: usize,
    },
    /// A rung has a length that no rung can have there.
    #[error(
        "rung number {position} must be a second to a year long, and no shorter than the one before"
    )]
    RungLength {
        /// Which of the rungs, counted from 1.
        position: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_as_they_are_written() {
        for text in ["3/10m:60s,1h,24h", "1/1s:1s", "100/1h:30s,30s", "by-hand"] {
            let penalty: Penalty = text.parse().unwrap();
            assert_eq!(penalty.to_string().parse::<Penalty>().unwrap(), penalty);
        }
    }

    #[test]
    fn errors_say_which_part_is_wrong() {
        for (text, part) in [
            ("3/10m", "write STRIKES/TIME:RUNG"),
            ("0/10m:1m", "the strikes, before the colon: the limit is zero"),
            ("3/10m:", "rung number 1"),
            ("3/10m:1m,x", "rung number 2"),
            ("3/10m:1h,1m", "rung number 2 must be a second to a year long"),
            ("3/10m:10ms", "rung number 1 must be a second"),
            ("3/10m:366d", "rung number 1 must be a second to a year long"),
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
            let rungs = penalty.rungs_us(id);
            assert_eq!(rungs, penalty.rungs_us(id));
            assert!((60_000_000..=90_000_000).contains(&rungs[0]), "{rungs:?}");
            seen.insert(rungs[0]);
        }
        assert!(seen.len() > 90);
        let id = Uuid::from_u64_pair(0, u64::MAX);
        for (percent, longest) in [(100, 120_000_000), (255, 120_000_000)] {
            assert_eq!(penalty.clone().jitter(percent).rungs_us(id)[0], longest);
        }
    }
}
