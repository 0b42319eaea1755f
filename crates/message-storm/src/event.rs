//! [`Reading`]: the state of a group. [`StormEvent`]: the start, the end or a reminder of a storm.

use std::time::{Duration, SystemTime};

use tower_sliding_window::{Key, Quota, StoreError};

use crate::rule::StormRule;

/// What a check of a group finds. The times are in microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The time of the check, by the store's clock. For display only.
    pub(crate) at: SystemTime,
    /// How many messages are in the window, at most the rule's cap.
    pub(crate) count: u32,
    /// Whether the message was already recorded.
    pub(crate) is_repeated: bool,
    /// After how long a storm could start or end without further messages, or a reminder is due. Zero
    /// if none of these can happen.
    pub(crate) recheck_us: u64,
    /// How long the current storm has lasted, and its highest count.
    pub(crate) storm: Option<(u64, u32)>,
    /// How long ago this check has started a storm, and the count then.
    pub(crate) started: Option<(u64, u32)>,
    /// How long ago the storm ended whose end this check has found, how long it lasted, and its peak.
    pub(crate) ended: Option<(u64, u64, u32)>,
    /// How long ago the reminder was due that this check has to report, how long the storm had lasted
    /// then, and its count and peak.
    pub(crate) ongoing: Option<(u64, u64, u32, u32)>,
}

/// The state of a group after a message was recorded, or after a
/// [`peek`](crate::StormDetector::peek).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Reading {
    /// How many messages of the group are in the window, at most the rule's [`cap`](StormRule::cap).
    pub count: u32,
    /// Whether the count has reached the cap, so that there may have been more messages.
    pub is_saturated: bool,
    /// Whether the message was already in the window and was not counted again.
    pub is_repeated: bool,
    /// The current storm.
    pub storm: Option<Storm>,
    /// The events that this call caused, the earliest first. No other call returns them. The hook of
    /// [`StormDetector::on_event`](crate::StormDetector::on_event) gets them too.
    pub events: Vec<StormEvent>,
}

impl Reading {
    pub(crate) fn new(outcome: &Outcome, rule: &StormRule, group: &Key) -> Self {
        let &Outcome { count, is_repeated, storm, .. } = outcome;
        let storm = storm.map(|(lasted_us, peak)| Storm {
            lasted: Duration::from_micros(lasted_us),
            peak,
            is_saturated: peak >= rule.cap,
        });
        let events = events(outcome, rule, group);
        Self { count, is_saturated: count >= rule.cap, is_repeated, storm, events }
    }
}

/// A storm that is not over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Storm {
    /// How long ago it started.
    pub lasted: Duration,
    /// The highest count so far, at most the rule's [`cap`](StormRule::cap).
    pub peak: u32,
    /// Whether the highest count has reached the cap, so that it may have been higher.
    pub is_saturated: bool,
}

/// The start, the end or a reminder of a storm, each delivered once in the whole fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StormEvent {
    /// The count of a group has exceeded the threshold.
    #[non_exhaustive]
    Started {
        /// The name of the rule.
        name: String,
        /// The group of the messages.
        group: Key,
        /// How many messages were in the window, at most the cap.
        count: u32,
        /// The cap on the count of a group.
        cap: u32,
        /// The count above which a storm starts, and its window.
        threshold: Quota,
        /// The time of the start, by the clock of Redis, or in process by the system clock. For display
        /// only.
        at: SystemTime,
    },
    /// The count has fallen below [`StormRule::ends_below`].
    #[non_exhaustive]
    Ended {
        /// The name of the rule.
        name: String,
        /// The group of the messages.
        group: Key,
        /// The highest count in the storm, at most the cap.
        peak: u32,
        /// The cap on the count of a group.
        cap: u32,
        /// The count above which a storm starts, and its window.
        threshold: Quota,
        /// How long the storm has lasted.
        lasted: Duration,
        /// The time when the count fell, which may be before the end was detected.
        at: SystemTime,
    },
    /// A storm continues. Only if [`StormDetector::remind_every`](crate::StormDetector::remind_every) is
    /// set.
    #[non_exhaustive]
    Ongoing {
        /// The name of the rule.
        name: String,
        /// The group of the messages.
        group: Key,
        /// How many messages were in the window, at most the cap.
        count: u32,
        /// The highest count so far, at most the cap.
        peak: u32,
        /// The cap on the count of a group.
        cap: u32,
        /// The count above which a storm starts, and its window.
        threshold: Quota,
        /// How long the storm had lasted when the reminder was due.
        lasted: Duration,
        /// The time when the reminder was due.
        at: SystemTime,
    },
}

impl StormEvent {
    /// Returns the group of the storm.
    pub const fn group(&self) -> &Key {
        let (Self::Started { group, .. } | Self::Ended { group, .. } | Self::Ongoing { group, .. }) =
            self;
        group
    }
}

/// Returns the events of an outcome, the earliest first.
fn events(outcome: &Outcome, rule: &StormRule, group: &Key) -> Vec<StormEvent> {
    let (threshold, cap) = (rule.threshold(), rule.cap);
    let common = |ago_us| {
        let at = outcome.at.checked_sub(Duration::from_micros(ago_us)).unwrap_or(outcome.at);
        (rule.name().to_owned(), group.clone(), at)
    };
    let mut events = Vec::new();
    if let Some((ago_us, count)) = outcome.started {
        let (name, group, at) = common(ago_us);
        events.push((ago_us, StormEvent::Started { name, group, count, cap, threshold, at }));
    }
    if let Some((ago_us, lasted_us, count, peak)) = outcome.ongoing {
        let ((name, group, at), lasted) = (common(ago_us), Duration::from_micros(lasted_us));
        let event = StormEvent::Ongoing { name, group, count, peak, cap, threshold, lasted, at };
        events.push((ago_us, event));
    }
    if let Some((ago_us, lasted_us, peak)) = outcome.ended {
        let ((name, group, at), lasted) = (common(ago_us), Duration::from_micros(lasted_us));
        events.push((ago_us, StormEvent::Ended { name, group, peak, cap, threshold, lasted, at }));
    }
    events.sort_by_key(|(ago_us, _)| std::cmp::Reverse(*ago_us));
    events.into_iter().map(|(_, event)| event).collect()
}

/// How many messages a group had in each step of the window, for a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Profile {
    /// The counts, the oldest step first.
    ///
    /// The last step ends now. The first is shorter than the others if the window is not a whole number
    /// of steps.
    pub counts: Vec<u32>,
    /// The length of a step.
    pub step: Duration,
    /// Whether the messages have reached the rule's cap. Then only the newest are counted, and the counts
    /// of the oldest steps may be too low.
    pub is_saturated: bool,
}

/// Why a [`Profile`] could not be made.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The step is shorter than a microsecond.
    #[error("a step of a profile must be at least 1us")]
    ZeroStep,
    /// The window has too many steps.
    #[error("a profile of {steps} steps is too long: choose longer steps, at most {most} of them")]
    TooManySteps {
        /// How many steps the window has.
        steps: u64,
        /// The highest number of steps.
        most: u64,
    },
    /// The store did not reply.
    #[error(transparent)]
    Store(#[from] StoreError),
}
