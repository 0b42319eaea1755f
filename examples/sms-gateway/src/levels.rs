//! [`Levels`]: the policies in use, which follow the configured thresholds and the controller.

use std::collections::BTreeMap;
use std::sync::Mutex;

use tower_sliding_window::{Policy, PolicyHandle, Quota};

use crate::name::Name;
use crate::share::Share;
use crate::thresholds::{Level, Target, Thresholds, UnknownTarget};
use example_support::lock;

/// The policies that messages are held to: the configured ones, each limit times the share that the
/// controller leaves of its level.
pub(crate) struct Levels {
    institutions: BTreeMap<Name, PolicyHandle>,
    channel: PolicyHandle,
    receiver: PolicyHandle,
    settings: Mutex<Settings>,
}

struct Settings {
    configured: Thresholds,
    shares: [Share; Level::ALL.len()],
}

impl Levels {
    pub(crate) fn new(configured: Thresholds) -> Self {
        let handle = |level, policy: &Policy| PolicyHandle::new(scaled(level, policy, Share::ALL));
        let institution =
            |(name, policy): (&Name, &Policy)| (name.clone(), handle(Level::Institution, policy));
        let shares = [Share::ALL; Level::ALL.len()];
        Self {
            institutions: configured.institutions().map(institution).collect(),
            channel: handle(Level::Channel, configured.of(Level::Channel)),
            receiver: handle(Level::Receiver, configured.of(Level::Receiver)),
            settings: Mutex::new(Settings { configured, shares }),
        }
    }

    /// Returns the policies of an institution, of the channels and of the receivers, or nothing if
    /// there is no such institution.
    pub(crate) fn policies(&self, institution: &Name) -> Option<[&PolicyHandle; 3]> {
        Some([self.institutions.get(institution)?, &self.channel, &self.receiver])
    }

    /// Returns the configured thresholds.
    pub(crate) fn configured(&self) -> Thresholds {
        lock(&self.settings).configured.clone()
    }

    /// Returns the policy that is configured for a target, and the one that is in use.
    pub(crate) fn both(&self, target: &Target) -> Result<(Policy, Policy), UnknownTarget> {
        let level = match target {
            Target::Level(level) => *level,
            Target::Institution(_) => Level::Institution,
        };
        let settings = lock(&self.settings);
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
        let Settings { configured, shares } = settings;
        let apply = |level: Level, handle: &PolicyHandle, policy: &Policy| {
            let policy = scaled(level, policy, shares[level as usize]);
            // What is cached about denials stays good as long as nothing changes.
            if *handle.get() != policy
                && let Err(error) = handle.set(policy)
            {
                tracing::error!(level = level.name(), %error, "a policy can't be used");
            }
        };
        for (name, policy) in configured.institutions() {
            if let Some(handle) = self.institutions.get(name) {
                apply(Level::Institution, handle, policy);
            }
        }
        apply(Level::Channel, &self.channel, configured.of(Level::Channel));
        apply(Level::Receiver, &self.receiver, configured.of(Level::Receiver));
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
