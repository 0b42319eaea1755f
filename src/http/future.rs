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
use super::charge::Admission;
use super::config::Config;
use super::headers;
use super::passed::Passed;
use super::rejection::Rejection;
use super::undecided::{Next, Undecided};
use crate::window::{Check, Usage};

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
        Deciding { admission: Option<Admission>, undecided: Option<Undecided<S, ReqBody>> },
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
        let undecided = Some(Undecided::new(check, inner, head, body, config));
        Self { state: State::Deciding { admission: None, undecided } }
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
                StateProj::Deciding { admission, undecided } => {
                    let waiting = undecided.as_mut().expect("polled after completion");
                    // Sent when polled: a response that is never polled for is not counted.
                    let sent = admission.get_or_insert_with(|| waiting.send());
                    let (outcome, charge) = ready!(sent.poll(cx));
                    *admission = None;
                    match waiting.decide(outcome, charge) {
                        Next::Again => continue,
                        Next::Pass { usage, charge } => {
                            let undecided = undecided.take().expect("polled after completion");
                            let (response, passed) = undecided.call(usage, charge);
                            State::Calling { response, passed }
                        }
                        Next::Reject(rejection) => {
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
                    // A client that comes again at once finds the place free.
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
