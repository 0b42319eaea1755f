//! [`NextStep`]: what the layer does with a request, once the store has got its check.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::request::Parts;
use http::{Extensions, Response};
use smallvec::SmallVec;

use super::body::RejectionBody;
use super::config::{Config, Muted, OnBan};
use super::rejection::Rejection;
use super::span;
use crate::error::StoreError;
use crate::store::{CancelHandle, PendingCheck, Sent, conclude};
use crate::telemetry;
use crate::window::{Check, DecidedBy, Decision, Denied, LogId, LogOutcome, Outcome, Usage};

/// What the layer does with a request.
pub(super) enum NextStep {
    /// Waits for the outcome of this check.
    Wait(Arc<Check>, PendingCheck),
    /// Calls the inner service. The response shows the usage and may cancel the admission.
    Forward { usage: Option<Usage>, cancel: Option<CancelHandle> },
    /// Responds without calling the inner service.
    Reject(Rejection),
}

impl Config {
    /// Sends the check of a request, and follows a decision that the store makes at once.
    pub(super) fn send(&self, head: &mut Parts, check: Arc<Check>) -> NextStep {
        match PendingCheck::send(&self.store, &check, self.is_cancellable()) {
            Sent::Decided(outcome, cancel) => self.decide(head, check, outcome, cancel),
            Sent::Pending(sent) => NextStep::Wait(check, sent),
        }
    }

    fn is_cancellable(&self) -> bool {
        self.cancel_if.is_some() || self.cancel_unanswered
    }

    /// Follows the outcome of a check.
    pub(super) fn decide(
        &self,
        head: &mut Parts,
        check: Arc<Check>,
        outcome: Result<Outcome, StoreError>,
        cancel: Option<CancelHandle>,
    ) -> NextStep {
        let decision = match conclude(check, outcome, self.shadow) {
            Ok(decision) => decision,
            Err(_) if self.shadow => return NextStep::Forward { usage: None, cancel },
            Err(error) => {
                // The inner service is not called, so the request must not count.
                cancel.map(CancelHandle::cancel);
                return NextStep::Reject(Rejection::StoreFailed(error));
            }
        };
        self.follow(head, decision, cancel)
    }

    /// Follows the decision with which a wait has ended.
    pub(super) fn end_wait(&self, head: &mut Parts, decision: Decision) -> NextStep {
        let is_counted =
            decision.is_admitted() && decision.decided_by() != DecidedBy::FailurePolicy;
        let cancel = (is_counted && self.is_cancellable())
            .then(|| CancelHandle::new(&self.store, decision.usage().check()));
        self.follow(head, decision, cancel)
    }

    /// Makes the response to a request that is rejected.
    pub(super) fn respond(&self, head: &Parts, rejection: &Rejection) -> Response<RejectionBody> {
        rejection.respond(head, self.on_rejection.as_deref(), self.headers)
    }

    fn follow(
        &self,
        head: &mut Parts,
        decision: Decision,
        cancel: Option<CancelHandle>,
    ) -> NextStep {
        span::record(&decision, self.shadow);
        if let Some(observe) = &self.on_decision {
            observe(&decision);
        }
        if let Some(offenders) = &self.offenders {
            offenders.record(&decision);
        }
        let decided_by = decision.decided_by();
        match decision {
            Decision::Denied(denied) if !self.shadow => self.deny(head, denied, decided_by),
            decision => {
                // The failure policy counts nothing, so then there is no usage to show.
                let is_counted = decided_by != DecidedBy::FailurePolicy;
                let is_shown = self.shows_headers_on_success() && is_counted;
                let usage = is_shown.then(|| decision.usage().clone());
                self.insert_decision(head, decision);
                NextStep::Forward { usage, cancel }
            }
        }
    }

    fn deny(&self, head: &mut Parts, denied: Denied, decided_by: DecidedBy) -> NextStep {
        match (denied.usage().banned_for(), self.on_ban) {
            (None, _) => NextStep::Reject(Rejection::Denied(denied)),
            (Some(_), OnBan::Reject(status)) => {
                NextStep::Reject(Rejection::Banned { denied, status })
            }
            (Some(remaining), OnBan::Mute) => self.mute(head, denied, decided_by, remaining),
        }
    }

    #[cold]
    fn mute(
        &self,
        head: &mut Parts,
        denied: Denied,
        decided_by: DecidedBy,
        remaining: Duration,
    ) -> NextStep {
        // Another layer or the check before may have muted the request for longer.
        let earlier = head.extensions.get::<Muted>();
        let remaining = earlier.map_or(remaining, |it| it.remaining.max(remaining));
        head.extensions.insert(Muted { remaining });
        match remaining_rules(&denied, decided_by) {
            RemainingRules::None => {
                self.insert_decision(head, Decision::Denied(denied));
                NextStep::Forward { usage: None, cancel: None }
            }
            RemainingRules::Denied(denied) => NextStep::Reject(Rejection::Denied(denied)),
            // This check has fewer rules than the one before.
            RemainingRules::Check(check) => self.send(head, check),
        }
    }

    fn insert_decision(&self, head: &mut Parts, decision: Decision) {
        if let Some(outer) = head.extensions.insert(decision) {
            report_double_count(outer, &mut head.extensions, self);
        }
    }
}

/// What the rules whose keys are not banned decide.
enum RemainingRules {
    /// There are none: every key of the request is banned.
    None,
    /// One of them has no room, as the outcome shows. The denial is by these rules.
    Denied(Denied),
    /// They have room. This check counts the request for them.
    Check(Arc<Check>),
}

fn remaining_rules(denied: &Denied, decided_by: DecidedBy) -> RemainingRules {
    let mut is_banned: SmallVec<[bool; 4]> = SmallVec::new();
    let mut outcomes: SmallVec<[LogOutcome; 1]> = SmallVec::new();
    for (_, outcome) in denied.usage().logs() {
        is_banned.push(outcome.ban().is_banned());
        if !outcome.ban().is_banned() {
            outcomes.push(outcome.clone());
        }
    }
    if outcomes.is_empty() {
        return RemainingRules::None;
    }
    let remaining = Arc::new(denied.check().part(|index| !is_banned[index]));
    let mut outcome = Outcome::from_logs(false, outcomes);
    if outcome.fits() {
        return RemainingRules::Check(remaining);
    }
    (outcome.timestamp, outcome.decided_by) = (denied.timestamp(), decided_by);
    match Decision::new(remaining.clone(), outcome) {
        Decision::Denied(denied) => RemainingRules::Denied(denied),
        Decision::Admitted(_) => RemainingRules::Check(remaining),
    }
}

/// The admitted checks of outer layers, except the one whose decision is in the extensions.
#[derive(Clone, Default)]
struct OuterChecks(Vec<Arc<Check>>);

/// Reports a request that an outer layer has already counted in a log of the decision.
///
/// Called only if the extensions held the decision of another layer.
fn report_double_count(outer: Decision, extensions: &mut Extensions, config: &Config) {
    let mut counted = extensions.remove::<OuterChecks>().unwrap_or_default();
    counted.0.extend(outer.admitted().map(|admitted| admitted.check().clone()));
    let is_counted = |log: &&LogId| counted.0.iter().any(|check| check.logs.contains(log));
    let decision = extensions.get::<Decision>();
    let logs = decision.map_or(&[][..], |decision| decision.usage().check().logs());
    if let Some(log) = logs.iter().find(is_counted) {
        let is_first = !config.double_count_reported.swap(true, Ordering::Relaxed);
        telemetry::counted_twice(log.policy.name(), is_first);
    }
    extensions.insert(counted);
}
