//! [`Rule`]: a policy together with its key extractor.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use http::request::Parts;

use crate::key::{Key, KeyError, KeyExtractor};
use crate::policy::PolicyHandle;
use crate::telemetry;

/// After how many requests without a key a rule that has never found one is reported.
const UNFOUND: u32 = 100;

/// A policy together with its key extractor.
#[derive(Clone)]
pub(super) struct Rule {
    pub(super) policy: PolicyHandle,
    extractor: Arc<dyn KeyExtractor>,
    /// What tells the rule's keys from those of another rule that would share its logs.
    prefix: Option<Key>,
    seen: Arc<Seen>,
}

/// What has been seen of a rule's keys.
#[derive(Default)]
struct Seen {
    found: AtomicBool,
    missing: AtomicU32,
    not_provided: AtomicBool,
}

impl Rule {
    pub(super) fn new(policy: PolicyHandle, extractor: impl KeyExtractor) -> Self {
        Self { policy, extractor: Arc::new(extractor), prefix: None, seen: Arc::default() }
    }

    /// Tells whether both rules have policies without a name that share their logs.
    pub(super) fn is_unnamed_twin_of(&self, other: &Self) -> bool {
        let (ours, theirs) = (self.policy.get(), other.policy.get());
        !ours.is_named() && ours.shares_logs_with(&theirs)
    }

    /// Gives the rule logs of its own, by its place among the rules of its layer.
    pub(super) fn set_apart(&mut self, place: usize) {
        self.prefix = Some(Key::from(format!("rule-{}", place + 1)));
    }

    /// Returns the key of a request, and reports if there is none.
    pub(super) fn key(&self, parts: &Parts) -> Result<Key, KeyError> {
        let key = self.extractor.extract(parts).inspect_err(|error| self.report(*error))?;
        if !self.seen.found.load(Ordering::Relaxed) {
            self.seen.found.store(true, Ordering::Relaxed);
        }
        Ok(match &self.prefix {
            Some(prefix) => prefix.join(&key),
            None => key,
        })
    }

    #[cold]
    fn report(&self, error: KeyError) {
        let (policy, seen) = (self.policy.get(), &self.seen);
        telemetry::no_key(policy.name(), error.reason());
        match error {
            KeyError::NotProvided { fix } => {
                if !seen.not_provided.swap(true, Ordering::Relaxed) {
                    telemetry::key_not_provided(policy.name(), fix);
                }
            }
            KeyError::Missing if !seen.found.load(Ordering::Relaxed) => {
                if seen.missing.fetch_add(1, Ordering::Relaxed) + 1 == UNFOUND {
                    telemetry::key_never_found(policy.name(), UNFOUND);
                }
            }
            KeyError::Missing | KeyError::Invalid | KeyError::NotApplicable => {}
        }
    }
}
