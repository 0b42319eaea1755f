use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::request::Parts;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tokio::task::JoinHandle;
use tower_service::Service;

use super::body::ResponseBody;
use super::charge::Charge;
use super::config::{Config, Muted, OnBan};
use super::headers;
use super::rejection::Rejection;
use crate::decision::{Decision, Usage};
use crate::error::StoreError;
use crate::report;
use crate::store::{Check, DecidedBy, StoreFuture, Verdict};

pin_project! {
    /// The response of [`SlidingWindow`](super::SlidingWindow).
    pub struct ResponseFuture<S, ReqBody>
    where
        S: Service<Request<ReqBody>>,
    {
        #[pin]
        state: State<S, ReqBody, S::Future, Result<S::Response, S::Error>>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, ReqBody, F, R> {
        Deciding { answer: Option<StoreFuture<Verdict>>, undecided: Option<Undecided<S, ReqBody>> },
        Calling { #[pin] response: F, passed: Passed },
        Cancelling { cancelled: JoinHandle<()>, result: Option<R>, usage: Option<Usage> },
        Rejected { rejection: Rejection, config: Arc<Config> },
    }
}

impl<S, ReqBody> ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    pub(super) fn pass(mut inner: S, request: Request<ReqBody>) -> Self {
        let response = inner.call(request);
        Self { state: State::Calling { response, passed: Passed::default() } }
    }

    pub(super) fn reject(rejection: Rejection, config: Arc<Config>) -> Self {
        Self { state: State::Rejected { rejection, config } }
    }

    pub(super) fn decide(
        check: Arc<Check>,
        inner: S,
        head: Parts,
        body: ReqBody,
        config: Arc<Config>,
    ) -> Self {
        let undecided = Some(Undecided { check, inner, head, body, config, charge: None });
        Self { state: State::Deciding { answer: None, undecided } }
    }
}

impl<S, ReqBody, ResBody> Future for ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
{
    type Output = Result<Response<ResponseBody<ResBody>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProj::Deciding { answer, undecided } => {
                    let waiting = undecided.as_mut().expect("polled after completion");
                    // Asked when polled: a response nobody waits for is not counted.
                    if answer.is_none() && waiting.config.cancel_if.is_some() {
                        let (store, check) = (waiting.config.store.clone(), waiting.check.clone());
                        waiting.charge = Some(Charge::new(store, check));
                    }
                    let answer =
                        answer.get_or_insert_with(|| waiting.config.store.admit(&waiting.check));
                    let verdict = ready!(Pin::new(answer).poll(cx));
                    match waiting.conclude(verdict) {
                        Ok(usage) => undecided.take().expect("polled after completion").call(usage),
                        Err(rejection) => {
                            let config = waiting.config.clone();
                            // What the inner service holds is not held while the user's code responds.
                            *undecided = None;
                            return Poll::Ready(Ok(respond(&rejection, &config)));
                        }
                    }
                }
                StateProj::Calling { response, passed } => {
                    let result = ready!(response.poll(cx));
                    let (result, cancelled) = passed.settle(result);
                    let usage = passed.usage.take();
                    match cancelled {
                        Some(cancelled) => {
                            State::Cancelling { cancelled, result: Some(result), usage }
                        }
                        None => return Poll::Ready(finish(result, usage.as_ref())),
                    }
                }
                StateProj::Cancelling { cancelled, result, usage } => {
                    // Whoever comes again at once must find the place free.
                    let _ = ready!(Pin::new(cancelled).poll(cx));
                    let result = result.take().expect("polled after completion");
                    return Poll::Ready(finish(result, usage.as_ref()));
                }
                StateProj::Rejected { rejection, config } => {
                    return Poll::Ready(Ok(respond(rejection, config)));
                }
            };
            state.set(next);
        }
    }
}

fn respond<B>(rejection: &Rejection, config: &Config) -> Response<ResponseBody<B>> {
    rejection.respond(config.on_rejection.as_deref()).map(ResponseBody::rejection)
}

fn finish<B, E>(
    result: Result<Response<B>, E>,
    usage: Option<&Usage>,
) -> Result<Response<ResponseBody<B>>, E> {
    let mut response = result?.map(ResponseBody::inner);
    if let Some(usage) = usage {
        headers::insert_rate_limit(response.headers_mut(), usage);
    }
    Ok(response)
}

/// What waits for the verdict.
struct Undecided<S, ReqBody> {
    check: Arc<Check>,
    inner: S,
    head: Parts,
    body: ReqBody,
    config: Arc<Config>,
    /// Taken back if the client goes away before the verdict.
    charge: Option<Charge>,
}

impl<S, ReqBody> Undecided<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    /// Draws the conclusions from a verdict: the request passes, and this is to be shown in its
    /// response, or it is answered here.
    #[allow(clippy::result_large_err, reason = "a denial is as common as an admission")]
    fn conclude(
        &mut self,
        verdict: Result<Verdict, StoreError>,
    ) -> Result<Option<Usage>, Rejection> {
        let keeps_charge = match &verdict {
            Ok(verdict) => !verdict.admitted,
            Err(error) => !error.may_have_counted(),
        };
        if keeps_charge && let Some(charge) = self.charge.take() {
            charge.keep();
        }
        let config = &self.config;
        let verdict = verdict.or_else(|error| {
            report::store_error(&error);
            self.check.open_or(error)
        });
        let decision = match verdict {
            Ok(verdict) => Decision::new(self.check.clone(), verdict),
            Err(_) if config.shadow => return Ok(None),
            Err(error) => return Err(Rejection::StoreFailed(error)),
        };
        report::decision(&decision, config.shadow);
        if let Some(observe) = &config.on_decision {
            observe(&decision);
        }
        let decision = match decision {
            Decision::Denied(denied) if !config.shadow => {
                match (denied.usage().banned_for(), config.on_ban) {
                    (None, _) => return Err(Rejection::Denied(denied)),
                    (Some(_), OnBan::Reject(status)) => {
                        return Err(Rejection::Banned { denied, status });
                    }
                    (Some(remaining), OnBan::Mute) => {
                        self.head.extensions.insert(Muted { remaining });
                        self.head.extensions.insert(Decision::Denied(denied));
                        return Ok(None);
                    }
                }
            }
            decision => decision,
        };
        // Where nothing was counted there is nothing to tell.
        let counted = decision.decided_by() != DecidedBy::FailurePolicy;
        let usage = (config.headers_on_success && counted).then(|| decision.usage().clone());
        self.head.extensions.insert(decision);
        Ok(usage)
    }

    /// Lets the request pass.
    fn call<R>(mut self, usage: Option<Usage>) -> State<S, ReqBody, S::Future, R> {
        let config = self.charge.is_some().then_some(self.config);
        let response = self.inner.call(Request::from_parts(self.head, self.body));
        State::Calling { response, passed: Passed { usage, charge: self.charge, config } }
    }
}

/// What remains to be done for a request that was let through.
#[derive(Default)]
struct Passed {
    /// To be shown in the response.
    usage: Option<Usage>,
    /// To be given back, depending on the response.
    charge: Option<Charge>,
    config: Option<Arc<Config>>,
}

impl Passed {
    /// Decides, now that the response is there, whether the request keeps its place.
    fn settle<B, E>(
        &mut self,
        result: Result<Response<B>, E>,
    ) -> (Result<Response<B>, E>, Option<JoinHandle<()>>) {
        let (Some(charge), Some(config)) = (self.charge.take(), self.config.take()) else {
            return (result, None);
        };
        let Some(cancel_if) = &config.cancel_if else { return (result, None) };
        let (result, cancels) = match result {
            Ok(response) => {
                let (parts, body) = response.into_parts();
                let head = Response::from_parts(parts, ());
                let cancels = cancel_if(&head);
                (Ok(head.map(|()| body)), cancels)
            }
            Err(error) => (Err(error), true),
        };
        if cancels {
            return (result, charge.cancel());
        }
        charge.keep();
        (result, None)
    }
}
