//! [`Config`]: what all clones of a layer share, and the question it makes of a request.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use http::request::Parts;
use http::{Response, StatusCode};
use smallvec::SmallVec;

use super::rejection::{OnRejection, Rejection};
use super::rule::Rule;
use crate::error::StoreError;
use crate::failure::FailurePolicy;
use crate::key::KeyError;
use crate::store::{Check, LogId, Store};
use crate::window::Decision;

pub(super) type Skip = dyn Fn(&Parts) -> bool + Send + Sync;
pub(super) type Cost = dyn Fn(&Parts) -> u32 + Send + Sync;
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
    pub(super) cancel_unanswered: bool,
    /// Whether it was reported that a layer further out counts in the same logs.
    pub(super) counts_twice: Arc<AtomicBool>,
}

/// What becomes of a request whose key is banned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnBan {
    /// The request is answered with this status, `Retry-After` and a problem document.
    Reject(StatusCode),
    /// The request passes, with [`Muted`] in its extensions, so that the handler can pretend. It is
    /// not counted for the key that is banned.
    ///
    /// The rules whose keys are not banned still hold: they decide on the request, all or nothing,
    /// and the usual 429 is the answer if one of them has no room. This takes a second check, so
    /// [`on_decision`](super::SlidingWindowLayer::on_decision) may be shown two decisions: the
    /// denial by the ban, and the decision by the other rules.
    Mute,
}

/// Found in the extensions of a request that passes although its key is banned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Muted {
    /// How long the ban goes on.
    pub remaining: Duration,
}

/// What becomes of a request that does not carry the key of a rule.
///
/// It is about [`KeyError::Missing`](crate::KeyError::Missing) only. A key that the server itself
/// did not provide is answered with 500 in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingKey {
    /// The rule does not apply to the request; the others do.
    SkipRule,
    /// The request is answered with this status.
    Reject(StatusCode),
}

impl Config {
    /// Adds a rule. Rules that would share their logs although no name says so are told apart.
    pub(super) fn add(&mut self, mut rule: Rule) {
        let place = self.rules.len();
        for (twin_place, twin) in self.rules.iter_mut().enumerate() {
            if rule.is_unnamed_twin_of(twin) {
                // Of both, for a key can be any text, also one that begins with the other's prefix.
                twin.set_apart(twin_place);
                rule.set_apart(place);
            }
        }
        self.rules.push(rule);
    }

    /// Tells whether a request may give its place back.
    pub(super) fn refunds(&self) -> bool {
        self.cancel_if.is_some() || self.cancel_unanswered
    }

    /// Returns the question to put to the store, or nothing if no rule applies to the request.
    #[allow(clippy::result_large_err, reason = "the errors made here are small and rare")]
    pub(super) fn check(&self, parts: &Parts) -> Result<Option<Arc<Check>>, Rejection> {
        if (self.skip)(parts) {
            return Ok(None);
        }
        let mut logs = SmallVec::<[LogId; 1]>::new();
        for rule in &self.rules {
            let key = match (rule.key(parts), self.missing_key) {
                (Ok(key), _) => key,
                (Err(KeyError::NotApplicable), _) => continue,
                (Err(KeyError::Missing), MissingKey::SkipRule) => continue,
                (Err(KeyError::Missing), MissingKey::Reject(status)) => {
                    return Err(Rejection::MissingKey { status });
                }
                (Err(KeyError::Invalid), _) => return Err(Rejection::InvalidKey),
                (Err(KeyError::NotProvided { .. }), _) => return Err(Rejection::KeyNotProvided),
            };
            logs.push(LogId { policy: rule.policy.get(), key });
        }
        if logs.is_empty() {
            return Ok(None);
        }
        let mut check = Check::from_logs(logs);
        check.wants_reset = self.headers_on_success;
        check.on_failure = self.on_failure;
        check.cost = self.cost.as_ref().map_or(1, |cost| cost(parts));
        check.ensure_possible().inspect_err(StoreError::report).map_err(Rejection::StoreFailed)?;
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
