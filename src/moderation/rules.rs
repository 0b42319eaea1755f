//! [`Rules`]: all the rules of a monitor, and what a message completes of them.

use std::time::Duration;

use super::decision::Reason;
use super::rule::{Counted, KEPT_TEXTS, Rule};
use super::similarity::Comparison;
use super::store::{History, RecordedMessage};

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

    /// Returns how far back a log is needed, in microseconds, and how many of its newest entries.
    /// None are if no rule counts in it.
    #[must_use]
    pub fn needs(&self, log: Log) -> (u64, u32) {
        let rules = || self.rules.iter().filter(|rule| Log::of(rule) == log);
        let longest_window_us = rules().map(Rule::window_us).max().unwrap_or(0);
        let kept = match log {
            Log::Texts if longest_window_us > 0 => KEPT_TEXTS,
            // A rule is completed if the count-th newest is in its window: nobody asks for more.
            _ => rules().map(Rule::count).max().unwrap_or(0),
        };
        (longest_window_us, kept)
    }

    /// Returns what a message completes: of the rules whose mute is longer than the one that
    /// stands, that with the longest.
    pub(super) fn judge(&self, message: &RecordedMessage, history: &History) -> Option<Reason> {
        let stands_for = history.mute.as_ref().map_or(Duration::ZERO, |mute| mute.rule().mute());
        let mut alike = None;
        self.rules
            .iter()
            .zip(&history.counts)
            .filter(|(rule, count)| rule.mute() > stands_for && **count >= rule.count())
            .find_map(|(rule, count)| match rule.counted() {
                Counted::Events | Counted::DistinctPeers => Some(Reason::new(*rule, *count, 0)),
                Counted::Similar { percent } => {
                    let alike = alike.get_or_insert_with(|| self.compare(message, history));
                    similar(*rule, percent, alike)
                }
            })
    }

    /// Returns the age of each earlier text and how much it is like that of the message.
    fn compare(&self, message: &RecordedMessage, history: &History) -> Vec<(u64, u8)> {
        let percents = self.rules.iter().filter_map(|rule| match rule.counted() {
            Counted::Similar { percent } => Some(percent),
            _ => None,
        });
        let least = percents.min().unwrap_or(0);
        let Some(text) = &message.text else { return Vec::new() };
        let comparison = Comparison::with(text);
        let texts = history.texts.iter();
        texts.map(|(age_us, text)| (*age_us, comparison.percent(text, least))).collect()
    }
}

/// Returns what completes a rule about similar messages, given those before the newest.
fn similar(rule: Rule, least: u8, alike: &[(u64, u8)]) -> Option<Reason> {
    let within = alike.iter().filter(|(age_us, _)| *age_us < rule.window_us());
    let group = within.map(|(_, percent)| *percent).filter(|percent| *percent >= least);
    let (others, rate) = group.fold((0, 100), |(others, rate), it| (others + 1, it.min(rate)));
    (others + 1 >= rule.count()).then(|| Reason::new(rule, others + 1, rate))
}
