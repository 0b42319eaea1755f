//! [`Config`]: what all clones of a layer share, and the question it makes of a request.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};
use smallvec::SmallVec;

use super::rejection::Rejection;
use crate::decision::Decision;
use crate::failure::FailurePolicy;
use crate::key::{KeyError, KeyExtractor};
use crate::policy::PolicyHandle;
use crate::report;
use crate::store::{Check, Partition, Store};

pub(super) type Skip = dyn Fn(&Parts) -> bool + Send + Sync;
pub(super) type Cost = dyn Fn(&Parts) -> u32 + Send + Sync;
pub(super) type OnRejection = dyn Fn(&Rejection) -> Response<Bytes> + Send + Sync;
pub(super) type OnDecision = dyn Fn(&Decision) + Send + Sync;
pub(super) type CancelIf = dyn Fn(&Response<()>) -> bool + Send + Sync;

/// What all clones of a layer share.
#[derive(Clone)]
pub(super) struct Config {
    pub(super) rules: Vec<Rule>,
    pub(super) store: Arc<dyn Store>,
    pub(super) on_failure: FailurePolicy,
    pub(super) on_ban: OnBan,
    pub(super) missing_key: MissingKey,
    pub(super) skip: Arc<Skip>,
    pub(super) cost: Option<Arc<Cost>>,
    pub(super) headers_on_success: bool,
    pub(super) shadow: bool,
    pub(super) on_rejection: Option<Arc<OnRejection>>,
    pub(super) on_decision: Option<Arc<OnDecision>>,
    pub(super) cancel_if: Option<Arc<CancelIf>>,
}

/// A policy together with its key extractor.
#[derive(Clone)]
pub(super) struct Rule {
    pub(super) policy: PolicyHandle,
    pub(super) key: Arc<dyn KeyExtractor>,
}

/// What becomes of a request whose key is banned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnBan {
    /// The request is answered with this status, `Retry-After` and a problem document.
    Reject(StatusCode),
    /// The request passes, with [`Muted`] in its extensions, so that the handler can pretend. It is
    /// not counted.
    Mute,
}

/// Found in the extensions of a request that passes although its key is banned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Muted {
    /// How long the ban goes on.
    pub remaining: Duration,
}

/// What becomes of a request that has no key for a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingKey {
    /// The rule does not apply to the request; the others do.
    SkipRule,
    /// The request is answered with this status.
    Reject(StatusCode),
}

impl Config {
    /// Returns the question to put to the store, or nothing if no rule applies to the request.
    #[allow(clippy::result_large_err, reason = "the errors made here are small and rare")]
    pub(super) fn check(&self, parts: &Parts) -> Result<Option<Arc<Check>>, Rejection> {
        if (self.skip)(parts) {
            return Ok(None);
        }
        let mut partitions = SmallVec::<[Partition; 1]>::new();
        for rule in &self.rules {
            let key = match (rule.key.extract(parts), self.missing_key) {
                (Ok(key), _) => key,
                (Err(KeyError::NotApplicable), _) => continue,
                (Err(KeyError::Missing), MissingKey::SkipRule) => continue,
                (Err(KeyError::Missing), MissingKey::Reject(status)) => {
                    return Err(Rejection::MissingKey { status });
                }
                (Err(KeyError::Invalid), _) => return Err(Rejection::InvalidKey),
            };
            partitions.push(Partition { policy: rule.policy.get(), key });
        }
        if partitions.is_empty() {
            return Ok(None);
        }
        let mut check = Check::about(partitions);
        check.wants_reset = self.headers_on_success;
        check.on_failure = self.on_failure;
        check.cost = self.cost.as_ref().map_or(1, |cost| cost(parts));
        check.possible().inspect_err(report::store_error).map_err(Rejection::StoreFailed)?;
        Ok(Some(Arc::new(check)))
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policies: Vec<_> = self.rules.iter().map(|rule| rule.policy.get()).collect();
        f.debug_struct("Config")
            .field("policies", &policies)
            .field("on_failure", &self.on_failure)
            .field("missing_key", &self.missing_key)
            .field("headers_on_success", &self.headers_on_success)
            .field("shadow", &self.shadow)
            .finish_non_exhaustive()
    }
}
