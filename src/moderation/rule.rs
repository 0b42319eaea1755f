//! [`Rule`]: how much of what gets a sender muted for how long.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::quota::{LONGEST_WINDOW_US, ParseQuotaError, Quota, Span, parse_window};

/// What a [`Rule`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Counted {
    /// Messages, whatever they say and to whom.
    Events,
    /// Private-chat peers. Another message to the same peer moves the peer's stamp, and does not
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

impl fmt::Display for Rule {
    /// Writes the rule as [`Rule::from_str`] reads it, times as [`Quota`] writes them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quota = self.quota;
        match self.counted {
            Counted::Events => write!(f, "events {quota}"),
            Counted::DistinctPeers => write!(f, "peers {quota}"),
            Counted::Similar { percent } => write!(f, "similar {quota} {percent}%"),
        }?;
        write!(f, " mute {}", Span(self.mute_us()))
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rule({self})")
    }
}

impl FromStr for Rule {
    type Err = ParseRuleError;

    fn from_str(text: &str) -> Result<Self, ParseRuleError> {
        let parts: Vec<&str> = text.split_whitespace().collect();
        let (kind, quota, percent, mute) = match parts[..] {
            [kind @ "similar", quota, percent, "mute", mute] => (kind, quota, Some(percent), mute),
            [kind @ ("events" | "peers"), quota, "mute", mute] => (kind, quota, None, mute),
            ["events" | "peers" | "similar", ..] | [] => {
                return Err(ParseRuleError::Shape { text: text.to_owned() });
            }
            [kind, ..] => return Err(ParseRuleError::Kind { text: kind.to_owned() }),
        };
        let counted = match (kind, percent) {
            ("events", _) => Counted::Events,
            (_, None) => Counted::DistinctPeers,
            (_, Some(percent)) => {
                let number = percent.strip_suffix('%').and_then(|number| number.parse().ok());
                let wrong = || ParseRuleError::Percent { text: percent.to_owned() };
                Counted::Similar { percent: number.ok_or_else(wrong)? }
            }
        };
        let quota = quota.parse().map_err(ParseRuleError::Quota)?;
        let mute =
            parse_window(mute).ok_or_else(|| ParseRuleError::Mute { text: mute.to_owned() })?;
        Ok(Self::try_new(counted, quota, mute)?)
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

/// What is wrong with the text of a [`Rule`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseRuleError {
    /// The text has not the parts of a rule.
    #[error(
        "{text:?} is not a rule: write `events COUNT/WINDOW mute DURATION`, `peers COUNT/WINDOW \
         mute DURATION` or `similar COUNT/WINDOW PERCENT% mute DURATION`"
    )]
    Shape {
        /// The text as it was given.
        text: String,
    },
    /// The first word is not what a rule can count.
    #[error("the kind {text:?} is none of events, peers and similar")]
    Kind {
        /// The word as it was given.
        text: String,
    },
    /// The count or the window can't be read.
    #[error(transparent)]
    Quota(ParseQuotaError),
    /// The similarity is no percentage.
    #[error("the similarity {text:?} is not a whole number with a percent sign, such as 90%")]
    Percent {
        /// The part as it was given.
        text: String,
    },
    /// What follows `mute` is not a length of time.
    #[error("the mute {text:?} is not a whole number of us, ms, s, m, h or d, such as 12h")]
    Mute {
        /// The part as it was given.
        text: String,
    },
    /// All parts can be read, but make no rule.
    #[error(transparent)]
    Rule(#[from] RuleError),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_round_trips() {
        for text in
            ["events 20/10s mute 1h", "peers 9/300s mute 48h", "similar 2/1us 100% mute 5ms"]
        {
            let rule: Rule = text.parse().unwrap();
            assert_eq!(rule.to_string(), text);
            assert_eq!(rule.to_string().parse::<Rule>().unwrap(), rule);
        }
        let spaced: Rule = "  similar  5/5m   90%  mute 12h ".parse().unwrap();
        assert_eq!(spaced, Rule::recommended()[0]);
    }

    #[test]
    fn the_recommended_rules_are_those_of_the_design() {
        let texts = [
            "similar 5/5m 90% mute 12h",
            "similar 3/1m 90% mute 6h",
            "peers 5/3m mute 24h",
            "peers 9/5m mute 48h",
        ];
        assert_eq!(texts.map(|text| text.parse::<Rule>().unwrap()), Rule::recommended());
    }

    #[test]
    fn errors_name_the_part_that_is_wrong() {
        for (text, part) in [
            ("", "is not a rule"),
            ("similar 5/5m mute 12h", "\"similar 5/5m mute 12h\" is not a rule"),
            ("events 20/10s 90% mute 1h", "is not a rule"),
            ("events 20/10s", "is not a rule"),
            ("peers 5/3m ban 24h", "is not a rule"),
            ("words 5/5m mute 12h", "kind \"words\""),
            ("events five/5m mute 12h", "limit \"five\""),
            ("events 0/5m mute 12h", "limit is zero"),
            ("events 5/5 mute 12h", "window \"5\""),
            ("events 5 mute 12h", "LIMIT/WINDOW"),
            ("similar 5/5m 90 mute 12h", "similarity \"90\""),
            ("similar 5/5m -1% mute 12h", "similarity \"-1%\""),
            ("similar 5/5m 0% mute 12h", "similarity 0%"),
            ("similar 5/5m 101% mute 12h", "similarity 101%"),
            ("similar 5/5m 256% mute 12h", "similarity \"256%\""),
            ("similar 65/5m 90% mute 12h", "count 65"),
            ("events 1025/5m mute 12h", "count 1025"),
            ("peers 1/5m mute 12h", "count is 1"),
            ("peers 5/5m mute forever", "mute \"forever\""),
            ("peers 5/5m mute 0s", "mute is zero"),
            ("peers 5/5m mute 73000d", "mute is longer"),
        ] {
            let error = text.parse::<Rule>().unwrap_err().to_string();
            assert!(error.contains(part), "{text:?}: {error}");
        }
        let mute = Duration::from_nanos(1_500);
        let error = Rule::try_new(Counted::Events, Quota::per_second(2), mute).unwrap_err();
        assert_eq!(error, RuleError::FractionalMute);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_rule_reads_back_what_it_writes(
            kind in 0..3, count in 2..=64_u32, percent in 1..=100_u8,
            window_us in 1..=LONGEST_WINDOW_US, mute_us in 1..=LONGEST_WINDOW_US,
        ) {
            let similar = Counted::Similar { percent };
            let counted = [Counted::Events, Counted::DistinctPeers, similar][kind];
            let quota = Quota::new(count, Duration::from_micros(window_us));
            let rule = Rule::new(counted, quota, Duration::from_micros(mute_us));
            prop_assert_eq!(rule.to_string().parse(), Ok(rule));
        }

        #[test]
        fn no_text_makes_the_parser_panic(
            text in "((events|peers|similar|\\PC{0,9}) ?){0,2}[0-9/smh%\\-+ ]{0,12}( mute)? ?\\PC{0,9}",
        ) {
            if let Ok(rule) = text.parse::<Rule>() {
                prop_assert_eq!(rule.to_string().parse(), Ok(rule));
            }
        }
    }
}
