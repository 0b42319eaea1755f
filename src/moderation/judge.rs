//! Which rule a message triggers.

use std::time::Duration;

use super::decision::Reason;
use super::rule::{Counted, Rule};
use super::store::{Fingerprint, History, RecordedMessage, Rules};

impl Rules {
    /// Returns the rule that a message triggers, and what triggered it. Only rules with a longer mute
    /// than the active one can trigger; of several, the one with the longest mute is returned.
    pub(super) fn judge(&self, message: &RecordedMessage, history: &History) -> Option<Reason> {
        let active_length = history.mute.as_ref().map_or(Duration::ZERO, |mute| mute.rule().mute());
        let mut similarities: Option<Vec<u8>> = None;
        self.as_slice()
            .iter()
            .zip(&history.counts)
            .filter(|(rule, count)| rule.mute() > active_length && **count >= rule.count())
            .find_map(|(rule, count)| {
                let is_long = |it: &&Fingerprint| it.length() >= rule.get_min_length();
                let text = message.text.as_ref().filter(is_long);
                let Counted::Similar { percent } = rule.counted() else {
                    let is_counted = rule.default_min_length() == 0 || text.is_some();
                    return is_counted.then(|| Reason::new(*rule, *count, 0));
                };
                let text = text?;
                let similarities = similarities.get_or_insert_with(|| {
                    history.texts.iter().map(|(_, other)| text.similarity(other)).collect()
                });
                similar(*rule, percent, history, similarities)
            })
    }
}

/// Returns what triggers a rule about similar messages.
fn similar(rule: Rule, least: u8, history: &History, similarities: &[u8]) -> Option<Reason> {
    let group = history.texts.iter().zip(similarities).filter(|((age, text), percent)| {
        *age < rule.window() && text.length() >= rule.get_min_length() && **percent >= least
    });
    let (others, rate) =
        group.fold((0, 100), |(others, rate), (_, percent)| (others + 1, rate.min(*percent)));
    (others + 1 >= rule.count()).then(|| Reason::new(rule, others + 1, rate))
}
