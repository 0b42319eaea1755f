//! [`Rule`]: a policy, or a choice of policies, together with a key extractor.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use http::request::Parts;
use smallvec::SmallVec;

use crate::key::{Key, KeyError, KeyExtractor};
use crate::policy::PolicyHandle;
use crate::telemetry;
use crate::window::{LogId, add_or_merge};

/// A rule that has never found its key is reported after so many requests without one.
const REPORTED_AFTER: u32 = 100;

type ChoosePolicy = dyn Fn(&Parts, &Key) -> Option<PolicyHandle> + Send + Sync;

#[derive(Clone)]
pub(super) struct Rule {
    /// The policy of all requests. If a closure chooses it, the one that metrics and warnings name if a request has no
    /// key.
    pub(super) policy: PolicyHandle,
    pub(super) choose: Option<Arc<ChoosePolicy>>,
    extractor: Arc<dyn KeyExtractor>,
    /// Extracts the value of a policy that counts distinct values.
    pub(super) value: Option<Arc<dyn KeyExtractor>>,
    /// Separates the rule's keys from those of another rule, if a policy has no name.
    pub(super) prefix: Option<Key>,
    stats: Arc<KeyStats>,
}

/// What earlier requests have shown about the keys of a rule.
#[derive(Default)]
struct KeyStats {
    found: AtomicBool,
    missing: AtomicU32,
    not_provided: AtomicBool,
}

impl Rule {
    pub(super) fn new(policy: PolicyHandle, extractor: impl KeyExtractor) -> Self {
        let (extractor, stats) = (Arc::new(extractor), Arc::default());
        Self { policy, choose: None, extractor, value: None, prefix: None, stats }
    }

    /// Returns whether a policy of the rule has no name. A closure may choose any policy.
    pub(super) fn may_be_unnamed(&self) -> bool {
        self.choose.is_some() || !self.policy.get().is_named()
    }

    pub(super) fn may_be_budget(&self) -> bool {
        self.choose.is_some() || self.policy.get().counts().is_budget()
    }

    /// Adds the log of a request, unless the request is exempt.
    pub(super) fn add_log(
        &self,
        parts: &Parts,
        shadow: bool,
        logs: &mut SmallVec<[LogId; 2]>,
    ) -> Result<(), KeyError> {
        let key = self.extractor.extract(parts)?;
        let value = self.value.as_ref().map(|value| value.extract(parts)).transpose()?;
        if !self.stats.found.load(Ordering::Relaxed) {
            self.stats.found.store(true, Ordering::Relaxed);
        }
        let mut policy = match &self.choose {
            None => self.policy.get(),
            Some(choose) => match choose(parts, &key) {
                Some(policy) => policy.get(),
                None => return Ok(()),
            },
        };
        // The store would enforce the bans of a shadow.
        if shadow && policy.get_penalty().is_some() {
            Arc::make_mut(&mut policy).remove_penalty();
        }
        let key = match &self.prefix {
            Some(prefix) if !policy.is_named() => prefix.join(&key),
            _ => key,
        };
        let value = value.map(|value| Box::new(value.entry_id()));
        add_or_merge(logs, LogId { policy, key, value });
        Ok(())
    }

    /// Reports that a request has no key.
    pub(super) fn report(&self, error: KeyError) {
        let (policy, stats) = (self.policy.get(), &self.stats);
        telemetry::no_key(policy.label(), error.reason());
        match error {
            KeyError::NotProvided { fix } => {
                if !stats.not_provided.swap(true, Ordering::Relaxed) {
                    telemetry::key_not_provided(policy.name(), fix);
                }
            }
            KeyError::Missing if !stats.found.load(Ordering::Relaxed) => {
                if stats.missing.fetch_add(1, Ordering::Relaxed) + 1 == REPORTED_AFTER {
                    telemetry::key_never_found(policy.name(), REPORTED_AFTER);
                }
            }
            KeyError::Missing | KeyError::Invalid | KeyError::NotApplicable => {}
        }
    }
}
