use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::request::Parts;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tokio::task::JoinHandle;
use tower_service::Service;

use super::body::{RejectionBody, ResponseBody};
use super::config::Config;
use super::forwarded_request::{ForwardedRequest, ShownUsage};
use super::headers::Fields;
use super::next_step::NextStep;
use super::waiting_request::{Wait, Waited, wait};
use crate::store::PendingCheck;
use crate::window::Check;

pin_project! {
    /// The response future of [`SlidingWindow`](super::SlidingWindow).
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
        // Boxed, because it is large, and would make the future of every request as large.
        Deciding { sent: PendingCheck, request: Option<Box<PendingRequest<S, ReqBody>>> },
        Waiting { wait: Wait, rest: Option<(S, ReqBody, Arc<Config>)> },
        Calling { #[pin] response: F, request: ForwardedRequest },
        Cancelling { cancelled: JoinHandle<()>, result: Option<R>, shown: Option<Box<ShownUsage>> },
        Responding { response: Option<Response<RejectionBody>> },
    }
}

/// A request that waits for the outcome of its check.
pub(super) struct PendingRequest<S, ReqBody> {
    pub(super) check: Arc<Check>,
    pub(super) inner: S,
    pub(super) head: Parts,
    pub(super) body: ReqBody,
    pub(super) config: Arc<Config>,
}

impl<S, ReqBody> ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    pub(super) fn respond(response: Response<RejectionBody>) -> Self {
        Self { state: State::Responding { response: Some(response) } }
    }

    pub(super) fn call(response: S::Future, request: ForwardedRequest) -> Self {
        Self { state: State::Calling { response, request } }
    }

    pub(super) fn decide(sent: PendingCheck, request: PendingRequest<S, ReqBody>) -> Self {
        Self { state: State::Deciding { sent, request: Some(Box::new(request)) } }
    }

    // Cold, so that it costs nothing where no request waits.
    #[cold]
    pub(super) fn wait(
        check: Arc<Check>,
        inner: S,
        head: Parts,
        body: ReqBody,
        config: Arc<Config>,
    ) -> Self {
        let wait = wait(check, head, config.clone());
        Self { state: State::Waiting { wait, rest: Some((inner, body, config)) } }
    }
}

impl<S, ReqBody, R> State<S, ReqBody, S::Future, R>
where
    S: Service<Request<ReqBody>>,
{
    /// Returns what a request is in after its next step.
    fn after(
        step: NextStep,
        mut inner: S,
        head: Parts,
        body: ReqBody,
        config: Arc<Config>,
    ) -> Self {
        match step {
            NextStep::Wait(check, sent) => {
                let request = PendingRequest { check, inner, head, body, config };
                Self::Deciding { sent, request: Some(Box::new(request)) }
            }
            NextStep::Forward { usage, cancel } => {
                let response = inner.call(Request::from_parts(head, body));
                let request = ForwardedRequest::new(usage, cancel, &config);
                Self::Calling { response, request }
            }
            NextStep::Reject(rejection) => {
                // First, because `on_rejection` may be slow.
                drop((inner, body));
                Self::Responding { response: Some(config.respond(&head, &rejection)) }
            }
        }
    }

    #[cold]
    fn after_wait(
        waited: Waited,
        mut head: Parts,
        (inner, body, config): (S, ReqBody, Arc<Config>),
    ) -> Self {
        let step = match waited {
            Waited::Decided(decision) => config.end_wait(&mut head, decision),
            Waited::Rejected(rejection) => NextStep::Reject(rejection),
            Waited::NotLimited => NextStep::Forward { usage: None, cancel: None },
        };
        Self::after(step, inner, head, body, config)
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
                StateProj::Deciding { sent, request } => {
                    let (outcome, cancel) = ready!(sent.poll(cx));
                    let PendingRequest { check, inner, mut head, body, config } =
                        *request.take().expect("polled after completion");
                    let step = config.decide(&mut head, check, outcome, cancel);
                    State::after(step, inner, head, body, config)
                }
                StateProj::Waiting { wait, rest } => {
                    let (head, waited) = ready!(wait.as_mut().poll(cx));
                    State::after_wait(waited, head, rest.take().expect("polled after completion"))
                }
                StateProj::Calling { response, request } => {
                    let result = ready!(response.poll(cx));
                    let (result, cancelled) = request.settle(result);
                    let shown = request.shown.take();
                    match cancelled {
                        Some(cancelled) => {
                            State::Cancelling { cancelled, result: Some(result), shown }
                        }
                        None => return Poll::Ready(finish(result, shown.as_deref())),
                    }
                }
                StateProj::Cancelling { cancelled, result, shown } => {
                    // A client that retries at once then finds the place free.
                    let _ = ready!(Pin::new(cancelled).poll(cx));
                    let result = result.take().expect("polled after completion");
                    return Poll::Ready(finish(result, shown.as_deref()));
                }
                StateProj::Responding { response } => {
                    let response = response.take().expect("polled after completion");
                    return Poll::Ready(Ok(response.map(ResponseBody::rejection)));
                }
            };
            state.set(next);
        }
    }
}

fn finish<B, E>(
    result: Result<Response<B>, E>,
    shown: Option<&ShownUsage>,
) -> Result<Response<ResponseBody<B>>, E> {
    let mut response = result?.map(ResponseBody::inner);
    if let Some(shown) = shown {
        let mut fields = Fields::of_application(response.headers_mut());
        shown.fields.insert(&mut fields, &shown.usage);
    }
    Ok(response)
}
