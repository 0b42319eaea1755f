//! [`Reading`]: how a group stands; [`StormEvent`]: that a storm has started or ended.

use std::time::{Duration, SystemTime};

use super::rule::StormRule;
use super::store::StormOutcome;
use crate::error::StoreError;
use crate::key::Key;
use crate::quota::Quota;
use crate::telemetry;

/// How a group stands, with the message that was recorded.
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

    /// Returns how many messages the group's window holds, at most the rule's
    /// [`cap`](StormRule::cap).
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.outcome.count
    }

    /// Tells whether the count has reached the cap, so that there may have been more messages.
    #[must_use]
    pub const fn is_saturated(&self) -> bool {
        self.outcome.count >= self.cap
    }

    /// Tells whether the message was in the window already, and so was not counted again.
    #[must_use]
    pub const fn is_repeated(&self) -> bool {
        self.outcome.is_repeated
    }

    /// Returns the storm that goes on.
    #[must_use]
    pub fn storm(&self) -> Option<Storm> {
        let storm = self.outcome.storm?;
        let (lasted, peak) = storm;
        Some(Storm { lasted, peak, is_saturated: peak >= self.cap })
    }

    /// Returns what this very call has decided, and no other call is told. It is also told to
    /// [`StormDetector::on_event`](crate::StormDetector::on_event).
    #[must_use]
    pub fn events(&self) -> &[StormEvent] {
        &self.events
    }
}

/// A storm that goes on.
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

    /// Returns the highest count in it, at most the rule's [`cap`](StormRule::cap).
    #[must_use]
    pub const fn peak(&self) -> u32 {
        self.peak
    }

    /// Tells whether the highest count has reached the cap, so that it may have been higher.
    #[must_use]
    pub const fn is_saturated(&self) -> bool {
        self.is_saturated
    }
}

/// That a storm has started or ended; each once in the whole fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StormEvent {
    /// A group has had more messages within the window than the threshold.
    #[non_exhaustive]
    Started {
        /// The name of the rule.
        name: String,
        /// Whose messages they are.
        group: Key,
        /// How many the window held, at most the cap.
        count: u32,
        /// How many of a group are counted at the most.
        cap: u32,
        /// Above how many in how long a storm starts.
        threshold: Quota,
        /// When, on the clock of Redis, or on the system's for a store in this process. For people
        /// to read.
        at: SystemTime,
    },
    /// A storm is over: the count fell below [`StormRule::ends_below`].
    #[non_exhaustive]
    Ended {
        /// The name of the rule.
        name: String,
        /// Whose messages they are.
        group: Key,
        /// The highest count in the storm, at most the cap.
        peak: u32,
        /// How many of a group are counted at the most.
        cap: u32,
        /// Above how many in how long a storm starts.
        threshold: Quota,
        /// How long the storm has lasted.
        lasted: Duration,
        /// When the count fell, which may be before anybody looked.
        at: SystemTime,
    },
}

impl StormEvent {
    /// Returns the group whose storm it is.
    #[must_use]
    pub const fn group(&self) -> &Key {
        match self {
            Self::Started { group, .. } | Self::Ended { group, .. } => group,
        }
    }

    /// Tells whether it is the start of a storm, and not the end.
    #[must_use]
    pub const fn is_start(&self) -> bool {
        matches!(self, Self::Started { .. })
    }

    /// Reports the event through metrics and tracing.
    pub(super) fn report(&self) {
        match self {
            Self::Started { name, count, threshold, .. } => {
                telemetry::storm_started(name, *count, threshold);
            }
            Self::Ended { name, peak, lasted, .. } => telemetry::storm_ended(name, *peak, *lasted),
        }
    }
}

/// Returns what was decided, in the order in which it happened.
fn events(outcome: &StormOutcome, rule: &StormRule, group: &Key) -> Vec<StormEvent> {
    let ago = |ago| outcome.at.checked_sub(ago).unwrap_or(outcome.at);
    let name = || rule.name().to_owned();
    let (threshold, cap) = (rule.threshold(), rule.cap_per_group());
    let started = outcome.started.map(|it| {
        let (name, group, count, at) = (name(), group.clone(), it.count, ago(it.ago));
        (it.ago, StormEvent::Started { name, group, count, cap, threshold, at })
    });
    let ended = outcome.ended.map(|it| {
        let (name, group, peak, at) = (name(), group.clone(), it.peak, ago(it.ago));
        let lasted = it.lasted;
        (it.ago, StormEvent::Ended { name, group, peak, cap, threshold, lasted, at })
    });
    let mut events: Vec<_> = started.into_iter().chain(ended).collect();
    events.sort_by_key(|(ago, _)| std::cmp::Reverse(*ago));
    events.into_iter().map(|(_, event)| event).collect()
}

/// How many messages a group has had in each step of the window, for a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    pub(super) counts: Vec<u32>,
    pub(super) step: Duration,
    pub(super) cap: u32,
}

impl Profile {
    /// Returns the counts, the oldest step first.
    ///
    /// The last step ends now. The first is shorter than the others if the window is no whole number
    /// of steps.
    #[must_use]
    pub fn counts(&self) -> &[u32] {
        &self.counts
    }

    /// Returns how long a step is.
    #[must_use]
    pub const fn step(&self) -> Duration {
        self.step
    }

    /// Tells whether there are as many messages as the rule's cap: then only the newest are counted,
    /// and the oldest steps may be missing some.
    #[must_use]
    pub fn is_saturated(&self) -> bool {
        self.counts.iter().map(|it| u64::from(*it)).sum::<u64>() >= u64::from(self.cap)
    }
}

/// Why there is no [`Profile`].
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The step is shorter than a microsecond.
    #[error("a step of a profile must be at least 1us")]
    ZeroStep,
    /// The window has more steps than are counted at once.
    #[error("a profile of {steps} steps is too long: take longer steps, at most {most} of them")]
    TooManySteps {
        /// How many steps the window has.
        steps: u64,
        /// How many it may have.
        most: u64,
    },
    /// The store could not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}
