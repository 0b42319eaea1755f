//! [`Levels`]: the policies in use, which follow the configured thresholds and the controller.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tower_sliding_window::{Policy, PolicyHandle, Quota};

use crate::bucket::Portion;
use crate::message::Message;
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
    lists: [BTreeMap<Name, Held>; List::ALL.len()],
    receiver: Held,
    /// What belongs to each institution of the bucket.
    portions: BTreeMap<Name, Portion>,
}

/// What all institutions together are held to, and what each of them is.
struct Held {
    all: Limit,
    /// None if one institution may take all.
    each: Option<Limit>,
}

/// A policy that a message is held to.
#[derive(Clone)]
pub(crate) struct Limit {
    pub(crate) level: Level,
    /// The name of the policy: that of the level, or of the shares in it.
    pub(crate) name: &'static str,
    pub(crate) policy: PolicyHandle,
    /// How many parts fit if nothing lowers it.
    pub(crate) most: u32,
}

/// The policies of a message, each with the key that it counts by.
pub(crate) type Limits = Vec<(Limit, String)>;

struct Settings {
    configured: Thresholds,
    /// What the controller leaves of each level.
    shares: [Share; Level::ALL.len()],
    /// What one institution may take of the levels that institutions share.
    institution_share: Share,
    bucket: Quota,
}

impl Levels {
    /// Creates the levels in front of a bucket.
    pub(crate) fn new(configured: Thresholds, institution_share: Share, bucket: Quota) -> Self {
        let shares = [Share::ALL; Level::ALL.len()];
        let settings = Settings { configured, shares, institution_share, bucket };
        let handles = RwLock::new(Arc::new(settings.handles(None)));
        Self { handles, settings: Mutex::new(settings) }
    }

    /// Returns what a message is held to, or the list that does not have its member.
    pub(crate) fn limits(&self, message: &Message) -> Result<Limits, List> {
        let handles = self.handles();
        let of = |list: List, name| handles.lists[list as usize].get_key_value(name).ok_or(list);
        let (institution, own) = of(List::Institutions, &message.institution)?;
        let (channel, by) = of(List::Channels, &message.channel)?;
        // Of two prefixes the longer comes later in the order of texts.
        let mut destinations = handles.lists[List::Destinations as usize].iter().rev();
        let (destination, to) = destinations
            .find(|(prefix, _)| message.to.starts_with(prefix.as_str()))
            .ok_or(List::Destinations)?;
        let mut limits = vec![(own.all.clone(), institution.to_string())];
        let shared =
            [(by, channel.as_str()), (to, destination.as_str()), (&handles.receiver, &message.to)];
        for (held, key) in shared {
            limits.extend(held.each.clone().map(|each| (each, format!("{key}/{institution}"))));
            limits.push((held.all.clone(), key.to_owned()));
        }
        Ok(limits)
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
        self.handles().receiver.all.policy.get().quotas().iter().map(most).min().unwrap_or(0)
    }

    /// Returns the configured thresholds.
    pub(crate) fn configured(&self) -> Thresholds {
        lock(&self.settings).configured.clone()
    }

    /// Returns the policy that is configured for a target, and the one that is in use.
    pub(crate) fn both(&self, target: &Target) -> Result<(Policy, Policy), UnknownTarget> {
        let (level, settings) = (target.level(), lock(&self.settings));
        let configured = settings.configured.get(target)?;
        Ok((configured.clone(), scaled(level.name(), configured, settings.shares[level as usize])))
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
        let limit = |level: Level, configured: &Policy, name, share, before: Option<&Limit>| {
            let configured = scaled(name, configured, share);
            let policy = scaled(name, &configured, self.shares[level as usize]);
            let most = configured.quotas().iter().map(Quota::limit).min().unwrap_or(u32::MAX);
            let Some(before) = before else {
                return Limit { level, name, policy: PolicyHandle::new(policy), most };
            };
            // What is cached about denials stays good as long as nothing changes.
            if *before.policy.get() != policy
                && let Err(error) = before.policy.set(policy)
            {
                tracing::error!(name, %error, "a policy can't be used");
            }
            Limit { most, ..before.clone() }
        };
        let held = |level: Level, policy: &Policy, before: Option<&Held>| {
            let is_shared = level != Level::Institution && self.institution_share < Share::ALL;
            let each = before.and_then(|before| before.each.as_ref());
            let each = || limit(level, policy, level.share_name(), self.institution_share, each);
            let all = before.map(|before| &before.all);
            let all = limit(level, policy, level.name(), Share::ALL, all);
            Held { all, each: is_shared.then(each) }
        };
        let lists = List::ALL.map(|list| {
            let before = before.map(|before| &before.lists[list as usize]);
            let member = |(name, policy): (&Name, &Policy)| {
                let before = before.and_then(|before| before.get(name));
                (name.clone(), held(list.level(), policy, before))
            };
            self.configured.members(list).map(member).collect()
        });
        let receiver = self.configured.of(Level::Receiver);
        let receiver = held(Level::Receiver, receiver, before.map(|before| &before.receiver));
        Handles { lists, receiver, portions: self.configured.sum().portions(self.bucket) }
    }
}

/// Returns a policy of this name with a share of each limit, but at least 1.
fn scaled(name: &str, policy: &Policy, share: Share) -> Policy {
    let quotas = policy.quotas().iter().map(|quota| {
        let limit = share.of(quota.limit().into()).max(1);
        Quota::new(u32::try_from(limit).unwrap_or(u32::MAX), quota.window())
    });
    quotas.fold(Policy::new(name), Policy::quota)
}
