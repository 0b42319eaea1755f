//! [`Undecided`]: a request that waits for the outcome of its check, and what follows from it.

use std::sync::Arc;

use http::Request;
use http::request::Parts;
use tower_service::Service;

use super::charge::{Admission, Charge};
use super::config::{Config, Muted, OnBan};
use super::double_count;
use super::mute;
use super::passed::Passed;
use super::rejection::Rejection;
use crate::error::StoreError;
use crate::store::conclude;
use crate::window::{Check, DecidedBy, Decision, Denied, Outcome, Usage};

/// A request that waits for the outcome of its check.
pub(super) struct Undecided<S, ReqBody> {
    check: Arc<Check>,
    inner: S,
    head: Parts,
    body: ReqBody,
    pub(super) config: Arc<Config>,
}

/// What follows from an outcome.
pub(super) enum Next {
    /// The request passes. Its response shows the usage, and may give the place back.
    Pass { usage: Option<Usage>, charge: Option<Charge> },
    /// The rules whose keys are not banned decide on a muted request.
    Again,
    /// The request is answered here.
    Reject(Rejection),
}

impl<S, ReqBody> Undecided<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    pub(super) fn new(
        check: Arc<Check>,
        inner: S,
        head: Parts,
        body: ReqBody,
        config: Arc<Config>,
    ) -> Self {
        Self { check, inner, head, body, config }
    }

    /// Sends the check to the store.
    pub(super) fn send(&self) -> Admission {
        Admission::new(&self.config.store, &self.check, self.config.refunds())
    }

    /// Draws the conclusions from an outcome.
    pub(super) fn decide(
        &mut self,
        outcome: Result<Outcome, StoreError>,
        charge: Option<Charge>,
    ) -> Next {
        let shadow = self.config.shadow;
        let decision = match conclude(self.check.clone(), outcome, shadow) {
            Ok(decision) => decision,
            Err(_) if shadow => return Next::Pass { usage: None, charge },
            Err(error) => {
                // The inner service is not called, so the request is not to count.
                charge.map(Charge::cancel);
                return Next::Reject(Rejection::StoreFailed(error));
            }
        };
        if let Some(observe) = &self.config.on_decision {
            observe(&decision);
        }
        // Where nothing was counted there is nothing to tell.
        let counted = decision.decided_by() != DecidedBy::FailurePolicy;
        let decided_by = decision.decided_by();
        match decision {
            Decision::Denied(denied) if !self.config.shadow => self.deny(denied, decided_by),
            decision => {
                let shows = self.config.headers_on_success && counted;
                let usage = shows.then(|| decision.usage().clone());
                self.pass_on(decision);
                Next::Pass { usage, charge }
            }
        }
    }

    fn deny(&mut self, denied: Denied, decided_by: DecidedBy) -> Next {
        match (denied.usage().banned_for(), self.config.on_ban) {
            (None, _) => Next::Reject(Rejection::Denied(denied)),
            (Some(_), OnBan::Reject(status)) => Next::Reject(Rejection::Banned { denied, status }),
            (Some(remaining), OnBan::Mute) => {
                let before =
                    self.head.extensions.get().map_or(remaining, |it: &Muted| it.remaining);
                self.head.extensions.insert(Muted { remaining: remaining.max(before) });
                match mute::unbanned(&self.check, &denied, decided_by) {
                    mute::Rest::None => {
                        self.pass_on(Decision::Denied(denied));
                        Next::Pass { usage: None, charge: None }
                    }
                    mute::Rest::Full(denied) => Next::Reject(Rejection::Denied(denied)),
                    mute::Rest::Open(check) => {
                        self.check = check;
                        Next::Again
                    }
                }
            }
        }
    }

    /// Shows the decision to the inner service.
    fn pass_on(&mut self, decision: Decision) {
        if let Some(outer) = self.head.extensions.insert(decision) {
            double_count::look_for(outer, &self.check, &mut self.head.extensions, &self.config);
        }
    }

    /// Client the inner service.
    pub(super) fn call(
        mut self,
        usage: Option<Usage>,
        charge: Option<Charge>,
    ) -> (S::Future, Passed) {
        let response = self.inner.call(Request::from_parts(self.head, self.body));
        (response, Passed::new(usage, charge, self.config))
    }
}
