//! [`Rules`]: the rules of a monitor. [`Log`]: the logs that they count in.

use std::time::Duration;

use super::rule::{Counted, MAX_TEXTS, Rule};

/// The rules of a monitor, the longest mute first.
#[derive(Debug)]
pub struct Rules {
    rules: Vec<Rule>,
}

/// One of the three logs that a store keeps of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Log {
    /// The timestamps of messages, for rules that count [`Counted::Events`].
    Messages,
    /// The private-chat peers, each with the timestamp of the last message to it.
    Peers,
    /// The texts of messages, with their timestamps.
    Texts,
}

impl Log {
    /// All logs, in the order of their numbers in the scripts.
    pub const ALL: [Self; 3] = [Self::Messages, Self::Peers, Self::Texts];

    /// Returns the log that a rule counts in.
    #[must_use]
    pub const fn of(rule: &Rule) -> Self {
        match rule.counted() {
            Counted::Events => Self::Messages,
            Counted::DistinctPeers => Self::Peers,
            Counted::Similar { .. } => Self::Texts,
        }
    }
}

impl Rules {
    pub(super) fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        let mut rules: Vec<Rule> = rules.into_iter().collect();
        rules.sort_by_key(|rule| std::cmp::Reverse(rule.mute()));
        Self { rules }
    }

    /// Returns the rules, the longest mute first.
    #[must_use]
    pub fn as_slice(&self) -> &[Rule] {
        &self.rules
    }

    /// Returns the retention of a log: how long its entries are needed, and how many of the newest.
    /// Both are zero if no rule counts in the log.
    #[must_use]
    pub fn retention(&self, log: Log) -> (Duration, u32) {
        let rules = || self.rules.iter().filter(|rule| Log::of(rule) == log);
        let longest_window = rules().map(Rule::window).max().unwrap_or_default();
        let max_entries = match log {
            Log::Texts if !longest_window.is_zero() => MAX_TEXTS,
            // A rule triggers if the count-th newest entry is in its window. Older ones don't matter.
            _ => rules().map(Rule::count).max().unwrap_or(0),
        };
        (longest_window, max_entries)
    }
}
