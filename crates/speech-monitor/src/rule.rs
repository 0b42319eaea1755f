//! [`Rule`]: what mutes a sender, and for how long.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tower_sliding_window::{ParseQuotaError, Quota, QuotaError};

use crate::normalised::MAX_COMPARED;

/// How many texts of a sender are kept for comparison.
pub(crate) const MAX_TEXTS: u32 = 64;
/// How many messages and peers of a sender are kept.
const MAX_ENTRIES: u32 = 1024;
/// The longest mute: as long as the longest ban of the core.
const LONGEST_MUTE: Duration = Duration::from_secs(365 * 24 * 3600);

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
        /// The lowest similarity in percent, see [the crate](crate#similar-messages).
        percent: u8,
    },
    /// Different senders of one text. The rule mutes the sender that completes it, and those after it.
    Campaign,
}

impl Counted {
    const fn default_min_length(self) -> u16 {
        match self {
            Self::Similar { .. } => 9,
            Self::Campaign => 30,
            Self::Events | Self::DistinctPeers => 0,
        }
    }
}

/// A rule that mutes a sender for some time if a count within a window is reached.
///
/// With `5/5m` the fifth message within five minutes triggers the rule. The text form is
/// `KIND COUNT/WINDOW [PERCENT%] [min LENGTH] mute DURATION`. The kind is `events`, `peers`, `campaign`
/// or `similar`. Only `similar` has a percentage, and only `similar` and `campaign` have a
/// [minimum length](Rule::min_length):
///
/// ```
/// use std::time::Duration;
/// use speech_monitor::{Counted, ParseRuleError, Rule};
/// use tower_sliding_window::Quota;
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
/// # Ok::<(), ParseRuleError>(())
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
    /// a percentage of 0 or above 100; a mute that is zero, longer than a year, or not a whole number of
    /// microseconds.
    pub fn try_new(counted: Counted, quota: Quota, mute: Duration) -> Result<Self, RuleError> {
        let similar = matches!(counted, Counted::Similar { .. });
        let (count, most) = (quota.limit(), if similar { MAX_TEXTS } else { MAX_ENTRIES });
        match counted {
            _ if count < 2 => return Err(RuleError::CountOfOne),
            _ if count > most => return Err(RuleError::CountTooHigh { count, most }),
            Counted::Similar { percent } if !(1..=100).contains(&percent) => {
                return Err(RuleError::Percent { percent });
            }
            _ => {}
        }
        match Quota::try_new(1, mute) {
            Ok(_) if mute <= LONGEST_MUTE => {
                Ok(Self { counted, quota, min_length: counted.default_min_length(), mute })
            }
            Err(QuotaError::ZeroWindow) => Err(RuleError::ZeroMute),
            Err(QuotaError::FractionalWindow) => Err(RuleError::FractionalMute),
            _ => Err(RuleError::MuteTooLong),
        }
    }

    /// Sets how many letters and digits a [`normalised`](crate::normalised) text must have to count in a
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
        if !self.compares_texts() {
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
    /// assert_eq!(speech_monitor::Rule::recommended().map(|rule| rule.to_string()), [
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

    /// Returns the count that triggers the rule.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.quota.limit()
    }

    /// Returns the length of the window.
    #[must_use]
    pub const fn window(&self) -> Duration {
        self.quota.window()
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

    pub(crate) const fn compares_texts(&self) -> bool {
        self.counted.default_min_length() > 0
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
    /// The mute is longer than a year.
    #[error("the mute is longer than a year")]
    MuteTooLong,
    /// The mute is not a whole number of microseconds, the resolution of Redis's clock.
    #[error("the mute is not a whole number of microseconds")]
    FractionalMute,
}

impl fmt::Display for Rule {
    /// Writes the rule in the form that [`Rule::from_str`] reads, with times as in [`Quota`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quota = self.quota;
        match self.counted {
            Counted::Events => write!(f, "events {quota}"),
            Counted::DistinctPeers => write!(f, "peers {quota}"),
            Counted::Campaign => write!(f, "campaign {quota}"),
            Counted::Similar { percent } => write!(f, "similar {quota} {percent}%"),
        }?;
        if self.min_length != self.counted.default_min_length() {
            write!(f, " min {}", self.min_length)?;
        }
        write!(f, " mute {}", span(self.mute))
    }
}

/// Returns the text of a length of time, as in that of a quota.
pub(crate) fn span(time: Duration) -> String {
    Quota::try_new(1, time)
        .map_or_else(|_| format!("{time:?}"), |it| it.to_string()[2..].to_owned())
}

/// Reads a length of time, as in the text of a quota.
fn read_span(text: &str) -> Result<Duration, ParseQuotaError> {
    Ok(format!("1/{text}").parse::<Quota>()?.window())
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rule({self})")
    }
}

impl FromStr for Rule {
    type Err = ParseRuleError;

    fn from_str(text: &str) -> Result<Self, ParseRuleError> {
        let mut parts: Vec<&str> = text.split_whitespace().collect();
        let mut min_length = None;
        if let [.., "min", length, "mute", _] = parts[..] {
            min_length = Some(length);
            parts.drain(parts.len() - 4..parts.len() - 2);
        }
        let (counted, quota, mute) = match parts[..] {
            ["events", quota, "mute", mute] => (Counted::Events, quota, mute),
            ["peers", quota, "mute", mute] => (Counted::DistinctPeers, quota, mute),
            ["campaign", quota, "mute", mute] => (Counted::Campaign, quota, mute),
            ["similar", quota, percent, "mute", mute] => {
                let number = percent.strip_suffix('%').and_then(|number| number.parse().ok());
                let error = || ParseRuleError::Percent { text: percent.to_owned() };
                (Counted::Similar { percent: number.ok_or_else(error)? }, quota, mute)
            }
            ["events" | "peers" | "campaign" | "similar", ..] | [] => {
                return Err(ParseRuleError::Shape { text: text.to_owned() });
            }
            [kind, ..] => return Err(ParseRuleError::Kind { text: kind.to_owned() }),
        };
        let quota = quota.parse().map_err(ParseRuleError::Quota)?;
        let mute = match read_span(mute) {
            Ok(mute) => mute,
            Err(ParseQuotaError::Quota(QuotaError::ZeroWindow)) => Duration::ZERO,
            Err(ParseQuotaError::Quota(_)) => Duration::MAX,
            Err(_) => return Err(ParseRuleError::Mute { text: mute.to_owned() }),
        };
        let rule = Self::try_new(counted, quota, mute)?;
        let Some(length) = min_length else { return Ok(rule) };
        let error = |_| ParseRuleError::MinLength { text: length.to_owned() };
        Ok(rule.try_min_length(length.parse().map_err(error)?)?)
    }
}

/// What is wrong with the text form of a [`Rule`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseRuleError {
    /// The text does not have the parts of a rule.
    #[error(
        "{text:?} is not a rule: write `events COUNT/WINDOW mute DURATION`, `peers COUNT/WINDOW \
         mute DURATION`, `campaign COUNT/WINDOW [min LENGTH] mute DURATION` or `similar COUNT/WINDOW \
         PERCENT% [min LENGTH] mute DURATION`"
    )]
    Shape {
        /// The given text.
        text: String,
    },
    /// The first word is not a kind of rule.
    #[error("the kind {text:?} is not one of events, peers, campaign and similar")]
    Kind {
        /// The given word.
        text: String,
    },
    /// The count or the window is invalid.
    #[error(transparent)]
    Quota(ParseQuotaError),
    /// The similarity is not a percentage.
    #[error("the similarity {text:?} is not a whole number with a percent sign, such as 90%")]
    Percent {
        /// The given part.
        text: String,
    },
    /// The minimum length is not a number of characters.
    #[error("the minimum length {text:?} is not a whole number of characters, such as 4")]
    MinLength {
        /// The given part.
        text: String,
    },
    /// What follows `mute` is not a length of time.
    #[error("the mute {text:?} is not a whole number of us, ms, s, m, h or d, such as 12h")]
    Mute {
        /// The given part.
        text: String,
    },
    /// The parts are well-formed, but the rule is invalid.
    #[error(transparent)]
    Rule(#[from] RuleError),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const YEAR_US: u64 = 365 * 24 * 3600 * 1_000_000;

    #[test]
    fn text_round_trips() {
        for text in [
            "events 20/10s mute 1h",
            "peers 9/300s mute 48h",
            "similar 2/1us 100% mute 5ms",
            "similar 3/60s 90% min 4 mute 6h",
            "campaign 20/600s mute 1h",
            "campaign 20/600s min 0 mute 1h",
        ] {
            let rule: Rule = text.parse().unwrap();
            assert_eq!(rule.to_string(), text);
            assert_eq!(rule.to_string().parse::<Rule>().unwrap(), rule);
        }
        let spaced: Rule = "  similar  5/5m   90%  mute 12h ".parse().unwrap();
        assert_eq!(spaced, Rule::recommended()[0]);
    }

    #[test]
    fn errors_name_the_invalid_part() {
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
            ("similar 5/5m 90% min mute 12h", "is not a rule"),
            ("similar 5/5m 90% min 4", "is not a rule"),
            ("similar 5/5m 90% min four mute 12h", "minimum length \"four\""),
            ("similar 5/5m 90% min 301 mute 12h", "minimum length 301"),
            ("events 5/5m min 4 mute 12h", "similar messages and campaigns only"),
            ("manual mute 1h", "kind \"manual\""),
            ("min 4 mute 12h", "is not"),
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
        fn any_rule_round_trips(
            kind in 0..4_usize, count in 2..=64_u32, percent in 1..=100_u8,
            window_us in 1..=100 * YEAR_US, mute_us in 1..=YEAR_US,
            min_length in 0..=300_u16,
        ) {
            let similar = Counted::Similar { percent };
            let counted = [Counted::Events, Counted::DistinctPeers, Counted::Campaign, similar][kind];
            let quota = Quota::new(count, Duration::from_micros(window_us));
            let rule = Rule::new(counted, quota, Duration::from_micros(mute_us));
            let rule = if kind >= 2 { rule.min_length(min_length) } else { rule };
            prop_assert_eq!(rule.to_string().parse(), Ok(rule));
        }

        #[test]
        fn parser_never_panics(
            text in "((events|peers|similar|\\PC{0,9}) ?){0,2}[0-9/smh%\\-+ ]{0,12}( min 4)?( mute)? ?\\PC{0,9}",
        ) {
            if let Ok(rule) = text.parse::<Rule>() {
                prop_assert_eq!(rule.to_string().parse(), Ok(rule));
            }
        }
    }
}
