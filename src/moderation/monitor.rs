//! [`SpeechMonitor`]: decides on each message, and mutes who completes a rule.

use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

use super::audit::Audit;
use super::decision::{Mute, MuteEvent, SpeechDecision};
use super::message::Message;
use super::rule::Rule;
use super::rules::Rules;
use super::store::{MuteRequest, RecordedMessage, SpeechStore};
use crate::error::StoreError;
use crate::hook::Hook;
use crate::key::Key;
use crate::telemetry;

/// Judges messages by rules, and mutes senders in silence; see [the module](super).
///
/// A cheap handle: clones share the rules and the store.
#[derive(Clone)]
pub struct SpeechMonitor {
    rules: Arc<Rules>,
    store: Arc<dyn SpeechStore>,
    audit: Arc<Audit>,
}

impl SpeechMonitor {
    /// Creates a monitor that mutes by these rules, such as [`Rule::recommended`].
    ///
    /// Monitors on one store share what senders said and their mutes, and should have the same
    /// rules: what is kept is kept for as long as the one that was asked last needs it. Without a
    /// rule a monitor mutes nobody, and heeds the mutes of others.
    #[must_use]
    pub fn new(rules: impl IntoIterator<Item = Rule>, store: impl SpeechStore) -> Self {
        let store: Arc<dyn SpeechStore> = Arc::new(store);
        let audit = Audit::new(store.clone(), None);
        Self { rules: Arc::new(Rules::new(rules)), store, audit }
    }

    /// Sets what is told of each mute, for the audit. Defaults to nothing.
    ///
    /// It is called once for each mute, and once for each time that it became longer, in whichever
    /// process the message came to. It runs before the decision is returned and should not block. A
    /// panic in it is caught and counted in [`SpeechMonitor::panicked`].
    ///
    /// If the reply of the store is lost, or the caller leaves before it comes, the store is asked
    /// again in the background, until it answers or the mute is over. The hook is then called on a
    /// task of the runtime. Up to 1,000 lost replies are asked about at once; above that, and without
    /// a tokio runtime, the hook is not called, which is counted in the metric
    /// `sliding_window_mute_events_lost_total`. If the process ends between the mute and the call, the
    /// hook is not called either.
    ///
    /// ```
    /// use tower_sliding_window::MemoryStore;
    /// use tower_sliding_window::moderation::{Rule, SpeechMonitor};
    ///
    /// let monitor = SpeechMonitor::new(Rule::recommended(), MemoryStore::new())
    ///     .on_mute(|event| println!("muted by {:?}: {}", event.mute.rule(), event.mute.reason()));
    /// ```
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

    /// Waits until the store has been asked about all mutes whose reply was lost.
    pub async fn settled(&self) {
        self.audit.settled().await;
    }

    /// Returns the rules, the longest mute first.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        self.rules.as_slice()
    }

    /// Records a message and decides whether it is delivered.
    ///
    /// One call of the store, and another one if the message completes a rule.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store could not decide. The message may have been recorded. Most
    /// chats will then deliver it: a mute that can't be imposed now is imposed by the sender's next
    /// message.
    pub async fn check(&self, message: &Message) -> Result<SpeechDecision, StoreError> {
        let decision = self.decide(message).await;
        if let Err(error) = &decision {
            error.report();
        }
        decision
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
            None => match (history.mute, history.unkept) {
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

    /// Returns the mute of a sender that stands.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store can't tell.
    pub async fn mute_of(&self, sender: impl Into<Key>) -> Result<Option<Mute>, StoreError> {
        self.store.mute_of(&sender.into()).await
    }

    /// Lifts the mute of a sender, and forgets what they said, which would mute them again.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store can't be told.
    pub async fn unmute(&self, sender: impl Into<Key>) -> Result<(), StoreError> {
        self.store.forget(&sender.into()).await
    }
}

impl fmt::Debug for SpeechMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpeechMonitor").field("rules", &self.rules()).finish_non_exhaustive()
    }
}
