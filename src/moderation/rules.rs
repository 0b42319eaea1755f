//! [`Rules`]: all the rules of a monitor, and the logs that they count in.

use std::time::Duration;

use super::rule::{Counted, KEPT_TEXTS, Rule};

/// The rules of a monitor, the longest mute first.
#[derive(Debug)]
pub struct Rules {
    rules: Vec<Rule>,
}

/// What a store keeps of a sender: three logs, each for the rules that count in it.
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
    /// All of them, in the order in which the scripts number them.
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

    /// Returns how far back a log is needed, and how many of its newest entries. None are if no rule
    /// counts in it.
    #[must_use]
    pub fn needs(&self, log: Log) -> (Duration, u32) {
        let rules = || self.rules.iter().filter(|rule| Log::of(rule) == log);
        let longest_window = rules().map(Rule::window).max().unwrap_or_default();
        let kept = match log {
            Log::Texts if !longest_window.is_zero() => KEPT_TEXTS,
            // A rule is completed if the count-th newest is in its window: nobody asks for more.
            _ => rules().map(Rule::count).max().unwrap_or(0),
        };
        (longest_window, kept)
    }
}
