//! Decides which rule a message triggers.

use std::time::Duration;

use super::decision::Reason;
use super::rule::{Counted, Rule};
use super::rules::Rules;
use super::similarity::Comparison;
use super::store::{History, RecordedMessage};

impl Rules {
    /// Returns the rule that a message triggers, and what triggered it. Only rules with a longer mute
    /// than the active one can trigger; of several, the one with the longest mute is returned.
    pub(super) fn judge(&self, message: &RecordedMessage, history: &History) -> Option<Reason> {
        let active_length = history.mute.as_ref().map_or(Duration::ZERO, |mute| mute.rule().mute());
        let mut similarities = None;
        self.as_slice()
            .iter()
            .zip(&history.counts)
            .filter(|(rule, count)| rule.mute() > active_length && **count >= rule.count())
            .find_map(|(rule, count)| match rule.counted() {
                Counted::Events | Counted::DistinctPeers => Some(Reason::new(*rule, *count, 0)),
                Counted::Similar { percent } => {
                    let compare = || self.compare(message, history);
                    similar(*rule, percent, similarities.get_or_insert_with(compare))
                }
            })
    }

    /// Returns the age of each earlier text and its similarity to the message in percent.
    fn compare(&self, message: &RecordedMessage, history: &History) -> Vec<(Duration, u8)> {
        let percents = self.as_slice().iter().filter_map(|rule| match rule.counted() {
            Counted::Similar { percent } => Some(percent),
            _ => None,
        });
        let least = percents.min().unwrap_or(0);
        let Some(text) = &message.text else { return Vec::new() };
        let comparison = Comparison::with(text);
        let texts = history.texts.iter();
        texts.map(|(age, text)| (*age, comparison.percent(text, least))).collect()
    }
}

/// Returns what triggers a rule about similar messages, given the similarity of the earlier messages
/// to the newest.
fn similar(rule: Rule, least: u8, similarities: &[(Duration, u8)]) -> Option<Reason> {
    let within = similarities.iter().filter(|(age, _)| *age < rule.window());
    let group = within.map(|(_, percent)| *percent).filter(|percent| *percent >= least);
    let (others, rate) = group.fold((0, 100), |(others, rate), it| (others + 1, it.min(rate)));
    (others + 1 >= rule.count()).then(|| Reason::new(rule, others + 1, rate))
}
