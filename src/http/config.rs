//! [`Config`]: the configuration of a layer, and how it makes a check from a request.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use http::request::Parts;
use http::{Response, StatusCode};
use smallvec::SmallVec;

use super::after_response::BodyCost;
use super::headers::RateLimitHeaders;
use super::rejection::{OnRejection, Rejection};
use super::rule::Rule;
use super::span;
use crate::error::StoreError;
use crate::failure::FailurePolicy;
use crate::key::{Key, KeyError};
use crate::offenders::TopOffenders;
use crate::store::{Check, Store};
use crate::waiting::WaitQueues;
use crate::window::{Decision, LogId, LogOutcome, Usage};

type Cost = dyn Fn(&Parts) -> u32 + Send + Sync;
type OnDecision = dyn Fn(&Decision) + Send + Sync;
type CancelIf = dyn Fn(&Response<()>) -> bool + Send + Sync;
type HeadCost = dyn Fn(&Response<()>) -> Option<u32> + Send + Sync;

#[derive(Clone)]
pub(super) struct Config {
    pub(super) rules: Vec<Rule>,
    pub(super) store: Arc<dyn Store>,
    pub(super) on_failure: FailurePolicy,
    pub(super) on_ban: OnBan,
    pub(super) missing_key: MissingKey,
    pub(super) skip: Arc<dyn Fn(&Parts) -> bool + Send + Sync>,
    pub(super) cost: Option<Arc<Cost>>,
    pub(super) headers: RateLimitHeaders,
    pub(super) headers_on_success: bool,
    pub(super) shadow: bool,
    pub(super) on_rejection: Option<Arc<OnRejection>>,
    pub(super) on_decision: Option<Arc<OnDecision>>,
    pub(super) offenders: Option<TopOffenders>,
    pub(super) cancel_if: Option<Arc<CancelIf>>,
    /// What a request takes of its budgets, by the head of its response.
    pub(super) head_cost: Option<Arc<HeadCost>>,
    /// The same by the end of the body, and how many of its last bytes are kept for that.
    pub(super) body_cost: Option<BodyCost>,
    /// How long a request waits for room. Zero if no request waits.
    pub(super) max_wait: Duration,
    pub(super) max_waiters: usize,
    /// The longest time that is added to a wait in a response.
    pub(super) jitter: Duration,
    pub(super) waiting: Arc<WaitQueues>,
    /// Whether a cost that can never pass was already warned of.
    pub(super) cost_reported: Arc<AtomicBool>,
}

/// What the layer does with a request whose key is banned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnBan {
    /// Responds with this status, a problem document and, if the wait is known, `Retry-After`.
    Reject(StatusCode),
    /// Calls the inner service with [`Muted`] in the request's extensions, so that the handler can
    /// pretend success. The request is not counted for the banned key. No response shows quotas of a policy with a penalty,
    /// because a muted request has none, unless that policy denies the request.
    ///
    /// The rules whose keys are not banned still apply, all or nothing: the layer responds with the
    /// usual 429 if one of them has no room. This takes a second check, so
    /// [`on_decision`](super::SlidingWindowLayer::on_decision) may be called twice: with the denial
    /// by the ban, and with the decision of the other rules.
    Mute,
}

/// An extension of requests that the inner service gets although their key is banned; see
/// [`OnBan::Mute`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Muted {
    /// How long the ban still lasts.
    pub remaining: Duration,
}

/// What the layer does with a request that has no key for a rule.
///
/// Applies to [`KeyError::Missing`](crate::KeyError::Missing) only. If the server itself did not
/// provide the key, the response is always a 500.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingKey {
    /// Skips this rule for the request. The other rules apply.
    SkipRule,
    /// Responds with this status.
    Reject(StatusCode),
}

impl Config {
    /// Adds a rule. If several rules may have policies without a name, which could share their logs, each has a key prefix.
    pub(super) fn add(&mut self, rule: Rule) {
        self.rules.push(rule);
        if self.rules.iter().filter(|rule| rule.may_be_unnamed()).count() > 1 {
            for (index, rule) in self.rules.iter_mut().enumerate() {
                rule.prefix = Some(Key::from(format!("rule-{}", index + 1)));
            }
        }
    }

    /// Returns whether requests wait for room.
    pub(super) fn waits(&self) -> bool {
        !self.max_wait.is_zero() && !self.shadow
    }

    pub(super) fn shows_on_success(&self) -> bool {
        self.headers_on_success && self.headers != RateLimitHeaders::None
    }

    /// Returns which logs of a decision a response shows: under [`OnBan::Mute`] none whose policy has a penalty, unless it
    /// denies. A muted request lacks them and must not stand out.
    pub(super) fn shows(&self, usage: &Usage) -> impl Fn(usize) -> bool + use<> {
        let is_shown = |(log, outcome): (&LogId, &LogOutcome)| {
            self.on_ban != OnBan::Mute || log.policy.get_penalty().is_none() || outcome.denies()
        };
        let shown: SmallVec<[bool; 4]> = usage.logs().map(is_shown).collect();
        move |index| shown[index]
    }

    /// Shows a decision to those that observe them.
    pub(super) fn observe(&self, decision: &Decision) {
        span::record(decision, self.shadow);
        if let Some(observe) = &self.on_decision {
            observe(decision);
        }
        if let Some(offenders) = &self.offenders {
            offenders.record(decision);
        }
    }

    /// Returns the check to send to the store, or `None` if no rule applies to the request. That a rule is skipped for want
    /// of its key is reported with the first check of a request only.
    pub(super) fn check(&self, head: &Parts, is_first: bool) -> Result<Option<Check>, Rejection> {
        if (self.skip)(head) {
            return Ok(None);
        }
        let mut logs = SmallVec::new();
        for rule in &self.rules {
            let Err(error) = rule.add_log(head, self.shadow, &mut logs) else { continue };
            let rejection = match (error, self.missing_key) {
                (KeyError::NotApplicable, _) | (KeyError::Missing, MissingKey::SkipRule) => None,
                (KeyError::Missing, MissingKey::Reject(status)) => {
                    Some(Rejection::MissingKey { status })
                }
                (KeyError::Invalid, _) => Some(Rejection::InvalidKey),
                (KeyError::NotProvided { fix }, _) => Some(Rejection::KeyNotProvided { fix }),
            };
            if is_first || rejection.is_some() {
                rule.report(error);
            }
            if let Some(rejection) = rejection {
                return Err(rejection);
            }
        }
        if logs.is_empty() {
            return Ok(None);
        }
        let mut check = Check::of_unique_logs(logs);
        check.wants_reset = self.shows_on_success();
        check.on_failure = self.on_failure;
        let mut cost = self.cost.as_ref().map_or(1, |cost| cost(head));
        if self.head_cost.is_some() || self.body_cost.is_some() {
            // What reserves nothing has no entry that could be settled, and no budget would ever be full.
            cost = cost.max(1);
        }
        if cost != 1 {
            check.set_cost_of_budgets(cost);
        }
        let admissible = match cost > 1 && !self.rules.iter().any(Rule::may_be_budget) {
            true => Err(StoreError::NoBudget { cost }),
            // The request may be exempt from the budget.
            false => check.ensure_admissible(),
        };
        admissible
            .inspect_err(|error| error.report_once(&self.cost_reported))
            .map_err(Rejection::StoreFailed)?;
        Ok(Some(check))
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policies: Vec<_> = self.rules.iter().map(|rule| rule.policy.get()).collect();
        f.debug_struct("Config").field("policies", &policies).finish_non_exhaustive()
    }
}
