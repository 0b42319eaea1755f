//! [`Rule`]: what mutes a sender, and for how long.

mod text;

use std::time::Duration;

use super::normalised::MAX_COMPARED;
use crate::quota::{LONGEST_WINDOW_US, Quota};
use crate::time::micros;

pub use self::text::ParseRuleError;

/// What a [`Rule`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Counted {
    /// Messages of any kind.
    Events,
    /// Different private-chat peers. Another message to the same peer updates the peer's timestamp and
    /// does not count again.
    DistinctPeers,
    /// Similar messages.
    Similar {
        /// The lowest similarity in percent, see [the module](crate::moderation#similar-messages).
        percent: u8,
    },
    /// Different senders of one text. The rule mutes the sender that completes it, and those after it.
    Campaign,
    /// Nothing: a mute of this rule was imposed by
    /// [`SpeechMonitor::mute`](crate::moderation::SpeechMonitor::mute). No other rule has it.
    Manual,
}

impl Counted {
    /// Returns the highest count that a rule may have. A store keeps as many entries of each sender.
    const fn max_count(self) -> u32 {
        match self {
            Self::Events | Self::DistinctPeers | Self::Campaign | Self::Manual => 1024,
            Self::Similar { .. } => MAX_TEXTS,
        }
    }

    const fn default_min_length(self) -> u16 {
        match self {
            Self::Similar { .. } => 9,
            Self::Campaign => 30,
            Self::Events | Self::DistinctPeers | Self::Manual => 0,
        }
    }
}

/// How many texts of a sender are kept for comparison.
pub(super) const MAX_TEXTS: u32 = 64;

/// A rule that mutes a sender for some time if a count within a window is reached.
///
/// With `5/5m` the fifth message within five minutes triggers the rule. The text form is
/// `KIND COUNT/WINDOW [PERCENT%] [min LENGTH] mute DURATION`. The kind is `events`, `peers`, `campaign`
/// or `similar`. Only `similar` has a percentage, and only `similar` and `campaign` have a
/// [minimum length](Rule::min_length):
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
/// assert_eq!("similar 5/5m 90% min 4 mute 12h".parse::<Rule>()?, same.min_length(4));
/// assert!("campaign 20/10m mute 1h".parse::<Rule>().is_ok());
/// assert!("peers 5/3m mute forever".parse::<Rule>().is_err());
/// # Ok::<(), tower_sliding_window::moderation::ParseRuleError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rule {
    counted: Counted,
    quota: Quota,
    min_length: u16,
    mute: Duration,
}

impl Rule {
    /// Creates a rule: a sender that reaches the limit of `quota` within its window is muted for `mute`.
    ///
    /// # Panics
    ///
    /// If [`Rule::try_new`] returns an error.
    #[track_caller]
    #[must_use]
    pub fn new(counted: Counted, quota: Quota, mute: Duration) -> Self {
        match Self::try_new(counted, quota, mute) {
            Ok(rule) => rule,
            Err(error) => panic!("{error}"),
        }
    }

    /// Creates a rule, or returns an error if it is invalid.
    ///
    /// # Errors
    ///
    /// A count of 1, which would mute every sender; one above 1024, or above 64 for similar messages;
    /// a percentage of 0 or above 100; a mute that is zero, longer than a hundred years, or not a
    /// whole number of microseconds.
    pub fn try_new(counted: Counted, quota: Quota, mute: Duration) -> Result<Self, RuleError> {
        let (count, most) = (quota.limit(), counted.max_count());
        match counted {
            Counted::Manual => Err(RuleError::Manual),
            _ if count < 2 => Err(RuleError::CountOfOne),
            _ if count > most => Err(RuleError::CountTooHigh { count, most }),
            Counted::Similar { percent } if !(1..=100).contains(&percent) => {
                Err(RuleError::Percent { percent })
            }
            _ if mute.is_zero() => Err(RuleError::ZeroMute),
            _ if mute.as_micros() > u128::from(LONGEST_WINDOW_US) => Err(RuleError::MuteTooLong),
            _ if !mute.subsec_nanos().is_multiple_of(1000) => Err(RuleError::FractionalMute),
            _ => Ok(Self { counted, quota, min_length: counted.default_min_length(), mute }),
        }
    }

    /// Returns the rule of a manual mute. For authors of stores, which keep it with the mute: a monitor
    /// ignores it among its rules.
    ///
    /// The length is rounded down to microseconds, and is at least one and at most a hundred years.
    #[must_use]
    pub fn manual(mute: Duration) -> Self {
        let mute = Duration::from_micros(micros(mute).clamp(1, LONGEST_WINDOW_US));
        let quota = Quota::new(1, Duration::from_micros(1));
        Self { counted: Counted::Manual, quota, min_length: 0, mute }
    }

    /// Sets how many letters and digits a [`normalised`](super::normalised) text must have to count in a
    /// rule about similar messages or campaigns. An ideograph counts as two. Defaults to 9 for similar
    /// messages and to 30 for campaigns.
    ///
    /// It keeps senders that often say `ok` or `thank you` from being muted. With 0, all texts count.
    ///
    /// # Panics
    ///
    /// If [`Rule::try_min_length`] returns an error.
    #[track_caller]
    #[must_use]
    pub fn min_length(self, characters: u16) -> Self {
        match self.try_min_length(characters) {
            Ok(rule) => rule,
            Err(error) => panic!("{error}"),
        }
    }

    /// Sets the minimum length as [`Rule::min_length`] does, or returns an error.
    ///
    /// # Errors
    ///
    /// If the rule is not about similar messages or campaigns, or the length is above 300, the number of
    /// characters that are compared.
    pub fn try_min_length(self, characters: u16) -> Result<Self, RuleError> {
        if self.default_min_length() == 0 {
            return Err(RuleError::MinLength);
        }
        if usize::from(characters) > MAX_COMPARED {
            return Err(RuleError::MinLengthTooHigh { characters });
        }
        Ok(Self { min_length: characters, ..self })
    }

    /// Returns four rules to start with.
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

    /// Returns what the rule counts.
    #[must_use]
    pub const fn counted(&self) -> Counted {
        self.counted
    }

    /// Returns the count that triggers the rule, or 1 for a manual mute.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.quota.limit()
    }

    /// Returns the length of the window.
    #[must_use]
    pub const fn window(&self) -> Duration {
        self.quota.window()
    }

    /// Returns the minimum length of a rule for which none is set, see [`Rule::min_length`].
    #[must_use]
    pub const fn default_min_length(&self) -> u16 {
        self.counted.default_min_length()
    }

    /// Returns how many letters and digits a text must have to count, see [`Rule::min_length`].
    #[must_use]
    pub const fn get_min_length(&self) -> u16 {
        self.min_length
    }

    /// Returns how long the rule mutes a sender.
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
    /// The first message of every sender would trigger the rule.
    #[error("the count is 1, which would mute every sender: it must be at least 2")]
    CountOfOne,
    /// The count is above the number of entries that are kept of each sender.
    #[error("the count {count} is too high: it must be at most {most}")]
    CountTooHigh {
        /// The given count.
        count: u32,
        /// The highest allowed count.
        most: u32,
    },
    /// The similarity is above 100 %, or 0 %, which all messages have.
    #[error("the similarity {percent}% is not from 1% to 100%")]
    Percent {
        /// The given percentage.
        percent: u8,
    },
    /// A rule that counts nothing never mutes. [`SpeechMonitor::mute`](super::SpeechMonitor::mute) does.
    #[error("a rule that counts nothing never mutes: use SpeechMonitor::mute")]
    Manual,
    /// The rule compares no texts.
    #[error("a minimum length is for rules about similar messages and campaigns only")]
    MinLength,
    /// No compared text is as long.
    #[error("the minimum length {characters} is too high: at most 300 characters are compared")]
    MinLengthTooHigh {
        /// The given length.
        characters: u16,
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
