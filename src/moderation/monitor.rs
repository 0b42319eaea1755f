//! [`SpeechMonitor`]: decides on each [`Message`] and mutes senders that trigger a rule.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::audit::Audit;
use super::decision::{Mute, MuteEvent, Reason, SpeechDecision};
use super::rule::{Counted, Rule};
use super::similarity::{Comparison, normalised};
use super::store::{History, MuteRequest, RecordedMessage, Rules, SpeechStore};
use crate::error::StoreError;
use crate::hook::Hook;
use crate::key::Key;
use crate::telemetry;

/// A chat message to check: its sender, the peer if it is private, and its text.
///
/// ```
/// use tower_sliding_window::moderation::Message;
///
/// let in_a_room = Message::from("alice").text("hello, all");
/// let in_private = Message::from("alice").to("bob").text("hello, you");
/// let a_picture = Message::from("alice").to("bob");
/// assert_eq!(format!("{in_private:?}"), "Message { private: true, has_text: true, .. }");
/// ```
#[derive(Clone)]
pub struct Message {
    pub(super) sender: Key,
    pub(super) peer: Option<Key>,
    pub(super) text: Option<String>,
}

impl Message {
    /// Creates a message from a sender, not private and without a text.
    #[must_use]
    pub fn from(sender: impl Into<Key>) -> Self {
        Self { sender: sender.into(), peer: None, text: None }
    }

    /// Sets the peer of a private chat. Defaults to none, as for a message to a room.
    #[must_use]
    pub fn to(mut self, peer: impl Into<Key>) -> Self {
        self.peer = Some(peer.into());
        self
    }

    /// Sets the text. Defaults to none, as for a picture; such a message is not compared.
    ///
    /// The text is [`normalised`] here. The original is not kept.
    #[must_use]
    pub fn text(mut self, text: impl AsRef<str>) -> Self {
        self.text = Some(normalised(text.as_ref()));
        self
    }
}

impl fmt::Debug for Message {
    /// Shows neither the sender nor the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("private", &self.peer.is_some())
            .field("has_text", &self.text.is_some())
            .finish_non_exhaustive()
    }
}

/// Checks chat messages against rules and silently mutes spammers. See [the module](super).
///
/// Cloning is cheap. Clones share the rules and the store.
#[derive(Clone)]
pub struct SpeechMonitor {
    rules: Arc<Rules>,
    store: Arc<dyn SpeechStore>,
    audit: Arc<Audit>,
}

impl SpeechMonitor {
    /// Creates a monitor with rules, such as [`Rule::recommended`].
    ///
    /// Monitors on one store share the messages and the mutes of senders, and should have the same
    /// rules: each recorded message sets the retention of its sender's messages by the rules of its
    /// monitor. A monitor without rules mutes no sender, but respects the mutes of other monitors.
    #[must_use]
    pub fn new(rules: impl IntoIterator<Item = Rule>, store: impl SpeechStore) -> Self {
        let store: Arc<dyn SpeechStore> = Arc::new(store);
        let audit = Audit::new(store.clone(), None);
        Self { rules: Arc::new(Rules::new(rules)), store, audit }
    }

    /// Sets a hook to call at each mute, for an audit log. Defaults to none.
    ///
    /// The hook is called once when a mute is imposed, and once each time it is lengthened, in the
    /// process that checked the message. It runs before the decision is returned and should not block.
    /// A panic of the hook is caught and counted in [`SpeechMonitor::panicked`].
    ///
    /// If the reply of the store is lost, or the caller drops the future, a background task queries
    /// the store until it replies or the mute is over, and calls the hook. There are at most 1,000 such
    /// tasks. Beyond that, and without a tokio runtime, the hook is not called, and the event is counted
    /// in the metric `sliding_window_mute_events_lost_total`. The hook is not called either if the
    /// process ends between the mute and the call.
    #[must_use]
    pub fn on_mute(mut self, hook: impl Fn(&MuteEvent) + Send + Sync + 'static) -> Self {
        let hook = Hook::new(hook, telemetry::mute_hook_panicked);
        self.audit = Audit::new(self.store.clone(), Some(hook));
        self
    }

    /// Returns how many times the hook has panicked.
    #[must_use]
    pub fn panicked(&self) -> u64 {
        self.audit.panicked()
    }

    /// Waits until the background tasks for lost replies have finished.
    pub async fn settled(&self) {
        self.audit.settled().await;
    }

    /// Returns the rules, the longest mute first.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        self.rules.as_slice()
    }

    /// Records a message and decides whether to deliver it.
    ///
    /// Takes one call of the store, and another one if the message triggers a rule.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store could not decide. The message may have been recorded. Most chats
    /// then deliver it: the sender's next message imposes the mute that could not be imposed now.
    pub async fn check(&self, message: &Message) -> Result<SpeechDecision, StoreError> {
        self.decide(message).await.inspect_err(StoreError::report)
    }

    async fn decide(&self, message: &Message) -> Result<SpeechDecision, StoreError> {
        let message = RecordedMessage {
            id: Uuid::new_v4(),
            sender: message.sender.clone(),
            peer: message.peer.clone(),
            text: message.text.as_deref().map(Arc::from),
            rules: self.rules.clone(),
        };
        let history = self.store.record(&message).await?;
        let mute = match self.rules.judge(&message, &history) {
            None => match (history.mute, history.not_recorded) {
                (None, Some(error)) => return Err(error),
                (mute, _) => mute,
            },
            Some(reason) => {
                let RecordedMessage { id, sender, .. } = message;
                self.audit
                    .impose(MuteRequest { id, timestamp: history.timestamp, sender, reason })
                    .await?
            }
        };
        Ok(mute.map_or(SpeechDecision::Delivered, SpeechDecision::Muted))
    }

    /// Returns the active mute of a sender.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store did not reply.
    pub async fn mute_of(&self, sender: impl Into<Key>) -> Result<Option<Mute>, StoreError> {
        self.store.mute_of(&sender.into()).await
    }

    /// Lifts the mute of a sender and deletes the sender's recorded messages, which would cause a new
    /// mute.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store did not reply.
    pub async fn unmute(&self, sender: impl Into<Key>) -> Result<(), StoreError> {
        self.store.forget(&sender.into()).await
    }
}

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

impl fmt::Debug for SpeechMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpeechMonitor").field("rules", &self.rules()).finish_non_exhaustive()
    }
}
