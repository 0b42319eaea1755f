//! [`Rule`]: how much of what gets a sender muted for how long.

mod text;

use std::time::Duration;

use crate::quota::{LONGEST_WINDOW_US, Quota};

pub use self::text::ParseRuleError;

/// What a [`Rule`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Counted {
    /// Messages, whatever they say and to whom.
    Events,
    /// Private-chat peers. Another message to the same peer moves the peer's timestamp, and does not
    /// count again.
    DistinctPeers,
    /// Messages that are alike.
    Similar {
        /// How much, in percent: see [the module's page](crate::moderation#similar-messages).
        percent: u8,
    },
}

impl Counted {
    /// Returns the highest count a rule may have, for what is counted has to be kept.
    const fn most(self) -> u32 {
        match self {
            Self::Events | Self::DistinctPeers => 1024,
            Self::Similar { .. } => KEPT_TEXTS,
        }
    }
}

/// How many of a sender's texts are kept to be compared.
pub(super) const KEPT_TEXTS: u32 = 64;

/// A count within a window, and for how long it mutes.
///
/// The count is reached, not exceeded: with `5/5m` the fifth message within five minutes completes
/// the rule. Its text form is `KIND COUNT/WINDOW [PERCENT%] mute DURATION`, the kind `events`,
/// `peers` or `similar`, and only `similar` with a percentage:
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::Quota;
/// use tower_sliding_window::moderation::{Counted, Rule};
///
/// let rule: Rule = "similar 5/5m 90% mute 12h".parse()?;
/// let same = Rule::new(
///     Counted::Similar { percent: 90 },
///     Quota::new(5, Duration::from_secs(300)),
///     Duration::from_secs(12 * 3600),
/// );
/// assert_eq!(rule, same);
/// assert_eq!("events 20/10s mute 1h".parse::<Rule>()?.to_string(), "events 20/10s mute 1h");
/// assert!("peers 5/3m mute forever".parse::<Rule>().is_err());
/// # Ok::<(), tower_sliding_window::moderation::ParseRuleError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rule {
    counted: Counted,
    quota: Quota,
    mute: Duration,
}

impl Rule {
    /// Creates a rule: who reaches the count of `quota` within its window is muted for `mute`.
    ///
    /// # Panics
    ///
    /// Where [`Rule::try_new`] returns an error.
    #[track_caller]
    #[must_use]
    pub fn new(counted: Counted, quota: Quota, mute: Duration) -> Self {
        match Self::try_new(counted, quota, mute) {
            Ok(rule) => rule,
            Err(error) => panic!("{error}"),
        }
    }

    /// Creates a rule, or says what is wrong with it.
    ///
    /// # Errors
    ///
    /// A count of 1, which would mute everybody; one above 1024, or above 64 for similar messages;
    /// a percentage of 0 or above 100; a mute that is zero, longer than a hundred years, or not a
    /// whole number of microseconds.
    pub fn try_new(counted: Counted, quota: Quota, mute: Duration) -> Result<Self, RuleError> {
        let (count, most) = (quota.limit(), counted.most());
        match counted {
            _ if count < 2 => Err(RuleError::CountOfOne),
            _ if count > most => Err(RuleError::CountTooHigh { count, most }),
            Counted::Similar { percent } if !(1..=100).contains(&percent) => {
                Err(RuleError::Percent { percent })
            }
            _ if mute.is_zero() => Err(RuleError::ZeroMute),
            _ if mute.as_micros() > u128::from(LONGEST_WINDOW_US) => Err(RuleError::MuteTooLong),
            _ if !mute.subsec_nanos().is_multiple_of(1000) => Err(RuleError::FractionalMute),
            _ => Ok(Self { counted, quota, mute }),
        }
    }

    /// Returns the four rules to begin with.
    ///
    /// ```
    /// use tower_sliding_window::moderation::Rule;
    ///
    /// assert_eq!(Rule::recommended().map(|rule| rule.to_string()), [
    ///     "similar 5/300s 90% mute 12h",
    ///     "similar 3/60s 90% mute 6h",
    ///     "peers 5/180s mute 24h",
    ///     "peers 9/300s mute 48h",
    /// ]);
    /// ```
    #[must_use]
    pub fn recommended() -> [Self; 4] {
        let minutes = |count, minutes: u64| Quota::new(count, Duration::from_secs(minutes * 60));
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
        let similar = Counted::Similar { percent: 90 };
        [
            Self::new(similar, minutes(5, 5), hours(12)),
            Self::new(similar, minutes(3, 1), hours(6)),
            Self::new(Counted::DistinctPeers, minutes(5, 3), hours(24)),
            Self::new(Counted::DistinctPeers, minutes(9, 5), hours(48)),
        ]
    }

    /// Returns what is counted.
    #[must_use]
    pub const fn counted(&self) -> Counted {
        self.counted
    }

    /// Returns the count that completes the rule.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.quota.limit()
    }

    /// Returns the length of the window.
    #[must_use]
    pub const fn window(&self) -> Duration {
        self.quota.window()
    }

    /// Returns for how long the rule mutes.
    #[must_use]
    pub const fn mute(&self) -> Duration {
        self.mute
    }

    /// Returns the length of the window in microseconds.
    pub(super) const fn window_us(&self) -> u64 {
        self.quota.window_us()
    }

    /// Returns the length of the mute in microseconds.
    pub(super) const fn mute_us(&self) -> u64 {
        self.mute.as_micros() as u64
    }
}

/// What is wrong with a [`Rule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// Everybody's first message would complete the rule.
    #[error("the count is 1, which would mute everybody: it must be at least 2")]
    CountOfOne,
    /// More would have to be kept of each sender than is.
    #[error("the count {count} is too high: of these at most {most} are kept")]
    CountTooHigh {
        /// The count as it was given.
        count: u32,
        /// The highest there is.
        most: u32,
    },
    /// The similarity is no percentage, or one that all messages have.
    #[error("the similarity {percent}% is not from 1% to 100%")]
    Percent {
        /// The percentage as it was given.
        percent: u8,
    },
    /// The mute is zero, so the rule would do nothing.
    #[error("the mute is zero: it must be at least 1us")]
    ZeroMute,
    /// The mute is longer than a hundred years.
    #[error("the mute is longer than a hundred years")]
    MuteTooLong,
    /// The mute is not a whole number of microseconds, the resolution of Redis's clock.
    #[error("the mute is not a whole number of microseconds")]
    FractionalMute,
}
