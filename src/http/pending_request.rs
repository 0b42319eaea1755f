//! [`PendingRequest`]: a request that waits for the outcome of its check.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::request::Parts;
use http::{Extensions, Request};
use smallvec::SmallVec;
use tower_service::Service;

use super::config::{Config, Muted, OnBan};
use super::forwarded_request::ForwardedRequest;
use super::rejection::Rejection;
use crate::error::StoreError;
use crate::store::{CancelHandle, PendingCheck, conclude, may_have_counted};
use crate::telemetry;
use crate::window::{
    Check, DecidedBy, Decision, Denied, LogId, LogOutcome, Outcome, Undecided, Usage,
};

const DECIDED: &str = "the check has a decision already";

pub(super) struct PendingRequest<S, ReqBody> {
    /// The check to send. Its decision has it afterwards, and so has that of a wait.
    check: Option<Undecided>,
    inner: S,
    pub(super) head: Parts,
    body: ReqBody,
    pub(super) config: Arc<Config>,
}

pub(super) enum NextStep {
    /// Calls the inner service. The response shows the usage and may cancel the admission.
    Forward { usage: Option<Usage>, cancel: Option<CancelHandle> },
    /// Sends the check of a muted request again, now for the rules whose keys are not banned.
    CheckAgain,
    /// Responds without calling the inner service.
    Reject(Rejection),
}

impl<S, ReqBody> PendingRequest<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    pub(super) fn new(
        check: Option<Undecided>,
        inner: S,
        head: Parts,
        body: ReqBody,
        config: Arc<Config>,
    ) -> Self {
        Self { check, inner, head, body, config }
    }

    pub(super) fn send(&self) -> Result<Result<Outcome, StoreError>, PendingCheck> {
        let check = self.check.as_ref().expect(DECIDED);
        PendingCheck::send(&self.config.store, check, self.is_cancellable())
    }

    fn is_cancellable(&self) -> bool {
        self.config.cancel_if.is_some() || self.config.cancel_unanswered
    }

    pub(super) fn decide(&mut self, outcome: Result<Outcome, StoreError>) -> NextStep {
        let shadow = self.config.shadow;
        let check = self.check.take().expect(DECIDED);
        let cancel = (self.is_cancellable() && may_have_counted(&outcome))
            .then(|| CancelHandle::new(&self.config.store, &check));
        let decision = match conclude(check, outcome, shadow) {
            Ok(decision) => decision,
            Err(_) if shadow => return NextStep::Forward { usage: None, cancel },
            Err(error) => {
                // The inner service is not called, so the request must not count.
                cancel.map(CancelHandle::cancel);
                return NextStep::Reject(Rejection::StoreFailed(error));
            }
        };
        self.follow(decision, cancel)
    }

    /// Takes the decision with which a wait has ended.
    pub(super) fn end_wait(&mut self, decision: Decision) -> NextStep {
        let is_counted =
            decision.is_admitted() && decision.decided_by() != DecidedBy::FailurePolicy;
        let cancel = (is_counted && self.is_cancellable())
            .then(|| CancelHandle::new(&self.config.store, decision.usage().check()));
        self.follow(decision, cancel)
    }

    fn follow(&mut self, decision: Decision, cancel: Option<CancelHandle>) -> NextStep {
        self.config.observe(&decision);
        let decided_by = decision.decided_by();
        match decision {
            Decision::Denied(denied) if !self.config.shadow => self.deny(denied, decided_by),
            decision => {
                // The failure policy counts nothing, so then there is no usage to show.
                let is_counted = decided_by != DecidedBy::FailurePolicy;
                let is_shown = self.config.shows_headers_on_success() && is_counted;
                let usage = is_shown.then(|| decision.usage().clone());
                self.insert_decision(decision);
                NextStep::Forward { usage, cancel }
            }
        }
    }

    fn deny(&mut self, denied: Denied, decided_by: DecidedBy) -> NextStep {
        match (denied.usage().banned_for(), self.config.on_ban) {
            (None, _) => NextStep::Reject(Rejection::Denied(denied)),
            (Some(_), OnBan::Reject(status)) => {
                NextStep::Reject(Rejection::Banned { denied, status })
            }
            (Some(remaining), OnBan::Mute) => {
                // Another layer or the check before may have muted the request for longer.
                let earlier = self.head.extensions.get::<Muted>();
                let remaining = earlier.map_or(remaining, |it| it.remaining.max(remaining));
                self.head.extensions.insert(Muted { remaining });
                match remaining_rules(&denied, decided_by) {
                    RemainingRules::None => {
                        self.insert_decision(Decision::Denied(denied));
                        NextStep::Forward { usage: None, cancel: None }
                    }
                    RemainingRules::Denied(denied) => NextStep::Reject(Rejection::Denied(denied)),
                    RemainingRules::Check(check) => {
                        self.check = Some(check);
                        NextStep::CheckAgain
                    }
                }
            }
        }
    }

    fn insert_decision(&mut self, decision: Decision) {
        if let Some(outer) = self.head.extensions.insert(decision) {
            report_double_count(outer, &mut self.head.extensions, &self.config);
        }
    }

    /// Drops the inner service and the body.
    pub(super) fn into_head(self) -> (Parts, Arc<Config>) {
        (self.head, self.config)
    }

    pub(super) fn call(
        mut self,
        usage: Option<Usage>,
        cancel: Option<CancelHandle>,
    ) -> (S::Future, ForwardedRequest) {
        let response = self.inner.call(Request::from_parts(self.head, self.body));
        (response, ForwardedRequest::new(usage, cancel, self.config))
    }
}

/// What the rules whose keys are not banned decide.
enum RemainingRules {
    /// There are none: every key of the request is banned.
    None,
    /// One of them has no room, as the outcome shows. The denial is by these rules.
    Denied(Denied),
    /// They have room. This check counts the request for them.
    Check(Undecided),
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
    let remaining = Undecided::new(denied.check().part(|index| !is_banned[index]));
    let mut outcome = Outcome::from_logs(false, outcomes);
    if outcome.fits() {
        return RemainingRules::Check(remaining);
    }
    (outcome.timestamp, outcome.decided_by) = (denied.timestamp(), decided_by);
    match remaining.clone().decide(outcome) {
        Decision::Denied(denied) => RemainingRules::Denied(denied),
        Decision::Admitted(_) => RemainingRules::Check(remaining),
    }
}

/// The admitted checks of outer layers, except the one whose decision is in the extensions.
#[derive(Clone, Default)]
struct OuterChecks(Vec<Check>);

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
