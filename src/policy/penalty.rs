//! [`Penalty`]: bans for keys that are denied repeatedly.

use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::ParsePenaltyError;
use crate::error::or_panic;
use crate::quota::{Quota, Span};
use crate::time::micros;

/// The longest ban: a year.
pub(crate) const LONGEST_BAN: Duration = Duration::from_secs(365 * 24 * 3600);
const MOST: usize = 100;
const DEFAULT_DECAY: Duration = Duration::from_secs(24 * 3600);
const MANUAL: &str = "manual";
const DECAY: &str = "decay";

/// A ban after a number of strikes within a time. Later bans are longer.
///
/// A strike is an episode of denials by the policy's quotas. The first denial is the strike. The
/// episode lasts as long as the longest window among the quotas that were full, and further denials in
/// it are no strikes. So under `5/60s`, a client that never stops sending gets one strike a minute, and
/// a client that sends a sixth request once gets one strike. Ten strikes within a minute never come there, and a policy with
/// such a penalty is warned of. The guide has
/// [a ban after so many denials](crate::docs::which_tool#a-ban-after-so-many-denials).
///
/// A request that several policies deny is a strike under each of them, whichever comes first. While the denial by one
/// is [repeated from memory](crate::RedisStoreBuilder::deny_cache), the others count none, for at most a second. On a
/// Cluster, if the keys are in several slots, only the policies of one key that denies count one, and none while a key whose
/// policies have no penalty denies. In an outage, the denials by a [share](crate::FailurePolicy::Local) of the limits are none.
///
/// The lengths of the bans are the levels. The first ban has the length of the first level, the next
/// ban that of the next level, and the last level repeats. A key comes down one level for each `decay`
/// that passes after its ban without a new one. A ban can become longer but not shorter, and denials
/// during a ban do not make it longer.
///
/// [`Penalty::manual`] counts no strikes. It enforces only the bans that
/// [`Bans::impose`](crate::Bans::impose) imposes.
///
/// The text form is `STRIKES/TIME:LENGTH,LENGTH,...` or `manual`, and after that `decay LENGTH`, unless it has
/// its default:
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::{Penalty, Policy, Quota};
///
/// let penalty: Penalty = "3/10m:1m,1h,24h".parse()?;
/// assert_eq!(penalty.to_string(), "3/600s:60s,1h,24h");
/// let patient = penalty.clone().decay(Duration::from_secs(7 * 86_400));
/// assert_eq!("3/10m:1m,1h,24h decay 7d".parse(), Ok(patient));
/// let user = Policy::new("user").quota(Quota::per_minute(5)).penalty(penalty);
/// # Ok::<(), tower_sliding_window::ParsePenaltyError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
#[must_use]
pub struct Penalty {
    /// How many strikes within what time cause a ban. `None` if strikes are not counted.
    strikes: Option<Quota>,
    levels: Vec<Duration>,
    decay: Duration,
}

impl Penalty {
    /// Creates a penalty: a ban when `strikes.limit()` strikes lie within `strikes.window()`. The levels
    /// are the lengths of the first ban, the second, and so on, rounded down to microseconds. The last
    /// level repeats.
    ///
    /// # Panics
    ///
    /// Where [`Penalty::try_new`] returns an error.
    #[track_caller]
    pub fn new(strikes: Quota, levels: impl IntoIterator<Item = Duration>) -> Self {
        or_panic(Self::try_new(strikes, levels))
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
        Ok(Self { strikes: Some(strikes), levels, decay: DEFAULT_DECAY })
    }

    /// Creates a penalty that counts no strikes: only [`Bans`](crate::Bans) imposes and lifts bans.
    pub const fn manual() -> Self {
        Self { strikes: None, levels: Vec::new(), decay: DEFAULT_DECAY }
    }

    /// Sets how long a key must stay unbanned to come down one level. Defaults to a day; at least a
    /// second and at most a year.
    pub fn decay(mut self, decay: Duration) -> Self {
        self.decay = whole_micros(decay).clamp(Duration::from_secs(1), LONGEST_BAN);
        self
    }

    /// Returns how many strikes within what time cause a ban, or `None` if strikes are not counted.
    pub fn strikes(&self) -> Option<Quota> {
        self.strikes
    }

    /// Returns the lengths of the bans: of the first one, the second, and so on. The last one repeats.
    pub fn levels(&self) -> &[Duration] {
        &self.levels
    }

    /// Returns how long a key must stay unbanned to come down one level.
    pub fn decay_time(&self) -> Duration {
        self.decay
    }

    pub(super) fn without_strikes(&self) -> Self {
        Self { strikes: None, ..self.clone() }
    }

    /// Orders penalties, the severest first.
    pub(super) fn severity(&self) -> impl Ord + use<'_> {
        let strikes = self.strikes.map_or((u32::MAX, Reverse(0)), |strikes| {
            (strikes.limit(), Reverse(strikes.window_us()))
        });
        (strikes, Reverse(&self.levels), Reverse(self.decay))
    }

    pub(crate) fn decay_us(&self) -> u64 {
        micros(self.decay)
    }
}

impl fmt::Display for Penalty {
    /// Writes the penalty in the form that [`Penalty::from_str`] parses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.strikes {
            None => f.write_str(MANUAL)?,
            Some(strikes) => write!(f, "{strikes}")?,
        }
        for (index, level) in self.levels.iter().enumerate() {
            write!(f, "{}{}", if index == 0 { ':' } else { ',' }, Span(micros(*level)))?;
        }
        if self.decay != DEFAULT_DECAY {
            write!(f, " {DECAY} {}", Span(self.decay_us()))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Penalty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Penalty({self})")
    }
}

impl FromStr for Penalty {
    type Err = ParsePenaltyError;

    fn from_str(text: &str) -> Result<Self, ParsePenaltyError> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let decay_at = words.iter().position(|word| *word == DECAY).unwrap_or(words.len());
        let (bans, decay) = words.split_at(decay_at);
        let penalty = read_bans(&bans.join(" "))?;
        match *decay {
            [] => Ok(penalty),
            [_, length] => Ok(penalty.decay(read_decay(length)?)),
            _ => Err(ParsePenaltyError::Option { text: decay.join(" ") }),
        }
    }
}

/// Reads `STRIKES/TIME:LENGTH,LENGTH,...` or `manual`.
fn read_bans(text: &str) -> Result<Penalty, ParsePenaltyError> {
    if text == MANUAL {
        return Ok(Penalty::manual());
    }
    let (strikes, levels) = text.split_once(':').ok_or(ParsePenaltyError::NoLevels)?;
    let strikes: Quota = strikes.trim().parse().map_err(ParsePenaltyError::Strikes)?;
    let level = |(index, level): (usize, &str)| {
        let wrong = |error| ParsePenaltyError::Level { position: index + 1, error };
        level.parse().map(|Span(us)| Duration::from_micros(us)).map_err(wrong)
    };
    let levels: Vec<Duration> =
        levels.split(',').enumerate().map(level).collect::<Result<_, _>>()?;
    Penalty::try_new(strikes, levels)
}

fn read_decay(text: &str) -> Result<Duration, ParsePenaltyError> {
    let allowed = Duration::from_secs(1)..=LONGEST_BAN;
    let decay = text.parse().map(|Span(us)| Duration::from_micros(us)).ok();
    let decay = decay.filter(|decay| allowed.contains(decay));
    decay.ok_or_else(|| ParsePenaltyError::Decay { text: text.to_owned() })
}

/// Drops what is below a microsecond, the resolution of every store.
fn whole_micros(time: Duration) -> Duration {
    Duration::from_micros(micros(time))
}
