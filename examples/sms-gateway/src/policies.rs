//! [`Policies`]: the thresholds of the fleet, changed while it runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{MissedTickBehavior, interval};
use tower_sliding_window::{Policy, Quota, StoreError};

use crate::levels::Levels;
use crate::shared::{Changes, Shared};
use crate::sum::GlobalTooLow;
use crate::thresholds::{Target, Thresholds, UnknownTarget};

/// How often a server reads the changes of the others.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often a change is tried again because another server was faster.
const ATTEMPTS: u32 = 10;

/// Changes the thresholds and keeps them the same on every server that shares a Redis.
pub(crate) struct Policies {
    /// The thresholds of the flags, which hold where nothing was changed.
    flags: Thresholds,
    global: Quota,
    levels: Arc<Levels>,
    shared: Option<Shared>,
    /// Locked during each change, so that this server makes or takes over one at a time.
    known: Mutex<Changes>,
    /// The version of the known changes, for readers that can't wait for the lock.
    version: AtomicU64,
    /// Whether Redis can't be read, so that other servers may have changed something.
    stale: AtomicBool,
}

impl Policies {
    /// Creates the policies of a single server. They last as long as it runs.
    pub(crate) fn alone(levels: Arc<Levels>, global: Quota) -> Self {
        let flags = levels.configured();
        let (known, version, stale) = Default::default();
        Self { flags, global, levels, shared: None, known, version, stale }
    }

    /// Creates the policies of a fleet, and takes over earlier changes.
    pub(crate) async fn shared(
        levels: Arc<Levels>,
        global: Quota,
        shared: Shared,
    ) -> Result<Self, StoreError> {
        let mut policies = Self::alone(levels, global);
        policies.shared = Some(shared);
        policies.take_over(&mut *policies.known.lock().await).await?;
        Ok(policies)
    }

    /// Returns the version of the policies: how often they were changed.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    /// Returns whether other servers may have made changes that this one could not read.
    pub(crate) fn are_stale(&self) -> bool {
        self.stale.load(Ordering::Relaxed)
    }

    /// Changes one threshold: here at once, on the other servers when they next read Redis.
    ///
    /// # Errors
    ///
    /// [`ChangeError`] if the change is not possible. Then nothing has changed.
    pub(crate) async fn change(&self, target: &Target, policy: Policy) -> Result<(), ChangeError> {
        let mut known = self.known.lock().await;
        for _ in 0..ATTEMPTS {
            self.take_over(&mut known).await?;
            let mut thresholds = self.levels.configured();
            let before = thresholds.sum();
            thresholds.set(target, policy.clone())?;
            let after = thresholds.sum();
            // A sum that is already too high, for another server has a higher global rate, may still
            // be lowered.
            if after.rate() > before.rate() {
                after.check(self.global)?;
            }
            let mut changes = known.clone();
            changes.version = changes.version.saturating_add(1);
            changes.policies.insert(target.to_string(), policy.to_string());
            // A server that has changed something meanwhile has raised the version, and this put is
            // refused.
            if let Some(shared) = &self.shared
                && !shared.put(&changes).await?
            {
                continue;
            }
            tracing::info!(%target, %policy, version = changes.version, "a policy was changed");
            self.apply(&mut known, thresholds, changes);
            return Ok(());
        }
        Err(ChangeError::Contended)
    }

    /// Takes over the changes of other servers again and again.
    pub(crate) async fn run(&self) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let refreshed = self.take_over(&mut *self.known.lock().await).await;
            let was_stale = self.stale.swap(refreshed.is_err(), Ordering::Relaxed);
            match &refreshed {
                Ok(_) if was_stale => tracing::info!("policies are read from Redis again"),
                Err(error) if !was_stale => {
                    tracing::warn!(%error, "policies can't be read from Redis: those known hold");
                }
                Ok(_) | Err(_) => {}
            }
            if let Ok(true) = refreshed
                && let Err(error) = self.levels.configured().sum().check(self.global)
            {
                tracing::warn!(%error, "a server with a higher --global has changed a policy");
            }
        }
    }

    /// Takes over the changes of other servers. Returns whether there were any.
    async fn take_over(&self, known: &mut Changes) -> Result<bool, StoreError> {
        let Some(shared) = &self.shared else { return Ok(false) };
        let changes = shared.read().await?;
        if changes.version < known.version {
            // Redis has lost its memory, or a replica that was behind has taken its place.
            if shared.put(known).await? {
                tracing::warn!(
                    version = known.version,
                    "Redis had lost the policies: it has them again"
                );
            }
        } else if changes != *known {
            tracing::info!(version = changes.version, "policies are taken over from Redis");
            self.apply(known, self.thresholds(&changes), changes);
            return Ok(true);
        }
        Ok(false)
    }

    fn apply(&self, known: &mut Changes, thresholds: Thresholds, changes: Changes) {
        self.levels.configure(thresholds);
        self.version.store(changes.version, Ordering::Relaxed);
        *known = changes;
    }

    /// Returns the thresholds with these changes. A policy that can't be read changes nothing.
    fn thresholds(&self, changes: &Changes) -> Thresholds {
        let (mut thresholds, present) = (self.flags.clone(), self.levels.configured());
        for (field, text) in &changes.policies {
            let Ok(target) = field.parse::<Target>() else {
                tracing::warn!("a policy in Redis is for an unknown level");
                continue;
            };
            let set = match text.parse() {
                Ok(policy) => thresholds.set(&target, policy),
                Err(error) => {
                    tracing::warn!(%target, %error, "a policy in Redis can't be read: the old one stays");
                    thresholds.set_as_in(&present, &target)
                }
            };
            if set.is_err() {
                tracing::warn!(%target, "a policy in Redis is for an unknown institution");
            }
        }
        thresholds
    }
}

/// Why a threshold was not changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeError {
    #[error(transparent)]
    Unknown(#[from] UnknownTarget),
    #[error(transparent)]
    GlobalTooLow(#[from] GlobalTooLow),
    #[error("the change can't be written to Redis: {0}")]
    Redis(#[from] StoreError),
    #[error("other servers were faster, again and again")]
    Contended,
}
