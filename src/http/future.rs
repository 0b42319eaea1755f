use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::body::ResponseBody;
use super::headers;
use super::layer::Config;
use super::rejection::Rejection;
use crate::decision::{Decision, Usage};
use crate::store::{Check, StoreFuture, Verdict};

pin_project! {
    /// The response of [`SlidingWindow`](super::SlidingWindow).
    pub struct ResponseFuture<S, ReqBody>
    where
        S: Service<Request<ReqBody>>,
    {
        #[pin]
        state: State<S, S::Future, ReqBody>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, F, ReqBody> {
        Deciding { answer: StoreFuture<Verdict>, undecided: Option<Undecided<S, ReqBody>> },
        Calling { #[pin] response: F, usage: Option<Usage> },
        Rejected { rejection: Rejection, config: Arc<Config> },
    }
}

/// What waits for the verdict.
struct Undecided<S, ReqBody> {
    check: Check,
    inner: S,
    request: Request<ReqBody>,
    config: Arc<Config>,
}

impl<S, ReqBody> ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    pub(super) fn pass(mut inner: S, request: Request<ReqBody>) -> Self {
        Self { state: State::Calling { response: inner.call(request), usage: None } }
    }

    pub(super) fn reject(rejection: Rejection, config: Arc<Config>) -> Self {
        Self { state: State::Rejected { rejection, config } }
    }

    pub(super) fn decide(
        check: Check,
        inner: S,
        request: Request<ReqBody>,
        config: Arc<Config>,
    ) -> Self {
        let answer = config.store.admit(&check);
        let undecided = Some(Undecided { check, inner, request, config });
        Self { state: State::Deciding { answer, undecided } }
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
                    let verdict = ready!(Pin::new(answer).poll(cx));
                    undecided.take().expect("polled after completion").decided(verdict)
                }
                StateProj::Calling { response, usage } => {
                    let mut response = ready!(response.poll(cx))?.map(ResponseBody::inner);
                    if let Some(usage) = usage {
                        headers::insert_rate_limit(response.headers_mut(), usage);
                    }
                    return Poll::Ready(Ok(response));
                }
                StateProj::Rejected { rejection, config } => {
                    let response = rejection.respond(config.on_rejection.as_deref());
                    return Poll::Ready(Ok(response.map(ResponseBody::rejection)));
                }
            };
            state.set(next);
        }
    }
}

impl<S, ReqBody> Undecided<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    fn decided(
        mut self,
        verdict: Result<Verdict, crate::StoreError>,
    ) -> State<S, S::Future, ReqBody> {
        let decision = match verdict {
            Ok(verdict) => Decision::new(self.check, verdict),
            Err(error) => {
                let rejection = Rejection::StoreFailed(error);
                return State::Rejected { rejection, config: self.config };
            }
        };
        match decision {
            Decision::Denied(denied) => {
                State::Rejected { rejection: Rejection::Denied(denied), config: self.config }
            }
            Decision::Admitted(_) => {
                let usage = self.config.headers_on_success.then(|| decision.usage().clone());
                self.request.extensions_mut().insert(decision);
                State::Calling { response: self.inner.call(self.request), usage }
            }
        }
    }
}
