//! [`Check`] and [`Outcome`]: what a store is asked, and what it finds. [`Reading`] and [`StormEvent`]: what of
//! that an application sees.

use std::time::{Duration, SystemTime};

use tower_sliding_window::Key;
use uuid::Uuid;

/// A check of a group, with the message to record if there is one.
#[derive(Clone)]
pub(crate) struct Check {
    /// The id of the call. It stays the same if the call is repeated because its reply was lost.
    pub(crate) call: Uuid,
    pub(crate) group: Key,
    pub(crate) message: Option<Key>,
}

impl Check {
    pub(crate) fn new(group: Key, message: Option<Key>) -> Self {
        Self { call: Uuid::new_v4(), group, message }
    }
}

/// What a check of a group finds. The times are in microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The time of the check, by the store's clock. For display only.
    pub(crate) at: SystemTime,
    /// How many messages are in the window, at most the rule's cap.
    pub(crate) count: u32,
    /// After how long the storm could end without further messages. Zero if there is none.
    pub(crate) recheck_us: u64,
    /// How long the current storm has lasted, and its highest count.
    pub(crate) storm: Option<(u64, u32)>,
    /// How long ago this check has started a storm, and the count then.
    pub(crate) started: Option<(u64, u32)>,
    /// How long ago the storm ended whose end this check has found, how long it lasted, and its peak.
    pub(crate) ended: Option<(u64, u64, u32)>,
}

impl Outcome {
    pub(crate) fn has_event(&self) -> bool {
        self.started.is_some() || self.ended.is_some()
    }

    /// Returns the events, the earliest first.
    pub(crate) fn events(&self, group: &Key) -> Vec<StormEvent> {
        let at = |ago_us| self.at.checked_sub(Duration::from_micros(ago_us)).unwrap_or(self.at);
        let started = self.started.map(|(ago_us, count)| {
            (ago_us, StormEvent::Started { group: group.clone(), count, at: at(ago_us) })
        });
        let ended = self.ended.map(|(ago_us, lasted_us, peak)| {
            let (group, lasted, at) = (group.clone(), Duration::from_micros(lasted_us), at(ago_us));
            (ago_us, StormEvent::Ended { group, peak, lasted, at })
        });
        let mut events: Vec<_> = ended.into_iter().chain(started).collect();
        events.sort_by_key(|(ago_us, _)| std::cmp::Reverse(*ago_us));
        events.into_iter().map(|(_, event)| event).collect()
    }
}

/// The state of a group after a message was recorded, or after a [`peek`](crate::StormDetector::peek).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Reading {
    /// How many messages of the group are in the window, at most the rule's [`cap`](crate::StormRule::cap).
    pub count: u32,
    /// Whether the count has reached the cap, so that there may have been more messages.
    pub is_saturated: bool,
    /// The current storm.
    pub storm: Option<Storm>,
    /// The events that this call caused, the earliest first. No other call returns them. The hook of
    /// [`StormDetector::on_event`](crate::StormDetector::on_event) gets them too.
    pub events: Vec<StormEvent>,
}

/// A storm that is not over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Storm {
    /// How long ago it started.
    pub lasted: Duration,
    /// The highest count so far, at most the rule's [`cap`](crate::StormRule::cap).
    pub peak: u32,
}

/// The start or the end of a storm, each delivered once in the whole fleet.
///
/// The times are by the clock of Redis, or in process by the system clock. They are for display only.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StormEvent {
    /// The count of a group has exceeded the threshold.
    #[non_exhaustive]
    Started {
        /// The group of the messages.
        group: Key,
        /// How many messages were in the window, at most the cap.
        count: u32,
        /// The time of the start.
        at: SystemTime,
    },
    /// The count has fallen below [`StormRule::ends_below`](crate::StormRule::ends_below).
    #[non_exhaustive]
    Ended {
        /// The group of the messages.
        group: Key,
        /// The highest count in the storm, at most the cap.
        peak: u32,
        /// How long the storm has lasted.
        lasted: Duration,
        /// The time when the count fell, which may be before the end was detected.
        at: SystemTime,
    },
}

impl StormEvent {
    /// Returns the group of the storm.
    pub const fn group(&self) -> &Key {
        let (Self::Started { group, .. } | Self::Ended { group, .. }) = self;
        group
    }
}
