//! [`Fleet`]: thresholds that an operator changes on every server.

use serde_json::{Value, json};
use tokio::sync::Mutex;
use tower_sliding_window::{Policies, Policy, StoreError};

use super::thresholds::{Entry, Thresholds, ThresholdsError};
use super::{Document, Limits, LimitsError};
use example_support::policies::{Changes, Reloads, Shared, report};

/// How often a change is tried again because another server was faster.
const ATTEMPTS: u32 = 10;

/// The policies in front of the order route, and what operators have changed about them.
pub(crate) struct Fleet {
    limits: Limits,
    shared: Option<Shared>,
    /// Locked during each change, so that this server makes or takes over one at a time.
    known: Mutex<Known>,
}

struct Known {
    /// The policies of the flags or of the file, which hold where an operator has changed nothing.
    configured: Policies,
    changes: Changes,
}

impl Fleet {
    /// Takes the policies as they are configured, and over them what operators have changed before.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if Redis does not reply.
    pub(crate) async fn new(limits: Limits, shared: Option<Shared>) -> Result<Self, StoreError> {
        let configured = limits.present();
        let known = Mutex::new(Known { configured, changes: Changes::default() });
        let fleet = Self { limits, shared, known };
        fleet.take_over().await?;
        Ok(fleet)
    }

    /// Shows the policies, and whether each is as it was configured.
    pub(crate) fn shown(&self) -> Value {
        let policies: Vec<Value> = self
            .limits
            .policies
            .all()
            .iter()
            .map(|policy| {
                let mut shown = json!(Thresholds::of(policy));
                shown["name"] = policy.name().into();
                shown["penalty"] = policy.get_penalty().map(ToString::to_string).into();
                shown
            })
            .collect();
        let is_stale = self.shared.as_ref().is_some_and(Shared::is_stale);
        json!({ "policies": policies, "stale": is_stale })
    }

    /// Changes a policy: here at once, on the other servers when they next read Redis.
    ///
    /// # Errors
    ///
    /// [`ChangeError`] if the change is not possible. Then nothing has changed.
    pub(crate) async fn change(&self, name: &str, entry: &Entry) -> Result<(), ChangeError> {
        for _ in 0..ATTEMPTS {
            self.take_over().await?;
            let mut known = self.known.lock().await;
            let base = known.configured.get(name).ok_or(ChangeError::Unknown)?.get();
            if let Entry::Set(thresholds) = entry {
                thresholds.applied_to(&base)?;
            }
            let mut changes = known.changes.clone();
            changes.set(name.to_owned(), entry.to_string());
            // A server that has changed something meanwhile has raised the version, and this put is
            // refused.
            if let Some(shared) = &self.shared
                && !shared.put(&changes, known.changes.version).await?
            {
                continue;
            }
            let version = changes.version;
            tracing::info!(policy = name, entry = ?entry.to_string(), version, "audit: a policy was changed");
            known.changes = changes;
            self.apply(&known)?;
            return Ok(());
        }
        Err(ChangeError::Contended)
    }

    /// Takes over the changes of other servers again and again, if there are others.
    pub(crate) async fn run(&self) {
        if let Some(shared) = &self.shared {
            shared.follow(|| self.look(shared)).await;
        }
    }

    /// Takes over the file of `--policies` whenever it is to be read again.
    pub(crate) async fn follow(&self, mut reloads: Reloads) {
        while let Some(document) = reloads.next().await {
            report(self.reload(document).await);
        }
    }

    async fn reload(&self, document: Document) -> Result<String, LimitsError> {
        let mut known = self.known.lock().await;
        let configured = self.limits.checked(document)?;
        let overruled = configured.all().into_iter().map(|policy| policy.name().to_owned());
        let overruled: Vec<String> = overruled
            .filter(|name| matches!(entry(&known.changes, name), Some(Entry::Set(_))))
            .map(|name| format!("{name}: stays as an operator has set it"))
            .collect();
        let next = Known { configured, changes: known.changes.clone() };
        let mut changes = self.apply(&next)?;
        *known = next;
        changes.extend(overruled);
        Ok(changes.join("; "))
    }

    async fn look(&self, shared: &Shared) -> Result<(), StoreError> {
        self.take_over().await?;
        let configured = self.known.lock().await.configured.all();
        let shown: Vec<String> = configured.iter().map(|policy| shown(policy)).collect();
        shared.compare(&shown.join(", ")).await
    }

    async fn take_over(&self) -> Result<(), StoreError> {
        let Some(shared) = &self.shared else { return Ok(()) };
        let mut known = self.known.lock().await;
        if let Some(changes) = shared.take_over(&known.changes).await? {
            known.changes = changes;
            if let Err(error) = self.apply(&known) {
                tracing::warn!(%error, "policies in Redis can't be used");
            }
        }
        Ok(())
    }

    /// Replaces the policies in use, and returns what has changed.
    fn apply(&self, known: &Known) -> Result<Vec<String>, LimitsError> {
        let policies = known.configured.all().into_iter().map(|base| {
            match entry(&known.changes, base.name()) {
                Some(Entry::Set(thresholds)) => match thresholds.applied_to(&base) {
                    Ok(policy) => policy,
                    Err(error) => {
                        tracing::warn!(%error, policy = base.name(), "a policy in Redis can't be read");
                        Policy::clone(&base)
                    }
                },
                Some(Entry::Configured) | None => Policy::clone(&base),
            }
        });
        self.limits.replace(Policies::try_new(policies)?)
    }
}

/// Shows a policy as it is configured.
fn shown(policy: &Policy) -> String {
    let penalty = policy.get_penalty().map(|penalty| format!(" with bans {penalty}"));
    format!("{} {policy}{}", policy.name(), penalty.unwrap_or_default())
}

/// Returns what an operator has changed about a policy, if that can be read.
fn entry(changes: &Changes, name: &str) -> Option<Entry> {
    changes.entries.get(name).and_then(|entry| entry.text.parse().ok())
}

/// Why no policy was changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeError {
    #[error("there is no such policy")]
    Unknown,
    #[error(transparent)]
    Thresholds(#[from] ThresholdsError),
    #[error(transparent)]
    Limits(#[from] LimitsError),
    #[error("the change can't be written to Redis: {0}")]
    Redis(#[from] StoreError),
    #[error("other servers were faster, again and again")]
    Contended,
}
