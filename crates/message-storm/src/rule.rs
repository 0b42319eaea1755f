//! [`StormRule`]: when a storm starts and when it ends.

use tower_sliding_window::Quota;

/// The highest cap. So many messages of one group take about 130 MB in Redis.
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
/// use message_storm::{StormDetector, StormRule};
///
/// let rule = StormRule::new("100/60s".parse()?).ends_below(20).cap(5_000);
/// let detector = StormDetector::in_process(rule)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StormRule {
    name: Option<String>,
    pub(crate) threshold: Quota,
    pub(crate) ends_below: u32,
    pub(crate) cap: u32,
}

impl StormRule {
    /// Creates a rule. A storm starts with more than `threshold.limit()` messages within
    /// `threshold.window()`.
    pub fn new(threshold: Quota) -> Self {
        let limit = threshold.limit();
        let cap = limit.saturating_mul(10).clamp(MIN_DEFAULT_CAP, MAX_CAP);
        let ends_below = limit.div_ceil(2);
        Self { name: None, threshold, ends_below, cap }
    }

    /// Sets the name, which is part of the groups' names in Redis: 1 to 64 characters of
    /// `A-Z a-z 0-9 _ . -`.
    ///
    /// Defaults to `default`. Detectors on one Redis whose rules have the same name share groups and
    /// storms, and should have equal rules. Detectors without a name share them if they have the same
    /// threshold.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the count below which a storm ends, from 1 to the threshold's limit. Defaults to half of
    /// the limit, rounded up.
    pub fn ends_below(mut self, count: u32) -> Self {
        self.ends_below = count;
        self
    }

    /// Sets how many messages of a group are kept, the newest. The count stops there. The cap must be
    /// above the threshold's limit and at most a million. Defaults to ten times the limit, but at least
    /// 1,000 and at most a million.
    pub fn cap(mut self, messages: u32) -> Self {
        self.cap = messages;
        self
    }

    /// Returns the rule, or an error that names the invalid part.
    pub(crate) fn validated(self) -> Result<Self, StormRuleError> {
        let (name, limit) = (self.name(), self.threshold.limit());
        let (ends_below, cap) = (self.ends_below, self.cap);
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        if !(1..=64).contains(&name.len()) || !name.bytes().all(is_allowed) {
            return Err(StormRuleError::Name { name: name.to_owned() });
        }
        if !(1..=limit).contains(&ends_below) {
            return Err(StormRuleError::EndsBelow { ends_below, limit });
        }
        if cap > MAX_CAP || cap <= limit {
            return Err(StormRuleError::Cap { cap, limit, highest: MAX_CAP });
        }
        Ok(self)
    }

    /// Returns the name, or `default` if the rule has none.
    pub(crate) fn name(&self) -> &str {
        self.name.as_deref().unwrap_or("default")
    }

    /// Returns the name of the rule's groups in Redis.
    pub(crate) fn log_name(&self) -> String {
        // `:` and `/` are not allowed in names, so the second can't collide with one.
        self.name.clone().unwrap_or_else(|| format!("default:{}", self.threshold))
    }

    /// Returns the window in microseconds. It is at most a hundred years long.
    pub(crate) fn window_us(&self) -> u64 {
        self.threshold.window().as_micros() as u64
    }
}

impl From<Quota> for StormRule {
    fn from(threshold: Quota) -> Self {
        Self::new(threshold)
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
    #[error("{}", match .limit < .highest {
        true => format!("the cap of {cap} must be above the threshold of {limit} and at most {highest}"),
        // There is no such cap.
        false => format!("the threshold of {limit} must be below {highest}"),
    })]
    Cap {
        /// The given cap.
        cap: u32,
        /// The threshold.
        limit: u32,
        /// The highest allowed cap.
        highest: u32,
    },
}
