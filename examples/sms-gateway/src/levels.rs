//! [`Levels`]: the policies in use, which follow the configured thresholds and the controller.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tower_sliding_window::{Policy, PolicyHandle, Quota};

use crate::bucket::Portion;
use crate::name::Name;
use crate::share::Share;
use crate::thresholds::{Level, List, Target, Thresholds, UnknownTarget};
use example_support::lock;

/// The policies that messages are held to: the configured ones, each limit times the share that the
/// controller leaves of its level.
pub(crate) struct Levels {
    handles: RwLock<Arc<Handles>>,
    settings: Mutex<Settings>,
}

struct Handles {
    /// In the order of [`List::ALL`].
    lists: [BTreeMap<Name, PolicyHandle>; List::ALL.len()],
    receiver: PolicyHandle,
    /// What belongs to each institution of the bucket.
    portions: BTreeMap<Name, Portion>,
}

struct Settings {
    configured: Thresholds,
    shares: [Share; Level::ALL.len()],
    bucket: Quota,
}

impl Levels {
    /// Creates the levels in front of a bucket.
    pub(crate) fn new(configured: Thresholds, bucket: Quota) -> Self {
        let settings = Settings { configured, shares: [Share::ALL; Level::ALL.len()], bucket };
        let handles = RwLock::new(Arc::new(settings.handles(None)));
        Self { handles, settings: Mutex::new(settings) }
    }

    /// Returns the policies of an institution, of a channel and of the receivers, or the list that does
    /// not have the name.
    pub(crate) fn policies(
        &self,
        institution: &Name,
        channel: &Name,
    ) -> Result<[PolicyHandle; Level::ALL.len()], List> {
        let handles = self.handles();
        let of = |list: List, name| handles.lists[list as usize].get(name).cloned().ok_or(list);
        let institution = of(List::Institutions, institution)?;
        Ok([institution, of(List::Channels, channel)?, handles.receiver.clone()])
    }

    /// Returns what belongs to an institution of the bucket.
    pub(crate) fn portion(&self, institution: &Name) -> Option<Portion> {
        self.handles().portions.get(institution).copied()
    }

    fn handles(&self) -> Arc<Handles> {
        self.handles.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells whether a list has a member of this name.
    pub(crate) fn has(&self, list: List, name: &Name) -> bool {
        self.handles().lists[list as usize].contains_key(name)
    }

    /// Returns how many members a list has.
    pub(crate) fn count(&self, list: List) -> usize {
        self.handles().lists[list as usize].len()
    }

    /// Returns how many messages one receiver can get at most within a length of time.
    pub(crate) fn most_for_a_receiver(&self, span: Duration) -> usize {
        let most = |quota: &Quota| {
            let windows = span.as_nanos() / quota.window().as_nanos() + 1;
            usize::try_from(windows.saturating_mul(quota.limit().into())).unwrap_or(usize::MAX)
        };
        self.handles().receiver.get().quotas().iter().map(most).min().unwrap_or(0)
    }

    /// Returns the configured thresholds.
    pub(crate) fn configured(&self) -> Thresholds {
        lock(&self.settings).configured.clone()
    }

    /// Returns the policy that is configured for a target, and the one that is in use.
    pub(crate) fn both(&self, target: &Target) -> Result<(Policy, Policy), UnknownTarget> {
        let (level, settings) = (target.level(), lock(&self.settings));
        let configured = settings.configured.get(target)?;
        Ok((configured.clone(), scaled(level, configured, settings.shares[level as usize])))
    }

    /// Puts thresholds in place of those there are. Takes effect at once.
    pub(crate) fn configure(&self, thresholds: Thresholds) {
        let mut settings = lock(&self.settings);
        settings.configured = thresholds;
        self.apply(&settings);
    }

    /// Leaves a level a share of its thresholds. Takes effect at once.
    pub(crate) fn leave(&self, level: Level, share: Share) {
        let mut settings = lock(&self.settings);
        settings.shares[level as usize] = share;
        self.apply(&settings);
    }

    /// Called under the lock, so that the policies in use are those of one change and no other.
    fn apply(&self, settings: &Settings) {
        let handles = Arc::new(settings.handles(Some(&self.handles())));
        *self.handles.write().unwrap_or_else(PoisonError::into_inner) = handles;
    }
}

impl Settings {
    /// Returns a handle for each policy: the one there was before, with the policy of now.
    fn handles(&self, before: Option<&Handles>) -> Handles {
        let handle = |level: Level, policy: &Policy, before: Option<&PolicyHandle>| {
            let policy = scaled(level, policy, self.shares[level as usize]);
            let Some(handle) = before else { return PolicyHandle::new(policy) };
            // What is cached about denials stays good as long as nothing changes.
            if *handle.get() != policy
                && let Err(error) = handle.set(policy)
            {
                tracing::error!(level = level.name(), %error, "a policy can't be used");
            }
            handle.clone()
        };
        let lists = List::ALL.map(|list| {
            let before = before.map(|before| &before.lists[list as usize]);
            let member = |(name, policy): (&Name, &Policy)| {
                let before = before.and_then(|before| before.get(name));
                (name.clone(), handle(list.level(), policy, before))
            };
            self.configured.members(list).map(member).collect()
        });
        let receiver = self.configured.of(Level::Receiver);
        let receiver = handle(Level::Receiver, receiver, before.map(|before| &before.receiver));
        Handles { lists, receiver, portions: self.configured.sum().portions(self.bucket) }
    }
}

/// Returns a policy of the level's name with a share of each limit, but at least 1.
fn scaled(level: Level, policy: &Policy, share: Share) -> Policy {
    let quotas = policy.quotas().iter().map(|quota| {
        let limit = share.of(quota.limit().into()).max(1);
        Quota::new(u32::try_from(limit).unwrap_or(u32::MAX), quota.window())
    });
    quotas.fold(Policy::new(level.name()), Policy::quota)
}
