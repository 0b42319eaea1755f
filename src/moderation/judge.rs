//! Which rule a message triggers.

use std::sync::Arc;
use std::time::Duration;

use super::decision::Reason;
use super::rule::{Counted, Rule};
use super::similarity::Comparison;
use super::store::{History, RecordedMessage, Rules};

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
                    let text = message.text.as_deref()?;
                    let compare = || self.compare(text, history);
                    let compared = similarities.get_or_insert_with(compare);
                    has_length(text, rule).then(|| similar(*rule, percent, compared))?
                }
                Counted::Manual => None,
            })
    }

    /// Compares the earlier texts with that of the message.
    fn compare(&self, text: &str, history: &History) -> Vec<Compared> {
        let percents = self.as_slice().iter().filter_map(|rule| match rule.counted() {
            Counted::Similar { percent } => Some(percent),
            _ => None,
        });
        let least = percents.min().unwrap_or(0);
        let comparison = Comparison::with(text);
        let compare = |(age, text): &(Duration, Arc<str>)| Compared {
            age: *age,
            length: text.chars().count(),
            percent: comparison.percent(text, least),
        };
        history.texts.iter().map(compare).collect()
    }
}

/// An earlier text, and its similarity to the newest in percent.
struct Compared {
    age: Duration,
    length: usize,
    percent: u8,
}

/// Returns whether a text is long enough to count in a rule.
fn has_length(text: &str, rule: &Rule) -> bool {
    text.chars().count() >= usize::from(rule.get_min_length())
}

/// Returns what triggers a rule about similar messages, given the earlier messages.
fn similar(rule: Rule, least: u8, earlier: &[Compared]) -> Option<Reason> {
    let min_length = usize::from(rule.get_min_length());
    let counts =
        |it: &&Compared| it.age < rule.window() && it.length >= min_length && it.percent >= least;
    let group = earlier.iter().filter(counts);
    let (others, rate) =
        group.fold((0, 100), |(others, rate), it| (others + 1, it.percent.min(rate)));
    (others + 1 >= rule.count()).then(|| Reason::new(rule, others + 1, rate))
}
