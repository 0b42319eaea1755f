//! [`StormRule`] in a configuration, as serde reads and writes it.

use std::time::Duration;

use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize, Serializer};

use super::rule::StormRule;
use crate::quota::{Quota, Span, parse_window};
use crate::time::micros;

/// The fields of a rule, of which only the threshold must be there.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table with `threshold`, such as \"100/60s\"")]
struct Document {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    threshold: Quota,
    #[serde(skip_serializing_if = "Option::is_none")]
    ends_below: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cap: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cool_down: Option<String>,
}

impl Serialize for StormRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let default = Self::new(self.threshold());
        let cool_down = self.cool_down_length();
        Document {
            name: (self.log_name() == self.name()).then(|| self.name().to_owned()),
            threshold: self.threshold(),
            ends_below: differing(self.end_threshold(), default.end_threshold()),
            cap: differing(self.cap_per_group(), default.cap_per_group()),
            cool_down: differing(cool_down, default.cool_down_length())
                .map(|cool_down| Span(micros(cool_down)).to_string()),
        }
        .serialize(serializer)
    }
}

fn differing<T: PartialEq>(value: T, default: T) -> Option<T> {
    (value != default).then_some(value)
}

impl<'de> Deserialize<'de> for StormRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let document = Document::deserialize(deserializer)?;
        let mut rule = Self::new(document.threshold);
        if let Some(name) = document.name {
            rule = rule.named(name);
        }
        if let Some(count) = document.ends_below {
            rule = rule.ends_below(count);
        }
        if let Some(messages) = document.cap {
            rule = rule.cap(messages);
        }
        if let Some(pause) = document.cool_down {
            rule = rule.cool_down(read_cool_down(&pause).map_err(D::Error::custom)?);
        }
        rule.validate().map_err(D::Error::custom)?;
        Ok(rule)
    }
}

fn read_cool_down(text: &str) -> Result<Duration, String> {
    let wrong = || {
        format!("the cool-down {text:?} is not a whole number of us, ms, s, m, h or d, such as 5m")
    };
    parse_window(text).ok_or_else(wrong)
}
