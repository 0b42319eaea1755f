//! [`SpeechMonitor`]: decides on each message and mutes senders that trigger a rule.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ahash::RandomState;
use tokio::time::Instant;
use uuid::Uuid;

use super::audit::Audit;
use super::decision::{Mute, MuteEvent, Reason, SpeechDecision};
use super::known_mutes::KnownMutes;
use super::message::Message;
use super::rule::{Counted, Rule};
use super::shares::Shares;
use super::store::{Fingerprint, MuteRequest, RecordedMessage, Rules, SpeechStore};
use crate::error::StoreError;
use crate::hook::Hook;
use crate::key::Key;
use crate::telemetry;

/// How many messages of a sender are checked at a time in a process.
const AT_A_TIME: usize = 4;

/// Checks chat messages against rules and silently mutes spammers. See [the module](super).
///
/// Cloning is cheap. Clones share the rules and the store.
#[derive(Clone)]
pub struct SpeechMonitor {
    rules: Arc<Rules>,
    campaigns: Arc<Rules>,
    first_mutes: Arc<[Duration]>,
    shares: Arc<Shares>,
    pub(super) store: Arc<dyn SpeechStore>,
    audit: Arc<Audit>,
    exempt: Arc<HashSet<Key, RandomState>>,
    known: Arc<KnownMutes>,
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
        let is_campaign = |rule: &Rule| rule.counted() == Counted::Campaign;
        let (campaigns, rules): (Vec<_>, Vec<_>) = rules.into_iter().partition(is_campaign);
        Self {
            rules: Arc::new(Rules::new(rules)),
            campaigns: Arc::new(Rules::new(campaigns)),
            first_mutes: Arc::default(),
            shares: Shares::new(AT_A_TIME),
            store,
            audit,
            exempt: Arc::default(),
            known: Arc::new(KnownMutes::new()),
        }
    }

    /// Sets how long the first mutes of a sender last at most, such as `[10 min, 1 h]`. A further mute
    /// in a row lasts as long as its rule says. Defaults to none: the first mute is as long as the
    /// others.
    ///
    /// Mutes are in a row if each begins within a day after the end of the one before. A mute that
    /// another rule lengthens is one mute. Manual mutes are not counted and not shortened.
    #[must_use]
    pub fn first_mutes(mut self, lengths: impl IntoIterator<Item = Duration>) -> Self {
        self.first_mutes = lengths.into_iter().collect();
        self
    }

    /// Exempts senders from the rules, such as support staff that answer many customers. Defaults to
    /// none.
    ///
    /// Their messages are not recorded, and mutes that rules have imposed on them do not hold. Manual
    /// mutes do: [`SpeechMonitor::check`] takes one call of the store to find them.
    #[must_use]
    pub fn exempt(mut self, senders: impl IntoIterator<Item: Into<Key>>) -> Self {
        let mut exempt = HashSet::clone(&self.exempt);
        exempt.extend(senders.into_iter().map(Into::into));
        self.exempt = Arc::new(exempt);
        self
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

    /// Records a message and decides whether to deliver it.
    ///
    /// Takes one call of the store, another one if the message triggers a rule, and one more for a text
    /// that is long enough for a rule about campaigns. Of one sender, four messages are checked at a
    /// time in this process. Further ones wait, so that one sender does not keep the store from the
    /// others.
    ///
    /// If the store fails, a mute that this process has seen still holds until it ends, see
    /// [the module](super#if-the-store-fails).
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store could not decide and no mute of the sender is known. The message
    /// may have been recorded. Most chats then deliver it: the sender's next message imposes the mute
    /// that could not be imposed now.
    pub async fn check(&self, message: &Message) -> Result<SpeechDecision, StoreError> {
        let mute = self.decide(message).await.inspect_err(StoreError::report);
        let mute = mute.or_else(|error| self.known_mute(&message.sender, error))?;
        Ok(mute.map_or(SpeechDecision::Delivered, SpeechDecision::Muted))
    }

    async fn decide(&self, message: &Message) -> Result<Option<Mute>, StoreError> {
        if self.exempt.contains(&message.sender) {
            return self.stored_mute(&message.sender).await;
        }
        let _under_way = self.shares.wait(&message.sender).await;
        let campaign = self.campaign(message);
        let is_long = |text: &Fingerprint| text.length() >= self.rules.min_length();
        let message = RecordedMessage {
            id: Uuid::new_v4(),
            sender: message.sender.clone(),
            peer: message.peer.clone(),
            text: message.text.clone().filter(is_long),
            rules: self.rules.clone(),
        };
        let sent = Instant::now();
        let history = self.store.record(&message).await?;
        self.known.observe(&message.sender, sent, history.mute.as_ref());
        let mut reason = self.rules.judge(&message, &history);
        if let Some(campaign) = campaign {
            let length = |reason: &Option<Reason>| reason.map(|reason| reason.rule.mute());
            let active = history.mute.as_ref().map(|mute| mute.rule().mute());
            let senders = self.store.record(&campaign).await?;
            let found = self.campaigns.judge(&campaign, &senders);
            if length(&found) > length(&reason).max(active) {
                reason = found;
            }
        }
        let Some(reason) = reason else {
            return match (history.mute, history.not_recorded) {
                (None, Some(error)) => Err(error),
                (mute, _) => Ok(mute),
            };
        };
        let RecordedMessage { id, sender, .. } = message;
        let (timestamp, first_mutes) = (history.timestamp, self.first_mutes.clone());
        self.impose(MuteRequest { id, timestamp, sender, reason, first_mutes }).await
    }

    /// Returns what to record of a text that may be part of a campaign: a message from the text to its
    /// sender.
    fn campaign(&self, message: &Message) -> Option<RecordedMessage> {
        let text = message.text.as_ref().filter(|_| !self.campaigns.as_slice().is_empty())?;
        (text.length() >= self.campaigns.min_length()).then(|| RecordedMessage {
            id: Uuid::new_v4(),
            sender: text.campaign(),
            peer: Some(message.sender.clone()),
            text: Some(text.clone()),
            rules: self.campaigns.clone(),
        })
    }

    async fn impose(&self, request: MuteRequest) -> Result<Option<Mute>, StoreError> {
        let (sender, sent) = (request.sender.clone(), Instant::now());
        let mute = self.audit.impose(request).await?;
        self.known.observe(&sender, sent, mute.as_ref());
        Ok(mute)
    }

    /// Returns the active mute of a sender. If the store fails, returns the one that this process knows
    /// of.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store did not reply and no mute of the sender is known.
    pub async fn mute_of(&self, sender: impl Into<Key>) -> Result<Option<Mute>, StoreError> {
        let sender = sender.into();
        self.stored_mute(&sender).await.or_else(|error| self.known_mute(&sender, error))
    }

    pub(super) async fn stored_mute(&self, sender: &Key) -> Result<Option<Mute>, StoreError> {
        let sent = Instant::now();
        let mute = self.store.mute_of(sender).await?;
        self.known.observe(sender, sent, mute.as_ref());
        Ok(mute.filter(|mute| self.holds(sender, mute)))
    }

    /// Returns the mute that this process knows of, or the error of the store.
    fn known_mute(&self, sender: &Key, error: StoreError) -> Result<Option<Mute>, StoreError> {
        let mute = self.known.get(sender).filter(|mute| self.holds(sender, mute));
        mute.map(Some).ok_or(error)
    }

    fn holds(&self, sender: &Key, mute: &Mute) -> bool {
        mute.is_manual() || !self.exempt.contains(sender)
    }

    /// Mutes a sender for `duration` from now, unless the active mute ends later. Returns the mute that
    /// is active afterwards.
    ///
    /// The mute is silent as any other, and silences exempt senders too. A rule lengthens it if the
    /// rule's mute is longer than `duration`. If the active mute of an exempt sender is of a rule and
    /// ends later, the manual one replaces it and ends with it. [`SpeechMonitor::on_mute`] is called
    /// for it. The shortest duration is a microsecond, the longest a hundred years: others are
    /// replaced by these.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store did not reply. The sender may be muted.
    pub async fn mute(
        &self,
        sender: impl Into<Key>,
        duration: Duration,
    ) -> Result<Mute, StoreError> {
        let sender = sender.into();
        let mute = self.impose_manually(&sender, duration).await?;
        if self.holds(&sender, &mute) {
            return Ok(mute);
        }
        // The mute of a rule that ends later would keep out the manual one.
        self.impose_manually(&sender, mute.remaining() + Duration::from_micros(1)).await
    }

    async fn impose_manually(&self, sender: &Key, duration: Duration) -> Result<Mute, StoreError> {
        let reason = Reason::new(Rule::manual(duration), 0, 0);
        let (id, timestamp, sender) = (Uuid::new_v4(), Duration::ZERO, sender.clone());
        let mute = self
            .impose(MuteRequest { id, timestamp, sender, reason, first_mutes: Arc::default() })
            .await?;
        mute.ok_or_else(|| StoreError::Protocol { message: "expected a mute".to_owned() })
    }

    /// Lifts the mute of a sender and deletes the sender's recorded messages, which would cause a new
    /// mute.
    ///
    /// In this process the mute ends even if the store fails. It may be active again when the store
    /// replies again.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store did not reply.
    pub async fn unmute(&self, sender: impl Into<Key>) -> Result<(), StoreError> {
        let sender = sender.into();
        self.known.lift(&sender);
        self.store.forget(&sender).await?;
        // Again, because a check between the two may have found the mute.
        self.known.lift(&sender);
        Ok(())
    }
}

impl fmt::Debug for SpeechMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpeechMonitor")
            .field("rules", &self.rules)
            .field("campaigns", &self.campaigns)
            .finish_non_exhaustive()
    }
}
