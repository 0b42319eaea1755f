//! [`SpeechMonitor`]: decides on each message and mutes senders that trigger a rule.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use ahash::RandomState;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::{Instant, sleep};
use tower_sliding_window::store::Store;
use tower_sliding_window::{
    Ban, BanCursor, Bans, Decision, Key, Limiter, MemoryStore, Penalty, Policy, PolicyHandle,
    Quota, RedisStore, StoreError,
};
use uuid::Uuid;

use crate::decision::{MANUAL, Message, Mute, MuteEvent, SpeechDecision, reason};
use crate::fingerprint::Fingerprint;
use crate::logs::{History, Imposed, InProcess, Logs, OnRedis, Record, Rules};
use crate::rule::{Counted, Rule};

/// How many messages of a sender are checked at a time in a process.
const AT_A_TIME: usize = 4;
/// How many bytes the senders of a process take at most.
const BUDGET: usize = 256 << 20;
/// The pause before the store is queried about a lost reply. It doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

type Hook = dyn Fn(&MuteEvent) + Send + Sync;
type Decide = oneshot::Sender<Result<SpeechDecision, StoreError>>;

/// A mute to impose.
struct NewMute {
    sender: Key,
    rule: Rule,
    /// The reason, with the identity of the message.
    reason: String,
    /// How many mutes in a row it is.
    nth: usize,
    /// How long the mute of before still lasts.
    muted: Duration,
}

/// Checks chat messages against rules and silently mutes spammers. See [the crate](crate).
///
/// Cloning is cheap. Clones share the rules and the store.
#[derive(Clone)]
pub struct SpeechMonitor {
    rules: Arc<Rules>,
    first_mutes: Arc<[Duration]>,
    exempt: Arc<HashSet<Key, RandomState>>,
    logs: Logs,
    bans: Bans,
    /// Finds the mutes of senders. It counts nothing.
    limiter: Limiter,
    turns: Arc<Mutex<HashMap<Key, Weak<Semaphore>, RandomState>>>,
    hook: Option<Arc<Hook>>,
    panics: Arc<AtomicU64>,
    /// How many mutes are being imposed.
    imposing: watch::Sender<usize>,
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
            first_mutes: Arc::default(),
            exempt: Arc::default(),
            logs,
            bans: Bans::new(&policy, store.clone()),
            limiter: Limiter::new(&policy, store),
            turns: Arc::default(),
            hook: None,
            panics: Arc::default(),
            imposing: watch::Sender::new(0),
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
    /// A panic of the hook is caught and counted in [`SpeechMonitor::panicked`].
    ///
    /// If a reply of the store is lost, or the caller drops the future, a background task queries the
    /// store until it replies or the mute is over, and calls the hook. The hook is not called if the
    /// process ends between the mute and the call, if another mute has replaced it before the store
    /// replies, and for a [manual](SpeechMonitor::mute) mute whose reply was lost.
    #[must_use]
    pub fn on_mute(mut self, hook: impl Fn(&MuteEvent) + Send + Sync + 'static) -> Self {
        self.hook = Some(Arc::new(hook));
        self
    }

    /// Returns how many bytes the senders of this process take.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        match &self.logs {
            Logs::InProcess(senders) => senders.lock().unwrap().bytes(),
            Logs::OnRedis(_) => 0,
        }
    }

    /// Returns how many times the hook has panicked.
    #[must_use]
    pub fn panicked(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Waits until no mute is being imposed, also in the background.
    pub async fn settled(&self) {
        // The sender is not closed, because this holds it.
        let _ = self.imposing.subscribe().wait_for(|imposing| *imposing == 0).await;
    }

    /// Records a message and decides whether to deliver it.
    ///
    /// Takes a look for the sender's mute, which shares its call of the store with others, and one call
    /// to record the message; two more if the message triggers a rule, and one for a text that is long
    /// enough for a rule about campaigns. Of one sender, four messages are checked at a time in this
    /// process. Further ones wait, so that one sender does not keep the store from the others.
    ///
    /// If the store fails, a mute that this process has seen still holds until it ends.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store could not decide and no mute of the sender is known. The message
    /// may have been recorded. Most chats then deliver it: the sender's next message imposes the mute
    /// that could not be imposed now.
    pub async fn check(&self, message: &Message) -> Result<SpeechDecision, StoreError> {
        let sender = &message.sender;
        let _turn = self.turn(sender).await;
        let muted = self.muted(sender).await?;
        if self.exempt.contains(sender) {
            return Ok(decision(muted));
        }
        match self.judge(message, muted).await {
            Ok(None) => Ok(decision(muted)),
            Ok(Some(mute)) => self.impose(mute).await,
            Err(_) if !muted.is_zero() => Ok(decision(muted)),
            Err(error) => Err(error),
        }
    }

    /// Returns how long the mute of a sender still lasts, zero if there is none.
    async fn muted(&self, sender: &Key) -> Result<Duration, StoreError> {
        Ok(match self.limiter.check_cost(sender.clone(), 0).await? {
            Decision::Denied(denied) => denied.usage().banned_for().unwrap_or_default(),
            Decision::Admitted(_) => Duration::ZERO,
        })
    }

    /// Waits until fewer messages of a sender are being checked than may be.
    async fn turn(&self, sender: &Key) -> Option<OwnedSemaphorePermit> {
        let turns = {
            let mut senders = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            if senders.len() == senders.capacity() {
                senders.retain(|_, turns| turns.strong_count() > 0);
            }
            let turns = senders.get(sender).and_then(Weak::upgrade);
            turns.unwrap_or_else(|| {
                let turns = Arc::new(Semaphore::new(AT_A_TIME));
                senders.insert(sender.clone(), Arc::downgrade(&turns));
                turns
            })
        };
        // The semaphore is never closed.
        turns.acquire_owned().await.ok()
    }

    /// Records a message, and returns the rule that it triggers and why: of several the one with the
    /// longest mute.
    async fn judge(
        &self,
        message: &Message,
        muted: Duration,
    ) -> Result<Option<NewMute>, StoreError> {
        let (id, rules) = (Uuid::new_v4(), self.rules.clone());
        let Message { sender, peer, text } = message.clone();
        let record = |sender, peer, text, is_text| {
            let rules = rules.clone();
            Record { id, sender, peer, text, rules, muted: !muted.is_zero(), is_text }
        };
        let compared = text.clone().filter(|text| text.length() >= rules.min_length());
        let history = self.logs.record(&record(sender.clone(), peer, compared, false)).await?;
        let is_long = |text: &Fingerprint| {
            rules.campaign_length().is_some_and(|length| text.length() >= length)
        };
        let mut campaign = None;
        if let Some(text) = text.clone().filter(is_long) {
            let record = record(text.campaign(), Some(sender.clone()), None, true);
            campaign = Some(self.logs.record(&record).await?);
        }
        let nth = history.nth + usize::from(!history.stands || history.nth == 0);
        let mut similarities: Option<Vec<u8>> = None;
        Ok(history.counts.iter().find_map(|(rule, count)| {
            let count = count.as_ref()?;
            let count = match (rule.counted(), &campaign) {
                (Counted::Campaign, campaign) => campaign.as_ref().map_or(0, |it| it.count(rule)),
                _ => *count,
            };
            let text = text.as_ref().filter(|text| text.length() >= rule.get_min_length());
            if count < rule.count() || rule.compares_texts() && text.is_none() {
                return None;
            }
            let (count, percent) = match (rule.counted(), text) {
                (Counted::Similar { percent }, Some(text)) => {
                    let similarities = similarities.get_or_insert_with(|| {
                        history.texts.iter().map(|(_, other)| text.similarity(other)).collect()
                    });
                    similar(rule, percent, &history, similarities)?
                }
                _ => (count, 0),
            };
            let reason = reason(*rule, count, percent, id);
            Some(NewMute { sender: sender.clone(), rule: *rule, reason, nth, muted })
        }))
    }

    /// Mutes a sender in a task of its own, so that the mute is reported also if the caller leaves or a
    /// reply is lost. Returns the decision as soon as it is known.
    async fn impose(&self, mute: NewMute) -> Result<SpeechDecision, StoreError> {
        let (decide, decided) = oneshot::channel();
        self.imposing.send_modify(|imposing| *imposing += 1);
        let this = self.clone();
        let imposed = async move {
            this.impose_and_report(&mute, decide).await;
            this.imposing.send_modify(|imposing| *imposing -= 1);
        };
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(imposed)),
            Err(_) => imposed.await,
        }
        // Without a decision only if the runtime ends.
        decided.await.unwrap_or(Err(StoreError::Unavailable))
    }

    // Interleavings. Of several calls that impose the mute of one rule, Redis lets one impose it: the others
    // find a ban that was imposed for as long. A call whose reply is lost may be that one. Then the reason of
    // the ban, which has the identity of the message, tells so. If the mute was lifted meanwhile there is no
    // ban, and nothing is imposed again. What `Logs::note` notes only saves calls and sets the next length.
    async fn impose_and_report(&self, mute: &NewMute, decide: Decide) {
        let most = self.first_mutes.get(mute.nth - 1);
        let length = most.map_or(mute.rule.mute(), |most| mute.rule.mute().min(*most));
        let (sender, sent) = (&mute.sender, Instant::now());
        let imposed = self.bans.impose_if_longer(sender.clone(), length, &mute.reason).await;
        if let Ok(ban) = imposed.as_ref()
            && ban.is_new()
        {
            self.report(sender, ban, ban.lengthens());
            self.note(mute, ban, sent).await;
        }
        let is_lost = imposed.as_ref().is_err_and(StoreError::may_have_counted);
        // The caller may be gone.
        let _ = decide.send(match imposed {
            Ok(ban) => Ok(decision(ban.remaining())),
            Err(error) if mute.muted.is_zero() => Err(error),
            Err(_) => Ok(decision(mute.muted)),
        });
        let (mut pause, mut was_absent, mut is_over) = (FIRST_PAUSE, false, !is_lost);
        while !is_over && sent.elapsed() < length {
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            let sent = Instant::now();
            is_over = match self.bans.get(sender.clone()).await {
                Ok(Some(ban)) => {
                    if ban.reason() == mute.reason {
                        self.report(sender, &ban, !mute.muted.is_zero());
                        self.note(mute, &ban, sent).await;
                    }
                    true
                }
                // Once more: a call on an abandoned connection may run late.
                Ok(None) => std::mem::replace(&mut was_absent, true),
                Err(_) => false,
            };
        }
    }

    async fn note(&self, mute: &NewMute, ban: &Ban, sent: Instant) {
        // Until no later than the ban, on the clock of Redis.
        let remaining = ban.remaining().saturating_sub(sent.elapsed());
        let (nth, length) = (mute.nth, mute.rule.mute());
        let _ = self.logs.note(&mute.sender, &Imposed { nth, remaining, length }).await;
    }

    fn report(&self, sender: &Key, ban: &Ban, lengthened: bool) {
        let mute = Mute::of(ban);
        let rule = mute.rule().map_or_else(|| "manual".to_owned(), |rule| rule.to_string());
        metrics::counter!("sliding_window_mutes_total", "rule" => rule).increment(1);
        if let Some(hook) = &self.hook {
            let event = MuteEvent { sender: sender.clone(), mute, lengthened };
            // Unwind safe: only the closure can see the state that its panic left behind.
            if catch_unwind(AssertUnwindSafe(|| hook(&event))).is_err() {
                self.panics.fetch_add(1, Ordering::Relaxed);
                metrics::counter!("sliding_window_mute_hook_panics_total").increment(1);
            }
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
        let sender = sender.into();
        let sent = Instant::now();
        let ban = self.bans.impose(sender.clone(), duration, MANUAL).await?;
        if ban.is_new() {
            self.report(&sender, &ban, ban.lengthens());
            let remaining = ban.remaining().saturating_sub(sent.elapsed());
            let _ = self.logs.note(&sender, &Imposed { nth: 0, remaining, length: duration }).await;
        }
        Ok(Mute::of(&ban))
    }

    /// Lifts the mute of a sender and forgets the sender's messages, which would cause a new mute.
    ///
    /// # Errors
    ///
    /// A [`StoreError`] if the store did not reply. The sender may be muted still.
    pub async fn unmute(&self, sender: impl Into<Key>) -> Result<(), StoreError> {
        let sender = sender.into();
        // In this order a message between the two steps finds no history that would mute the sender again.
        let forgotten = self.logs.forget(&sender).await;
        self.bans.lift(sender).await?;
        forgotten
    }

    /// Returns about `count` of the muted senders with their mutes, and where the next page begins, see
    /// [`Bans::page`].
    ///
    /// # Errors
    ///
    /// [`StoreError::Unsupported`] on a Cluster, and any other [`StoreError`] if the store fails.
    pub async fn mutes(
        &self,
        cursor: BanCursor,
        count: usize,
    ) -> Result<(Vec<(Key, Mute)>, Option<BanCursor>), StoreError> {
        let page = self.bans.page(cursor, count).await?;
        Ok((page.bans.iter().map(|(key, ban)| (key.clone(), Mute::of(ban))).collect(), page.next))
    }
}

impl fmt::Debug for SpeechMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpeechMonitor").field("rules", &self.rules).finish_non_exhaustive()
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
        *age < rule.window() && text.length() >= rule.get_min_length() && **percent >= least
    });
    let (count, rate) =
        group.fold((1, 100), |(count, rate), (_, percent)| (count + 1, rate.min(*percent)));
    (count >= rule.count()).then_some((count, rate))
}
