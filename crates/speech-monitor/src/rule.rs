//! [`Rule`]: what mutes a sender, and for how long.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tower_sliding_window::{ParseQuotaError, Quota};

use crate::normalised::MAX_COMPARED;

/// How many texts of a sender are kept for comparison.
pub(crate) const MAX_TEXTS: u32 = 64;
/// How many messages and peers of a sender are kept.
const MAX_ENTRIES: u32 = 1024;
/// How many letters and digits a text has that is compared, unless the rule says otherwise.
const MIN_LENGTH: u16 = 9;
/// The longest mute: as long as the longest ban of the core.
const LONGEST_MUTE: Duration = Duration::from_secs(365 * 24 * 3600);

/// A rule that mutes a sender for some time if a count within a window is reached.
///
/// A rule is a text. With `5/5m` the fifth within five minutes triggers the rule:
///
/// | | counts |
/// |---|---|
/// | `events COUNT/WINDOW mute DURATION` | messages of any kind |
/// | `peers COUNT/WINDOW mute DURATION` | different private-chat peers; another message to the same peer renews its timestamp and does not count again |
/// | `similar COUNT/WINDOW PERCENT% [min LENGTH] mute DURATION` | messages that are [similar](crate#similar-messages) |
///
/// `min` is how many letters and digits a [`normalised`](crate::normalised) text must have to count, from 0
/// to 300. A Chinese character counts as two, and a vowel that is a combining mark, as in Thai, as none. Without
/// it, it is 9: honest senders often say `ok` or `thank you`.
///
/// ```
/// use speech_monitor::{ParseRuleError, Rule};
///
/// let rule: Rule = "similar 5/5m 90% mute 12h".parse()?;
/// assert_eq!(rule.to_string(), "similar 5/300s 90% mute 12h");
/// assert!("similar 3/1m 90% min 4 mute 6h".parse::<Rule>().is_ok());
/// assert!("events 20/10s mute 1h".parse::<Rule>().is_ok());
/// assert!("peers 5/3m mute forever".parse::<Rule>().is_err());
/// # Ok::<(), ParseRuleError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    pub(crate) counted: Counted,
    quota: Quota,
    pub(crate) min_length: u16,
    pub(crate) mute: Duration,
}

/// What a [`Rule`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    Events,
    Peers,
    Similar { percent: u8 },
}

impl Rule {
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
        [
            "similar 5/5m 90% mute 12h",
            "similar 3/1m 90% mute 6h",
            "peers 5/3m mute 24h",
            "peers 9/5m mute 48h",
        ]
        .map(|text| text.parse().expect("it is a rule"))
    }

    pub(crate) fn count(&self) -> u32 {
        self.quota.limit()
    }

    pub(crate) fn window(&self) -> Duration {
        self.quota.window()
    }
}

impl fmt::Display for Rule {
    /// Writes the rule in the form that [`Rule::from_str`] reads, with times as in [`Quota`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quota = self.quota;
        match self.counted {
            Counted::Events => write!(f, "events {quota}"),
            Counted::Peers => write!(f, "peers {quota}"),
            Counted::Similar { percent } => write!(f, "similar {quota} {percent}%"),
        }?;
        if self.min_length != MIN_LENGTH {
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

impl FromStr for Rule {
    type Err = ParseRuleError;

    fn from_str(text: &str) -> Result<Self, ParseRuleError> {
        let parts: Vec<&str> = text.split_whitespace().collect();
        let shape = || ParseRuleError::Shape { text: text.to_owned() };
        let [kind, quota, ref options @ .., "mute", mute] = parts[..] else { return Err(shape()) };
        let similar = |percent: &str| {
            let number = percent.strip_suffix('%').and_then(|number| number.parse().ok());
            let percent_error = || ParseRuleError::Percent { text: percent.to_owned() };
            let number = number.filter(|number| (1..=100).contains(number));
            Ok(Counted::Similar { percent: number.ok_or_else(percent_error)? })
        };
        let (counted, length) = match (kind, options) {
            ("events", []) => (Counted::Events, None),
            ("peers", []) => (Counted::Peers, None),
            ("similar", [percent]) => (similar(percent)?, None),
            ("similar", [percent, "min", length]) => (similar(percent)?, Some(*length)),
            _ => return Err(shape()),
        };
        let quota: Quota = quota.parse().map_err(ParseRuleError::Quota)?;
        let most = if matches!(counted, Counted::Similar { .. }) { MAX_TEXTS } else { MAX_ENTRIES };
        if !(2..=most).contains(&quota.limit()) {
            return Err(ParseRuleError::Count { count: quota.limit(), most });
        }
        let min_length = length.map_or(Ok(MIN_LENGTH), |length| {
            let number = length.parse().ok();
            let number = number.filter(|number| usize::from(*number) <= MAX_COMPARED);
            number.ok_or_else(|| ParseRuleError::MinLength { text: length.to_owned() })
        })?;
        let length = format!("1/{mute}").parse().ok().map(|it: Quota| it.window());
        let length = length.filter(|length| *length <= LONGEST_MUTE);
        let mute = length.ok_or_else(|| ParseRuleError::Mute { text: mute.to_owned() })?;
        Ok(Self { counted, quota, min_length, mute })
    }
}

/// What is wrong with the text of a [`Rule`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseRuleError {
    /// The text does not have the parts of a rule.
    #[error(
        "{text:?} is not a rule: write `events COUNT/WINDOW mute DURATION`, `peers COUNT/WINDOW \
         mute DURATION` or `similar COUNT/WINDOW PERCENT% [min LENGTH] mute DURATION`"
    )]
    Shape {
        /// The given text.
        text: String,
    },
    /// The count or the window is invalid.
    #[error(transparent)]
    Quota(ParseQuotaError),
    /// The first message of every sender would trigger the rule, or not as many entries are kept.
    #[error("the count {count} must be at least 2, since 1 mutes every sender, and at most {most}")]
    Count {
        /// The given count.
        count: u32,
        /// The highest allowed count.
        most: u32,
    },
    /// The similarity is not a percentage, or it is 0 %, which all messages have.
    #[error(
        "the similarity {text:?} is not a whole number from 1 to 100 with a percent sign, such as 90%"
    )]
    Percent {
        /// The given part.
        text: String,
    },
    /// The minimum length is not a number of characters, or more than are compared.
    #[error(
        "the minimum length {text:?} is not a whole number of characters from 0 to 300, such as 4"
    )]
    MinLength {
        /// The given part.
        text: String,
    },
    /// What follows `mute` is not a length of time, or it is zero or longer than a year.
    #[error("the mute {text:?} is not from 1us to 365d in us, ms, s, m, h or d, such as 12h")]
    Mute {
        /// The given part.
        text: String,
    },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const YEAR_US: u64 = 365 * 24 * 3600 * 1_000_000;

    #[test]
    fn spaces_do_not_matter() {
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
            ("words 5/5m mute 12h", "\"words 5/5m mute 12h\" is not a rule"),
            ("events five/5m mute 12h", "limit \"five\""),
            ("similar 5/5m 90 mute 12h", "similarity \"90\""),
            ("similar 5/5m 90％ mute 12h", "similarity \"90％\""),
            ("similar 5/5m -1% mute 12h", "similarity \"-1%\""),
            ("similar 5/5m 0% mute 12h", "similarity \"0%\""),
            ("similar 5/5m 101% mute 12h", "similarity \"101%\""),
            ("similar 5/5m 256% mute 12h", "similarity \"256%\""),
            ("similar 65/5m 90% mute 12h", "count 65"),
            ("events 1025/5m mute 12h", "count 1025"),
            ("peers 1/5m mute 12h", "count 1"),
            ("similar 5/5m 90% min mute 12h", "is not a rule"),
            ("similar 5/5m 90% min 4", "is not a rule"),
            ("similar 5/5m 90% min four mute 12h", "minimum length \"four\""),
            ("similar 5/5m 90% min 301 mute 12h", "minimum length \"301\""),
            ("events 5/5m min 4 mute 12h", "is not a rule"),
            ("peers 5/5m mute forever", "mute \"forever\""),
            ("peers 5/5m mute 12時", "mute \"12時\""),
            ("peers 5/5m mute 0s", "mute \"0s\" is not from 1us"),
            ("peers 5/5m mute 366d", "mute \"366d\" is not"),
        ] {
            let error = text.parse::<Rule>().unwrap_err().to_string();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_rule_round_trips(
            kind in 0..3_usize, count in 2..=64_u32, percent in 1..=100_u8,
            window_us in 1..=100 * YEAR_US, mute_us in 1..=YEAR_US,
            min_length in 0..=300_u16,
        ) {
            let counted = [Counted::Events, Counted::Peers, Counted::Similar { percent }][kind];
            let quota = Quota::new(count, Duration::from_micros(window_us));
            let min_length = if kind == 2 { min_length } else { MIN_LENGTH };
            let rule = Rule { counted, quota, min_length, mute: Duration::from_micros(mute_us) };
            prop_assert_eq!(rule.to_string().parse(), Ok(rule));
        }
    }
}
