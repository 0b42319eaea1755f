//! [`SpeechMonitor`]: decides on each message and mutes senders that trigger a rule.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tower_sliding_window::store::Store;
use tower_sliding_window::{
    Ban, Bans, Decision, Key, Limiter, MemoryStore, Penalty, Policy, PolicyHandle, Quota,
    RedisStore, StoreError,
};
use uuid::Uuid;

use crate::decision::{MANUAL, Message, Mute, MuteEvent, SpeechDecision, reason};
use crate::logs::{History, InProcess, Logs, OnRedis, Record, Rules};
use crate::rule::{Counted, Rule};

/// How many bytes the senders of a process take, as they count them. What their table takes besides, and a second
/// one while it is made anew, make up the rest of the documented 256 MiB.
pub(crate) const BUDGET: usize = 150 << 20;
/// The pause before the store is queried about a lost reply. It doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How late a call on an abandoned connection may run.
const LATEST: Duration = Duration::from_secs(if cfg!(test) { 5 } else { 10 });

type Hook = dyn Fn(&MuteEvent) + Send + Sync;

/// A mute to impose.
struct NewMute {
    sender: Key,
    length: Duration,
    /// The reason, with the identity of the message.
    reason: String,
    /// How long the mute of before still lasts.
    muted: Duration,
    /// Whether a mute that was imposed for as long stays as it is.
    only_longer: bool,
}

/// Checks chat messages against rules and silently mutes spammers. See [the crate](crate).
///
/// Cloning is cheap. Clones share the rules and the store.
#[derive(Clone)]
pub struct SpeechMonitor {
    rules: Arc<Rules>,
    exempt: Arc<HashSet<Key>>,
    logs: Logs,
    bans: Bans,
    /// Finds the mutes of senders. It counts nothing.
    limiter: Limiter,
    hook: Option<Arc<Hook>>,
    /// Each task that imposes a mute has a receiver.
    imposing: watch::Sender<()>,
}

impl SpeechMonitor {
    /// Creates a monitor with rules, such as [`Rule::recommended`], for one process.
    ///
    /// The senders take at most 256 MiB, about 600 bytes and 100 to 320 more for each message in the
    /// windows. Beyond that, what those wrote is forgotten that wrote longest ago. Mutes are not: up to a
    /// million stand at a time.
    #[must_use]
    pub fn in_process(rules: impl IntoIterator<Item = Rule>) -> Self {
        Self::with_budget(rules, BUDGET)
    }

    pub(crate) fn with_budget(rules: impl IntoIterator<Item = Rule>, budget: usize) -> Self {
        let logs = Logs::InProcess(Arc::new(Mutex::new(InProcess::new(budget))));
        Self::new(rules, logs, MemoryStore::new())
    }

    /// Creates a monitor with rules for all processes that share a Redis.
    ///
    /// Monitors on one Redis share the messages and the mutes of senders, and should have the same rules:
    /// each recorded message sets the retention of its sender's messages by the rules of its monitor. A
    /// monitor without rules mutes no sender, but respects the mutes of other monitors.
    #[must_use]
    pub fn on_redis(rules: impl IntoIterator<Item = Rule>, store: &RedisStore) -> Self {
        Self::with_scripts(rules, store, str::to_owned)
    }

    pub(crate) fn with_scripts(
        rules: impl IntoIterator<Item = Rule>,
        store: &RedisStore,
        change: impl Fn(&str) -> String,
    ) -> Self {
        let logs = Logs::OnRedis(Arc::new(OnRedis::new(store, change)));
        Self::new(rules, logs, store.clone())
    }

    fn new(rules: impl IntoIterator<Item = Rule>, logs: Logs, store: impl Store + Clone) -> Self {
        // The quota limits nothing: the limiter is asked about requests that take no place.
        let policy = Policy::new("speech").quota(Quota::per_second(1)).penalty(Penalty::manual());
        let policy = PolicyHandle::new(policy);
        Self {
            rules: Arc::new(Rules::new(rules)),
            exempt: Arc::default(),
            logs,
            bans: Bans::new(&policy, store.clone()),
            limiter: Limiter::new(&policy, store),
            hook: None,
            imposing: watch::Sender::default(),
        }
    }

    /// Exempts senders from the rules, such as support staff that answer many customers. Defaults to
    /// none.
    ///
    /// Their messages are not recorded. A mute that stands still holds: [`SpeechMonitor::unmute`] ends it.
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
    /// If it panics, the mute stands, and the check, or [`SpeechMonitor::mute`], ends with an error on a runtime. A check whose
    /// sender was muted already is still decided.
    ///
    /// If a reply of the store is lost, or the caller drops the future, a background task queries the
    /// store until it replies or the mute is over, and calls the hook. The hook is not called if the
    /// process ends between the mute and the call, or if another mute has replaced it before the store
    /// replies.
    #[must_use]
    pub fn on_mute(mut self, hook: impl Fn(&MuteEvent) + Send + Sync + 'static) -> Self {
        self.hook = Some(Arc::new(hook));
        self
    }

    /// Waits until no mute is being imposed, also in the background.
    pub async fn settled(&self) {
        self.imposing.closed().await;
    }

    /// Records a message and decides whether to deliver it.
    ///
    /// Takes a look for the sender's mute, which shares its call of the store with others, and one call
    /// to record the message; two short ones more if the message triggers a rule.
    ///
    /// If the store fails, a mute that this process has seen still holds until it ends.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store could not decide and no mute of the sender is known. If the store
    /// is too busy to look for the mute, that is an error also if one is known: it is no outage, so nothing
    /// decides in its place. The message may have been recorded. Most chats then deliver it: the sender's next message imposes the mute
    /// that could not be imposed now.
    pub async fn check(&self, message: &Message) -> Result<SpeechDecision, StoreError> {
        let sender = &message.sender;
        let muted = self.muted(sender).await?;
        if self.exempt.contains(sender) {
            return Ok(decision(muted));
        }
        let checked = async {
            match self.judge(message, muted).await? {
                Some(mute) => Ok(self.impose(mute).await?.remaining),
                None => Ok(muted),
            }
        };
        match checked.await {
            Err(_) if !muted.is_zero() => Ok(decision(muted)),
            checked => checked.map(decision),
        }
    }

    /// Returns how long the mute of a sender still lasts, zero if there is none.
    async fn muted(&self, sender: &Key) -> Result<Duration, StoreError> {
        Ok(match self.limiter.check_cost(sender.clone(), 0).await? {
            Decision::Denied(denied) => denied.usage().banned_for().unwrap_or_default(),
            Decision::Admitted(_) => Duration::ZERO,
        })
    }

    /// Records a message, and returns the mute of the rule that it triggers: of several the longest.
    async fn judge(
        &self,
        message: &Message,
        muted: Duration,
    ) -> Result<Option<NewMute>, StoreError> {
        // The longest mutes come first. The others can't lengthen the one that stands.
        let longer = self.rules.rules.partition_point(|rule| rule.mute > muted);
        let (id, rules) = (Uuid::new_v4(), &self.rules.rules[..longer]);
        let record = Record { id, message, kept_for: &self.rules, rules };
        let history = self.logs.record(&record).await?;
        let similarity = |other| message.text.as_ref().map(|text| text.similarity(other));
        let similarities: Vec<u8> =
            history.texts.iter().filter_map(|(_, other)| similarity(other)).collect();
        Ok(rules.iter().zip(&history.counts).find_map(|(rule, &count)| {
            let (count, percent) = match (rule.counted, &message.text) {
                _ if count < rule.count() => return None,
                (Counted::Similar { percent }, Some(text)) if text.length() >= rule.min_length => {
                    similar(rule, percent, &history, &similarities)?
                }
                (Counted::Similar { .. }, _) => return None,
                _ => (count, 0),
            };
            let reason = reason(rule, count, percent, id);
            let (sender, length) = (message.sender.clone(), rule.mute);
            Some(NewMute { sender, length, reason, muted, only_longer: true })
        }))
    }

    /// Imposes a mute in a task of its own, so that it is reported also if the caller leaves.
    ///
    /// Of several calls that impose the mute of one rule, Redis lets one impose it: the others find a ban that was
    /// imposed for as long. A call whose reply is lost may be that one. Then the reason of the ban, which has the
    /// identity of the message, tells so. If the mute was lifted meanwhile there is no ban, and nothing is imposed again.
    async fn impose(&self, mut mute: NewMute) -> Result<Ban, StoreError> {
        let (this, imposing) = (self.clone(), self.imposing.subscribe());
        let imposed = async move {
            if !mute.only_longer {
                // Nobody has looked yet. Without it a mute whose reply is lost is reported as a new one.
                mute.muted = this.muted(&mute.sender).await.unwrap_or_default();
            }
            let NewMute { sender, length, reason, .. } = &mute;
            let imposed = match mute.only_longer {
                true => this.bans.impose_if_longer(sender.clone(), *length, reason).await,
                false => this.bans.impose(sender.clone(), *length, reason).await,
            };
            match &imposed {
                Ok(ban) if ban.is_new => this.report(&mute, ban, ban.lengthens),
                // Only Redis loses replies, and it has a runtime.
                Err(error) if error.may_have_counted() => {
                    tokio::spawn(async move {
                        this.report_if_imposed(&mute).await;
                        drop(imposing);
                    });
                }
                _ => {}
            }
            imposed
        };
        match Handle::try_current() {
            // Without a result only if the hook panics, or the runtime ends.
            Ok(runtime) => runtime.spawn(imposed).await.unwrap_or(Err(StoreError::Unavailable)),
            Err(_) => imposed.await,
        }
    }

    /// Asks the store whether a mute was imposed whose reply was lost, until it replies or the mute is over.
    async fn report_if_imposed(&self, mute: &NewMute) {
        let (sent, mut pause) = (Instant::now(), FIRST_PAUSE);
        while sent.elapsed() < mute.length {
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            match self.bans.get(mute.sender.clone()).await {
                Ok(Some(ban)) if ban.reason == mute.reason => {
                    return self.report(mute, &ban, !mute.muted.is_zero());
                }
                Ok(_) if sent.elapsed() > LATEST => return,
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Reports a mute that was imposed.
    fn report(&self, new: &NewMute, ban: &Ban, lengthened: bool) {
        let (sender, mute) = (new.sender.clone(), Mute::of(ban));
        let rule = mute.reason.split_once(": ").map_or("manual", |(rule, _)| rule).to_owned();
        metrics::counter!("sliding_window_mutes_total", "rule" => rule).increment(1);
        if let Some(hook) = &self.hook {
            hook(&MuteEvent { sender, mute, lengthened });
        }
    }

    /// Returns the mute of a sender.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store did not reply.
    pub async fn mute_of(&self, sender: impl Into<Key>) -> Result<Option<Mute>, StoreError> {
        Ok(self.bans.get(sender).await?.as_ref().map(Mute::of))
    }

    /// Mutes a sender for `duration` from now, unless the mute that stands ends later. Returns the mute
    /// that stands afterwards.
    ///
    /// The mute is silent as any other, and silences exempt senders too. [`SpeechMonitor::on_mute`] is
    /// called for it. The longest mute is a year: a longer one is capped.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store did not reply. The sender may be muted.
    pub async fn mute(
        &self,
        sender: impl Into<Key>,
        duration: Duration,
    ) -> Result<Mute, StoreError> {
        let (sender, reason) = (sender.into(), format!("{MANUAL} by {}", Uuid::new_v4()));
        let (length, muted, only_longer) = (duration, Duration::ZERO, false);
        let ban = self.impose(NewMute { sender, length, reason, muted, only_longer }).await?;
        Ok(Mute::of(&ban))
    }

    /// Lifts the mute of a sender and forgets the sender's messages, which would cause a new mute. Returns
    /// whether a mute stood, or had ended within a second before.
    ///
    /// A message that is being checked at that moment, here or in another process, may have been compared with
    /// the messages of before. Its mute comes after this call, and is in [`SpeechMonitor::mutes`]: call this
    /// again.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store did not reply. The sender may be muted still.
    pub async fn unmute(&self, sender: impl Into<Key>) -> Result<bool, StoreError> {
        let sender = sender.into();
        // In this order a message between the two steps finds no history that would mute the sender again.
        let forgotten = self.logs.forget(&sender).await;
        let was_muted = self.bans.lift(sender).await?;
        forgotten.map(|()| was_muted)
    }

    /// Returns about `count` of the muted senders with their mutes, and where the next page begins, see
    /// [`Bans::page`].
    ///
    /// # Errors
    ///
    /// [`StoreError::Unsupported`] on a Cluster, and any other [`StoreError`] if the store fails.
    pub async fn mutes(
        &self,
        cursor: u64,
        count: usize,
    ) -> Result<(Vec<(Key, Mute)>, Option<u64>), StoreError> {
        let page = self.bans.page(cursor, count).await?;
        Ok((page.bans.iter().map(|(key, ban)| (key.clone(), Mute::of(ban))).collect(), page.next))
    }
}

impl fmt::Debug for SpeechMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpeechMonitor").field("rules", &self.rules.rules).finish_non_exhaustive()
    }
}

fn decision(muted: Duration) -> SpeechDecision {
    match muted.is_zero() {
        true => SpeechDecision::Delivered,
        false => SpeechDecision::Muted { remaining: muted },
    }
}

/// Returns how many messages are similar, and their rate, if a rule about similar messages is triggered.
fn similar(rule: &Rule, least: u8, history: &History, similarities: &[u8]) -> Option<(u32, u8)> {
    let group = history.texts.iter().zip(similarities).filter(|((age, text), percent)| {
        *age < rule.window() && text.length() >= rule.min_length && **percent >= least
    });
    let (count, rate) =
        group.fold((1, 100), |(count, rate), (_, percent)| (count + 1, rate.min(*percent)));
    (count >= rule.count()).then_some((count, rate))
}
