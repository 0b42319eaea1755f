//! Which rule a message completes.

use std::time::Duration;

use super::decision::Reason;
use super::rule::{Counted, Rule};
use super::rules::Rules;
use super::similarity::Comparison;
use super::store::{History, RecordedMessage};

impl Rules {
    /// Returns what a message completes: of the rules whose mute is longer than the one that
    /// stands, that with the longest.
    pub(super) fn judge(&self, message: &RecordedMessage, history: &History) -> Option<Reason> {
        let stands_for = history.mute.as_ref().map_or(Duration::ZERO, |mute| mute.rule().mute());
        let mut alike = None;
        self.as_slice()
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

/// Returns what completes a rule about similar messages, given those before the newest.
fn similar(rule: Rule, least: u8, alike: &[(Duration, u8)]) -> Option<Reason> {
    let within = alike.iter().filter(|(age, _)| *age < rule.window());
    let group = within.map(|(_, percent)| *percent).filter(|percent| *percent >= least);
    let (others, rate) = group.fold((0, 100), |(others, rate), it| (others + 1, it.min(rate)));
    (others + 1 >= rule.count()).then(|| Reason::new(rule, others + 1, rate))
}
