//! [`Rule`]: a policy together with its key extractor.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use http::request::Parts;

use crate::key::{Key, KeyError, KeyExtractor};
use crate::policy::PolicyHandle;
use crate::telemetry;

/// A rule that has never found its key is reported after so many requests without one.
const REPORTED_AFTER: u32 = 100;

#[derive(Clone)]
pub(super) struct Rule {
    pub(super) policy: PolicyHandle,
    extractor: Arc<dyn KeyExtractor>,
    /// Separates the rule's keys from those of a rule that would share its logs.
    prefix: Option<Key>,
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
        Self { policy, extractor: Arc::new(extractor), prefix: None, stats: Arc::default() }
    }

    pub(super) fn shares_unnamed_logs_with(&self, other: &Self) -> bool {
        let (ours, theirs) = (self.policy.get(), other.policy.get());
        !ours.is_named() && ours.shares_logs_with(&theirs)
    }

    /// Gives the rule separate logs, by its index among the rules of its layer.
    pub(super) fn set_key_prefix(&mut self, index: usize) {
        self.prefix = Some(Key::from(format!("rule-{}", index + 1)));
    }

    /// Returns the key of a request, and reports if there is none.
    pub(super) fn key(&self, parts: &Parts) -> Result<Key, KeyError> {
        let key = self.extractor.extract(parts).inspect_err(|error| self.report(*error))?;
        if !self.stats.found.load(Ordering::Relaxed) {
            self.stats.found.store(true, Ordering::Relaxed);
        }
        Ok(match &self.prefix {
            Some(prefix) => prefix.join(&key),
            None => key,
        })
    }

    #[cold]
    fn report(&self, error: KeyError) {
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
