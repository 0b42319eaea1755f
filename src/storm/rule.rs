//! [`StormRule`]: when a storm starts and when it ends.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::policy::is_name;
use crate::quota::{LONGEST_WINDOW_US, Quota};

/// The highest cap. So many messages of one group take about 100 MB in Redis.
const MAX_CAP: u32 = 1_000_000;
/// The lowest default cap.
const MIN_DEFAULT_CAP: u32 = 1_000;

/// When a storm starts and when it ends.
///
/// A storm starts when the window holds more messages than the threshold's limit, and ends when it
/// holds fewer than [`ends_below`](Self::ends_below). The distance between the two prevents one storm
/// after another if the count stays close to one of them.
///
/// ```
/// use std::time::Duration;
/// use tower_sliding_window::Quota;
/// use tower_sliding_window::storm::StormRule;
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
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct StormRule {
    name: Option<Arc<str>>,
    /// The name, or the threshold if there is no name.
    log_name: Arc<str>,
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
        // `:` and `/` are not allowed in names, so this can't collide with one.
        let log_name = format!("default:{threshold}").into();
        Self { name: None, log_name, threshold, ends_below, cap, cool_down: Duration::ZERO }
    }

    /// Sets the name, which is part of the groups' names in the store: 1 to 64 characters of
    /// `A-Z a-z 0-9 _ . -`.
    ///
    /// Defaults to `default`. Detectors on one store whose rules have the same name share groups and
    /// storms, and should have equal rules. Detectors without a name share them if they have the same
    /// threshold.
    #[must_use]
    pub fn named(mut self, name: impl Into<Arc<str>>) -> Self {
        let name = name.into();
        self.log_name = name.clone();
        self.name = Some(name);
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
        if let Some(name) = &self.name
            && !is_name(name)
        {
            return Err(StormRuleError::Name { name: name.to_string() });
        }
        if !(1..=limit).contains(&self.ends_below) {
            return Err(StormRuleError::EndsBelow { ends_below: self.ends_below, limit });
        }
        if self.cap > MAX_CAP || self.cap <= limit {
            return Err(StormRuleError::Cap { cap: self.cap, limit, highest: MAX_CAP });
        }
        if self.cool_down > Duration::from_micros(LONGEST_WINDOW_US) {
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

    /// Returns the window in microseconds.
    pub(super) const fn window_us(&self) -> u64 {
        self.threshold.window_us()
    }

    /// Returns the name that separates the groups of this rule from those of other rules in a store:
    /// the rule's name, or a text with the threshold if there is none.
    #[must_use]
    pub fn log_name(&self) -> &str {
        &self.log_name
    }
}

impl From<Quota> for StormRule {
    fn from(threshold: Quota) -> Self {
        Self::new(threshold)
    }
}

impl fmt::Debug for StormRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StormRule")
            .field("name", &self.name())
            .field("threshold", &self.threshold)
            .field("ends_below", &self.ends_below)
            .field("cap", &self.cap)
            .field("cool_down", &self.cool_down)
            .finish()
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_invalid_part() {
        let rule = |limit| StormRule::new(Quota::per_minute(limit));
        let error = |rule: StormRule| rule.validate().unwrap_err().to_string();
        assert!(error(rule(10).named("a:b")).contains("\"a:b\" is not a name"));
        assert!(error(rule(10).named("")).contains("\"\" is not a name"));
        assert!(error(rule(10).ends_below(0)).contains("can't end below 0"));
        assert!(error(rule(10).ends_below(11)).contains("to the threshold of 10"));
        assert!(error(rule(10).cap(10)).contains("cap of 10 must be above the threshold of 10"));
        assert!(error(rule(10).cap(1_000_001)).contains("at most 1000000"));
        assert!(error(rule(u32::MAX)).contains("above the threshold of 4294967295"));
        assert!(error(rule(10).cool_down(Duration::MAX)).contains("cool-down"));
    }

    #[test]
    fn defaults_are_valid_at_every_threshold() {
        for limit in [1, 2, 3, 99, 100, 101, 1_000, 99_999, 999_999] {
            let rule = StormRule::new(Quota::per_minute(limit));
            assert_eq!(rule.validate(), Ok(()), "{limit}");
            assert_eq!(rule.clone().ends_below(limit).cap(limit + 1).validate(), Ok(()), "{limit}");
        }
        let rule = StormRule::new(Quota::per_minute(100));
        assert_eq!(
            (rule.end_threshold(), rule.cap_per_group(), rule.cool_down_length()),
            (50, 1_000, Duration::ZERO)
        );
    }
}
