//! [`ResponseFuture`]: a request, from the check to the response.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use smallvec::SmallVec;
use tower_service::Service;

use super::after_response::AfterResponse;
use super::body::ResponseBody;
use super::config::{Config, Muted, OnBan};
use super::rejection::Rejection;
use crate::error::StoreError;
use crate::store::{PendingCheck, Permit, conclude, may_have_counted};
use crate::waiting::{Bounds, NotAdmitted, deny_behind, until_admitted};
use crate::window::{Admitted, Check, DecidedBy, Decision, Denied, Outcome};

pin_project! {
    /// The response future of [`SlidingWindow`](super::SlidingWindow).
    pub struct ResponseFuture<S, ReqBody>
    where
        S: Service<Request<ReqBody>>,
    {
        #[pin]
        state: State<S, ReqBody>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, ReqBody>
    where
        S: Service<Request<ReqBody>>,
    {
        /// The store decides.
        Deciding { check: PendingCheck, request: Option<Parked<S, ReqBody>> },
        /// The request waits for room. The wait ends with its head.
        Waiting { wait: Wait, rest: Option<(S, ReqBody, Arc<Config>)> },
        /// The inner service handles the request.
        Calling { #[pin] response: S::Future, after: Option<Box<AfterResponse>> },
        /// The request is cancelled or settled after its response. A client that retries at once then finds the
        /// place free.
        Settling { settled: Option<(Result<S::Response, S::Error>, Box<AfterResponse>)> },
        Rejected { rejection: Rejection, head: Parts, config: Arc<Config> },
        /// What the application provides has panicked, such as an extractor.
        Panicked { panic: Option<Box<dyn Any + Send>> },
    }
}

impl<S: Service<Request<ReqBody>>, ReqBody> fmt::Debug for ResponseFuture<S, ReqBody> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

type Wait = Pin<Box<dyn Future<Output = (Parts, WaitResult)> + Send>>;

/// How a wait has ended. There is no decision if no rule applies to the request any more.
type WaitResult = Result<Option<Decision>, Rejection>;

const COMPLETED: &str = "polled after completion";

impl<S, ReqBody> ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    /// Asks the store about a request, unless no rule applies to it.
    pub(super) fn new(inner: S, request: Request<ReqBody>, config: Arc<Config>) -> Self {
        let (head, body) = request.into_parts();
        let request = Parked { inner, head, body, config };
        // A panic goes on when the future is polled, and ends this request alone: in `call` it would end a
        // `tower::buffer::Buffer` for all.
        let state = catch_unwind(AssertUnwindSafe(|| request.start()));
        Self { state: state.unwrap_or_else(|panic| State::Panicked { panic: Some(panic) }) }
    }
}

/// A request for which the inner service was not called yet.
struct Parked<S, ReqBody> {
    inner: S,
    head: Parts,
    body: ReqBody,
    config: Arc<Config>,
}

impl<S, ReqBody> Parked<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    fn start(self) -> State<S, ReqBody> {
        match self.config.check(&self.head, true) {
            Ok(Some(check)) if self.config.waits() => {
                let (head, config) = (self.head, self.config.clone());
                let wait = Box::pin(async move {
                    let waited = wait(check, &head, &config).await;
                    (head, waited)
                });
                State::Waiting { wait, rest: Some((self.inner, self.body, self.config)) }
            }
            Ok(Some(check)) => self.ask(check),
            Err(rejection) if !self.config.shadow => self.reject(rejection),
            Ok(None) | Err(_) => self.call(None),
        }
    }

    fn ask(self, check: Check) -> State<S, ReqBody> {
        let is_cancellable = self.config.cancel_if.is_some();
        let check = PendingCheck::send(&self.config.store, check, is_cancellable);
        State::Deciding { check, request: Some(self) }
    }

    fn call(mut self, after: Option<Box<AfterResponse>>) -> State<S, ReqBody> {
        let response = self.inner.call(Request::from_parts(self.head, self.body));
        State::Calling { response, after }
    }

    fn reject_denied(self, denied: Denied) -> State<S, ReqBody> {
        let denied = match self.config.on_ban {
            OnBan::Mute => denied.part(self.config.shows(denied.usage())),
            OnBan::Reject(_) => denied,
        };
        let denied = denied.delayed(self.config.jitter);
        self.reject(Rejection::Denied(denied))
    }

    fn reject(self, rejection: Rejection) -> State<S, ReqBody> {
        State::Rejected { rejection, head: self.head, config: self.config }
    }

    /// Continues with the outcome of a check.
    fn decide(self, check: Check, outcome: Result<Outcome, StoreError>) -> State<S, ReqBody> {
        let shadow = self.config.shadow;
        // Also if the failure policy `Open` admits a request whose reply was lost.
        let may_have_counted = may_have_counted(&outcome);
        match conclude(check, outcome, shadow) {
            Ok(decision) => self.follow(decision, may_have_counted),
            // A store whose reply was lost sees to it that the request does not count.
            Err(_) if shadow => self.call(None),
            Err(error) => self.reject(Rejection::StoreFailed(error)),
        }
    }

    fn follow(mut self, decision: Decision, may_have_counted: bool) -> State<S, ReqBody> {
        // The failure policy counts nothing, so then there is nothing to hold.
        let is_counted = decision.decided_by() != DecidedBy::FailurePolicy;
        let admitted = decision.admitted().filter(|_| is_counted);
        let hold = |admitted: &Admitted| Permit::hold(&self.config.store, admitted.check());
        // Before a closure of the application, whose panic must not keep the places.
        let permit = admitted.and_then(hold);
        self.config.observe(&decision);
        match decision {
            Decision::Denied(denied) if !self.config.shadow => self.deny(denied),
            decision => {
                let (config, head) = (&self.config, &self.head);
                let after = AfterResponse::new(config, head, &decision, permit, may_have_counted);
                self.head.extensions.insert(decision);
                self.call(after)
            }
        }
    }

    fn deny(mut self, denied: Denied) -> State<S, ReqBody> {
        let Some(remaining) = denied.usage().banned_for() else {
            return self.reject_denied(denied);
        };
        if let OnBan::Reject(status) = self.config.on_ban {
            return self.reject(Rejection::Banned { denied, status });
        }
        // Another layer or the check before may have muted the request for longer.
        let earlier = self.head.extensions.get::<Muted>();
        let remaining = earlier.map_or(remaining, |it| it.remaining.max(remaining));
        self.head.extensions.insert(Muted { remaining });
        let logs = denied.usage().logs();
        let remain: SmallVec<[bool; 4]> = logs.map(|(_, it)| !it.ban().is_banned()).collect();
        if !remain.contains(&true) {
            self.head.extensions.insert(Decision::Denied(denied));
            return self.call(None);
        }
        let others = denied.part(|index| remain[index]);
        if others.retry_after().is_zero() {
            return self.ask(others.check().clone());
        }
        self.reject_denied(others)
    }
}

/// Waits until a request is admitted, or denies it. If the future is dropped, the request does not count.
async fn wait(check: Check, head: &Parts, config: &Config) -> WaitResult {
    // Anew, because policies may have been replaced.
    let again = || -> Result<Check, Option<Rejection>> {
        config.check(head, false).map_err(Some)?.ok_or(None)
    };
    let bounds = Bounds::new(config.max_wait, config.max_waiters);
    let first = check.clone();
    let decided = match until_admitted(&config.waiting, &config.store, first, again, bounds).await {
        Ok(admitted) => Ok(Decision::Admitted(admitted)),
        Err(NotAdmitted::Stopped(rejection)) => return rejection.map_or(Ok(None), Err),
        Err(NotAdmitted::Denied(denied) | NotAdmitted::TooManyWaiters(_, Some(denied))) => {
            Ok(Decision::Denied(denied))
        }
        Err(NotAdmitted::TooManyWaiters(_, None)) => {
            deny_behind(&config.waiting, &config.store, check).await
        }
        Err(NotAdmitted::Store(error)) => Err(error),
    };
    decided.map(Some).map_err(Rejection::StoreFailed)
}

impl<S, ReqBody, ResBody> Future for ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    ResBody: Body,
{
    type Output = Result<Response<ResponseBody<ResBody>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProj::Deciding { check, request } => {
                    let (check, outcome) = ready!(check.poll(cx));
                    request.take().expect(COMPLETED).decide(check, outcome)
                }
                StateProj::Waiting { wait, rest } => {
                    let (head, waited) = ready!(wait.as_mut().poll(cx));
                    let (inner, body, config) = rest.take().expect(COMPLETED);
                    let request = Parked { inner, head, body, config };
                    match waited {
                        // If the failure policy has admitted it, the reply may have been lost.
                        Ok(Some(decision)) => request.follow(decision, true),
                        Err(rejection) => request.reject(rejection),
                        Ok(None) => request.call(None),
                    }
                }
                StateProj::Calling { response, after } => {
                    let result = ready!(response.poll(cx));
                    let Some(mut after) = after.take() else {
                        let whole = |body| ResponseBody::inner(body, None);
                        return Poll::Ready(result.map(|response| response.map(whole)));
                    };
                    let result = match result {
                        Ok(response) => Ok(after.respond(response)),
                        Err(error) => {
                            after.fail();
                            Err(error)
                        }
                    };
                    State::Settling { settled: Some((result, after)) }
                }
                StateProj::Settling { settled } => {
                    let (_, after) = settled.as_mut().expect(COMPLETED);
                    ready!(after.poll_done(cx));
                    let (result, after) = settled.take().expect(COMPLETED);
                    return Poll::Ready(result.map(|response| after.finish(response)));
                }
                StateProj::Panicked { panic } => resume_unwind(panic.take().expect(COMPLETED)),
                StateProj::Rejected { rejection, head, config } => {
                    let on_rejection = config.on_rejection.as_deref();
                    return Poll::Ready(Ok(rejection.respond(head, on_rejection, config.headers)));
                }
            };
            state.set(next);
        }
    }
}
