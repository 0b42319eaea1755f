//! The text form of a [`Rule`].

use std::fmt;
use std::str::FromStr;

use super::{Counted, Rule, RuleError};
use crate::quota::{ParseQuotaError, Span, parse_window};

impl fmt::Display for Rule {
    /// Writes the rule in the form that [`Rule::from_str`] reads, with times as in
    /// [`Quota`](crate::Quota).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quota = self.quota;
        match self.counted {
            Counted::Manual => write!(f, "manual"),
            Counted::Events => write!(f, "events {quota}"),
            Counted::DistinctPeers => write!(f, "peers {quota}"),
            Counted::Campaign => write!(f, "campaign {quota}"),
            Counted::Similar { percent } => write!(f, "similar {quota} {percent}%"),
        }?;
        if self.min_length != self.default_min_length() {
            write!(f, " min {}", self.min_length)?;
        }
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
        let mut parts: Vec<&str> = text.split_whitespace().collect();
        let mut min_length = None;
        if let [.., "min", length, "mute", _] = parts[..] {
            min_length = Some(length);
            parts.drain(parts.len() - 4..parts.len() - 2);
        }
        let (kind, quota, percent, mute) = match parts[..] {
            [kind @ "similar", quota, percent, "mute", mute] => (kind, quota, Some(percent), mute),
            [kind @ ("events" | "peers" | "campaign"), quota, "mute", mute] => {
                (kind, quota, None, mute)
            }
            ["events" | "peers" | "campaign" | "similar", ..] | [] => {
                return Err(ParseRuleError::Shape { text: text.to_owned() });
            }
            [kind, ..] => return Err(ParseRuleError::Kind { text: kind.to_owned() }),
        };
        let counted = match (kind, percent) {
            ("events", _) => Counted::Events,
            ("campaign", _) => Counted::Campaign,
            (_, None) => Counted::DistinctPeers,
            (_, Some(percent)) => {
                let number = percent.strip_suffix('%').and_then(|number| number.parse().ok());
                let error = || ParseRuleError::Percent { text: percent.to_owned() };
                Counted::Similar { percent: number.ok_or_else(error)? }
            }
        };
        let quota = quota.parse().map_err(ParseRuleError::Quota)?;
        let mute =
            parse_window(mute).ok_or_else(|| ParseRuleError::Mute { text: mute.to_owned() })?;
        let rule = Self::try_new(counted, quota, mute)?;
        let Some(length) = min_length else { return Ok(rule) };
        let error = |_| ParseRuleError::MinLength { text: length.to_owned() };
        Ok(rule.try_min_length(length.parse().map_err(error)?)?)
    }
}

impl Rule {
    /// Reads what [`Display`](fmt::Display) writes, also of a manual mute.
    #[cfg(feature = "redis")]
    pub(in crate::moderation) fn from_stored(text: &str) -> Option<Self> {
        match text.strip_prefix("manual mute ") {
            Some(mute) => parse_window(mute).map(Self::manual),
            None => text.parse().ok(),
        }
    }
}

/// What is wrong with the text form of a [`Rule`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseRuleError {
    /// The text does not have the parts of a rule.
    #[error(
        "{text:?} is not a rule: write `events COUNT/WINDOW mute DURATION`, `peers COUNT/WINDOW \
         mute DURATION`, `campaign COUNT/WINDOW [min LENGTH] mute DURATION` or `similar COUNT/WINDOW PERCENT% [min LENGTH] mute DURATION`"
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
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::quota::{LONGEST_WINDOW_US, Quota};

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
        let error = Rule::try_new(Counted::Manual, Quota::per_second(2), Duration::from_secs(1));
        assert_eq!(error, Err(RuleError::Manual));
    }

    #[cfg(feature = "redis")]
    #[test]
    fn manual_rule_can_be_stored() {
        for length in [Duration::ZERO, Duration::from_nanos(1_500), Duration::MAX] {
            let rule = Rule::manual(length);
            assert_eq!(Rule::from_stored(&rule.to_string()), Some(rule));
        }
        assert_eq!(Rule::from_stored("manual mute"), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_rule_round_trips(
            kind in 0..4_usize, count in 2..=64_u32, percent in 1..=100_u8,
            window_us in 1..=LONGEST_WINDOW_US, mute_us in 1..=LONGEST_WINDOW_US,
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
