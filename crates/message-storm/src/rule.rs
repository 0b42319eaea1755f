//! [`StormRule`]: when a storm starts and when it ends.

use std::sync::Arc;
use std::time::Duration;

use tower_sliding_window::Quota;

/// The highest cap. So many messages of one group take about 100 MB in Redis.
const MAX_CAP: u32 = 1_000_000;
/// The lowest default cap.
const MIN_DEFAULT_CAP: u32 = 1_000;
/// A hundred years. Every sum of timestamps is an exact integer in a double, the type of a Redis score.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// When a storm starts and when it ends.
///
/// A storm starts when the window holds more messages than the threshold's limit, and ends when it
/// holds fewer than [`ends_below`](Self::ends_below). The distance between the two prevents one storm
/// after another if the count stays close to one of them.
///
/// ```
/// use std::time::Duration;
/// use message_storm::StormRule;
///
/// let rule = StormRule::new("100/60s".parse()?)
///     .ends_below(20)
///     .cool_down(Duration::from_secs(300))
///     .cap(5_000);
/// assert_eq!(rule.validate(), Ok(()));
/// # Ok::<(), tower_sliding_window::ParseQuotaError>(())
/// ```
///
/// With the feature `serde`, a configuration has a rule as a table of `threshold`, which must be there,
/// `name`, `ends_below`, `cap` and `cool_down`, such as `"5m"`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "document::Document", into = "document::Document"))]
pub struct StormRule {
    name: Option<Arc<str>>,
    threshold: Quota,
    ends_below: u32,
    cap: u32,
    cool_down: Duration,
}

impl StormRule {
    /// Creates a rule. A storm starts with more than `threshold.limit()` messages within
    /// `threshold.window()`.
    #[must_use]
    pub fn new(threshold: Quota) -> Self {
        let limit = threshold.limit();
        let cap = limit.saturating_mul(10).clamp(MIN_DEFAULT_CAP, MAX_CAP);
        let ends_below = limit.div_ceil(2);
        Self { name: None, threshold, ends_below, cap, cool_down: Duration::ZERO }
    }

    /// Sets the name, which is part of the groups' names in Redis: 1 to 64 characters of
    /// `A-Z a-z 0-9 _ . -`.
    ///
    /// Defaults to `default`. Detectors on one Redis whose rules have the same name share groups and
    /// storms, and should have equal rules. Detectors without a name share them if they have the same
    /// threshold.
    #[must_use]
    pub fn named(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the count below which a storm ends, from 1 to the threshold's limit. Defaults to half of
    /// the limit, rounded up.
    #[must_use]
    pub fn ends_below(mut self, count: u32) -> Self {
        self.ends_below = count;
        self
    }

    /// Sets how many messages of a group are kept, the newest. The count stops there. The cap must be
    /// above the threshold's limit and at most a million. Defaults to ten times the limit, but at least
    /// 1,000 and at most a million.
    #[must_use]
    pub fn cap(mut self, messages: u32) -> Self {
        self.cap = messages;
        self
    }

    /// Sets how long after the end of a storm no other starts. Defaults to zero.
    ///
    /// If the count is above the threshold when the cool-down is over, a storm starts then.
    #[must_use]
    pub fn cool_down(mut self, pause: Duration) -> Self {
        self.cool_down = pause;
        self
    }

    /// Checks whether the rule is valid.
    ///
    /// # Errors
    ///
    /// A [`StormRuleError`] that names the invalid part.
    pub fn validate(&self) -> Result<(), StormRuleError> {
        let limit = self.threshold.limit();
        if let Some(name) = self.name.as_ref().filter(|name| !is_name(name)) {
            return Err(StormRuleError::Name { name: name.to_string() });
        }
        if !(1..=limit).contains(&self.ends_below) {
            return Err(StormRuleError::EndsBelow { ends_below: self.ends_below, limit });
        }
        if self.cap > MAX_CAP || self.cap <= limit {
            return Err(StormRuleError::Cap { cap: self.cap, limit, highest: MAX_CAP });
        }
        if self.cool_down > LONGEST {
            return Err(StormRuleError::CoolDown);
        }
        Ok(())
    }

    /// Returns the name, or `default` if the rule has none.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or("default")
    }

    /// Returns the count above which a storm starts, and its window.
    #[must_use]
    pub const fn threshold(&self) -> Quota {
        self.threshold
    }

    /// Returns the count below which a storm ends.
    #[must_use]
    pub const fn end_threshold(&self) -> u32 {
        self.ends_below
    }

    /// Returns how many messages of a group are kept.
    #[must_use]
    pub const fn cap_per_group(&self) -> u32 {
        self.cap
    }

    /// Returns the length of the cool-down.
    #[must_use]
    pub const fn cool_down_length(&self) -> Duration {
        self.cool_down
    }

    /// Returns the name of the rule's groups in Redis.
    pub(crate) fn log_name(&self) -> String {
        // `:` and `/` are not allowed in names, so the second can't collide with one.
        self.name
            .as_ref()
            .map_or_else(|| format!("default:{}", self.threshold), |it| it.to_string())
    }

    pub(crate) fn window_us(&self) -> u64 {
        micros(self.threshold.window())
    }

    pub(crate) fn cool_down_us(&self) -> u64 {
        micros(self.cool_down)
    }
}

impl From<Quota> for StormRule {
    fn from(threshold: Quota) -> Self {
        Self::new(threshold)
    }
}

fn is_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    (1..=64).contains(&text.len()) && text.bytes().all(is_allowed)
}

/// Checks the time between reminders: a storm is not reported again more often than once a second.
pub(crate) fn check_reminder(time: Duration) -> Result<(), StormRuleError> {
    let is_sensible = (Duration::from_secs(1)..=LONGEST).contains(&time);
    is_sensible.then_some(()).ok_or(StormRuleError::Reminder)
}

/// Returns a length of time in whole microseconds, capped at [`u64::MAX`].
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// What is wrong with a [`StormRule`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StormRuleError {
    /// The name is empty, too long, or has characters that are not allowed.
    #[error("{name:?} is not a name: it must be 1 to 64 characters of A-Z a-z 0-9 _ . -")]
    Name {
        /// The given name.
        name: String,
    },
    /// A storm would never end, or end as soon as it starts.
    #[error("a storm can't end below {ends_below}: it must be from 1 to the threshold of {limit}")]
    EndsBelow {
        /// The given count.
        ends_below: u32,
        /// The threshold.
        limit: u32,
    },
    /// A storm could never start, or its messages would take too much memory.
    #[error("the cap of {cap} must be above the threshold of {limit} and at most {highest}")]
    Cap {
        /// The given cap.
        cap: u32,
        /// The threshold.
        limit: u32,
        /// The highest allowed cap.
        highest: u32,
    },
    /// Storms would be reported again too often, or never.
    #[error("the time between reminders must be at least a second and at most a hundred years")]
    Reminder,
    /// The cool-down is longer than a hundred years.
    #[error("the cool-down is longer than a hundred years")]
    CoolDown,
}

/// A rule in a configuration, as serde reads and writes it.
#[cfg(feature = "serde")]
mod document {
    use tower_sliding_window::{ParseQuotaError, QuotaError};

    use super::*;

    /// The fields of a rule, of which only the threshold must be there.
    #[derive(serde::Serialize, serde::Deserialize)]
    #[serde(deny_unknown_fields, expecting = "a table with `threshold`, such as \"100/60s\"")]
    pub(super) struct Document {
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

    impl From<StormRule> for Document {
        fn from(rule: StormRule) -> Self {
            let default = StormRule::new(rule.threshold);
            Self {
                name: rule.name.map(|name| name.to_string()),
                threshold: rule.threshold,
                ends_below: Some(rule.ends_below).filter(|it| *it != default.ends_below),
                cap: Some(rule.cap).filter(|it| *it != default.cap),
                cool_down: Some(rule.cool_down).filter(|it| !it.is_zero()).map(written),
            }
        }
    }

    impl TryFrom<Document> for StormRule {
        type Error = String;

        fn try_from(document: Document) -> Result<Self, String> {
            let mut rule = Self::new(document.threshold);
            rule.name = document.name.map(Into::into);
            rule.ends_below = document.ends_below.unwrap_or(rule.ends_below);
            rule.cap = document.cap.unwrap_or(rule.cap);
            rule.cool_down = document.cool_down.map_or(Ok(Duration::ZERO), |it| read(&it))?;
            rule.validate().map_err(|error| error.to_string())?;
            Ok(rule)
        }
    }

    /// Reads a length of time as the window of a quota.
    fn read(text: &str) -> Result<Duration, String> {
        match format!("1/{text}").parse::<Quota>() {
            Ok(quota) => Ok(quota.window()),
            Err(ParseQuotaError::Quota(QuotaError::ZeroWindow)) => Ok(Duration::ZERO),
            Err(ParseQuotaError::Quota(_)) => Err(StormRuleError::CoolDown.to_string()),
            Err(_) => Err(format!(
                "the cool-down {text:?} is not a whole number of us, ms, s, m, h or d, such as 5m"
            )),
        }
    }

    fn written(time: Duration) -> String {
        let us = micros(time);
        let quota = Quota::try_new(1, Duration::from_micros(us));
        quota.map_or_else(|_| format!("{us}us"), |quota| quota.to_string()[2..].to_owned())
    }
}
