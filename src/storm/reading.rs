//! [`Reading`]: the state of a group. [`StormEvent`]: the start or end of a storm.

use std::time::{Duration, SystemTime};

use super::rule::StormRule;
use super::store::StormOutcome;
use crate::error::StoreError;
use crate::key::Key;
use crate::quota::Quota;
use crate::telemetry;

/// The state of a group after a message was recorded, or after a
/// [`peek`](crate::storm::StormDetector::peek).
#[derive(Clone, Debug)]
pub struct Reading {
    outcome: StormOutcome,
    cap: u32,
    events: Vec<StormEvent>,
}

impl Reading {
    pub(super) fn new(outcome: StormOutcome, rule: &StormRule, group: &Key) -> Self {
        let events = events(&outcome, rule, group);
        Self { outcome, cap: rule.cap_per_group(), events }
    }

    /// Returns how many messages of the group are in the window, at most the rule's
    /// [`cap`](StormRule::cap).
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.outcome.count
    }

    /// Returns whether the count has reached the cap, so that there may have been more messages.
    #[must_use]
    pub const fn is_saturated(&self) -> bool {
        self.outcome.count >= self.cap
    }

    /// Returns whether the message was already in the window and was not counted again.
    #[must_use]
    pub const fn is_repeated(&self) -> bool {
        self.outcome.is_repeated
    }

    /// Returns the current storm.
    #[must_use]
    pub fn storm(&self) -> Option<Storm> {
        let (lasted, peak) = self.outcome.storm?;
        Some(Storm { lasted, peak, is_saturated: peak >= self.cap })
    }

    /// Returns the events that this call caused. No other call returns them. The hook of
    /// [`StormDetector::on_event`](crate::storm::StormDetector::on_event) gets them too.
    #[must_use]
    pub fn events(&self) -> &[StormEvent] {
        &self.events
    }
}

/// A storm that is not over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storm {
    lasted: Duration,
    peak: u32,
    is_saturated: bool,
}

impl Storm {
    /// Returns how long ago it started.
    #[must_use]
    pub const fn lasted(&self) -> Duration {
        self.lasted
    }

    /// Returns the highest count so far, at most the rule's [`cap`](StormRule::cap).
    #[must_use]
    pub const fn peak(&self) -> u32 {
        self.peak
    }

    /// Returns whether the highest count has reached the cap, so that it may have been higher.
    #[must_use]
    pub const fn is_saturated(&self) -> bool {
        self.is_saturated
    }
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
        /// The time of the start, by the clock of Redis, or by the system clock for an in-process
        /// store. For display only.
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
    /// A storm continues. Only if [`StormDetector::remind_every`](crate::storm::StormDetector::remind_every)
    /// is set.
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
    #[must_use]
    pub const fn group(&self) -> &Key {
        match self {
            Self::Started { group, .. }
            | Self::Ended { group, .. }
            | Self::Ongoing { group, .. } => group,
        }
    }

    /// Returns whether this is the start of a storm.
    #[must_use]
    pub const fn is_start(&self) -> bool {
        matches!(self, Self::Started { .. })
    }

    /// Reports a start or an end through metrics and tracing.
    pub(super) fn report(&self) {
        match self {
            Self::Started { name, count, threshold, .. } => {
                telemetry::storm_started(name, *count, threshold);
            }
            Self::Ended { name, peak, lasted, .. } => telemetry::storm_ended(name, *peak, *lasted),
            Self::Ongoing { .. } => {}
        }
    }
}

/// Returns the events of an outcome, the earliest first.
fn events(outcome: &StormOutcome, rule: &StormRule, group: &Key) -> Vec<StormEvent> {
    let ago = |ago| outcome.at.checked_sub(ago).unwrap_or(outcome.at);
    let name = || rule.name().to_owned();
    let (threshold, cap) = (rule.threshold(), rule.cap_per_group());
    let started = outcome.started.map(|it| {
        let (name, group, count, at) = (name(), group.clone(), it.count, ago(it.ago));
        StormEvent::Started { name, group, count, cap, threshold, at }
    });
    let ended = outcome.ended.map(|it| {
        let (name, group, peak, at) = (name(), group.clone(), it.peak, ago(it.ago));
        StormEvent::Ended { name, group, peak, cap, threshold, lasted: it.lasted, at }
    });
    let ongoing = outcome.ongoing.map(|it| {
        let (name, group, at, lasted) = (name(), group.clone(), ago(it.ago), it.lasted);
        let (count, peak) = (it.count, it.peak);
        StormEvent::Ongoing { name, group, count, peak, cap, threshold, lasted, at }
    });
    let mut events = [
        (outcome.started.map(|it| it.ago), started),
        (outcome.ongoing.map(|it| it.ago), ongoing),
        (outcome.ended.map(|it| it.ago), ended),
    ];
    events.sort_by_key(|(ago, _)| std::cmp::Reverse(*ago));
    events.into_iter().filter_map(|(_, event)| event).collect()
}

/// How many messages a group had in each step of the window, for a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    pub(super) counts: Vec<u32>,
    pub(super) step: Duration,
    pub(super) cap: u32,
}

impl Profile {
    /// Returns the counts, the oldest step first.
    ///
    /// The last step ends now. The first is shorter than the others if the window is not a whole number
    /// of steps.
    #[must_use]
    pub fn counts(&self) -> &[u32] {
        &self.counts
    }

    /// Returns the length of a step.
    #[must_use]
    pub const fn step(&self) -> Duration {
        self.step
    }

    /// Returns whether the messages have reached the rule's cap. Then only the newest are counted, and
    /// the counts of the oldest steps may be too low.
    #[must_use]
    pub fn is_saturated(&self) -> bool {
        self.counts.iter().map(|it| u64::from(*it)).sum::<u64>() >= u64::from(self.cap)
    }
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
