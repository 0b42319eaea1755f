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
use super::config::Config;
use super::forwarded_request::{ForwardedRequest, ShownUsage};
use super::headers::Fields;
use super::pending_request::{NextStep, PendingRequest};
use super::rejection::Rejection;
use super::waiting_request::{Wait, Waited, wait};
use crate::store::PendingCheck;
use crate::window::Undecided;

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
        Deciding { check: Option<PendingCheck>, request: Option<PendingRequest<S, ReqBody>> },
        Waiting { wait: Wait, rest: Option<(S, ReqBody, Arc<Config>)> },
        Calling { #[pin] response: F, request: ForwardedRequest },
        Cancelling { cancelled: JoinHandle<()>, result: Option<R>, shown: Option<Box<ShownUsage>> },
        // Boxed, because it is large and rare: most rejections are returned at once.
        Rejected { rejected: Box<Rejected> },
    }
}

type Rejected = (Rejection, Parts, Arc<Config>);

impl<S, ReqBody> ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    pub(super) fn pass(mut inner: S, request: Request<ReqBody>) -> Self {
        let response = inner.call(request);
        Self { state: State::Calling { response, request: ForwardedRequest::default() } }
    }

    pub(super) fn reject(rejection: Rejection, head: Parts, config: Arc<Config>) -> Self {
        Self { state: State::rejected(rejection, head, config) }
    }

    pub(super) fn decide(
        check: Undecided,
        inner: S,
        head: Parts,
        body: ReqBody,
        config: Arc<Config>,
    ) -> Self {
        if config.waits() {
            return Self { state: State::wait(check, inner, head, body, config) };
        }
        let request = Some(PendingRequest::new(Some(check), inner, head, body, config));
        Self { state: State::Deciding { check: None, request } }
    }
}

impl<S, ReqBody, R> State<S, ReqBody, S::Future, R>
where
    S: Service<Request<ReqBody>>,
{
    fn rejected(rejection: Rejection, head: Parts, config: Arc<Config>) -> Self {
        Self::Rejected { rejected: Box::new((rejection, head, config)) }
    }

    // Cold, so that it costs nothing where no request waits.
    #[cold]
    fn wait(check: Undecided, inner: S, head: Parts, body: ReqBody, config: Arc<Config>) -> Self {
        let wait = wait(check, head, config.clone());
        Self::Waiting { wait, rest: Some((inner, body, config)) }
    }

    #[cold]
    fn after_wait(
        waited: Waited,
        head: Parts,
        (mut inner, body, config): (S, ReqBody, Arc<Config>),
    ) -> Self {
        let decision = match waited {
            Waited::Decided(decision) => decision,
            Waited::Rejected(rejection) => return Self::rejected(rejection, head, config),
            Waited::NotLimited => {
                let response = inner.call(Request::from_parts(head, body));
                return Self::Calling { response, request: ForwardedRequest::default() };
            }
        };
        let mut pending = PendingRequest::new(None, inner, head, body, config);
        match pending.end_wait(decision) {
            NextStep::CheckAgain => Self::Deciding { check: None, request: Some(pending) },
            NextStep::Forward { usage, cancel } => {
                let (response, request) = pending.call(usage, cancel);
                Self::Calling { response, request }
            }
            NextStep::Reject(rejection) => {
                let (head, config) = pending.into_head();
                Self::rejected(rejection, head, config)
            }
        }
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
                StateProj::Deciding { check, request } => {
                    let pending = request.as_mut().expect("polled after completion");
                    let outcome = match check {
                        Some(sent) => ready!(sent.poll(cx)),
                        // Sent on the first poll: a future that is never polled counts nothing.
                        None => match pending.send() {
                            Ok(outcome) => outcome,
                            Err(sent) => {
                                *check = Some(sent);
                                continue;
                            }
                        },
                    };
                    *check = None;
                    match pending.decide(outcome) {
                        NextStep::CheckAgain => continue,
                        NextStep::Forward { usage, cancel } => {
                            let pending = request.take().expect("polled after completion");
                            let (response, request) = pending.call(usage, cancel);
                            State::Calling { response, request }
                        }
                        NextStep::Reject(rejection) => {
                            if pending.config.on_rejection.is_none() {
                                let response = respond(&rejection, &pending.head, &pending.config);
                                *request = None;
                                return Poll::Ready(Ok(response));
                            }
                            // Drops the inner service before `on_rejection` runs, which may be slow.
                            let pending = request.take().expect("polled after completion");
                            let (head, config) = pending.into_head();
                            return Poll::Ready(Ok(respond(&rejection, &head, &config)));
                        }
                    }
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
                StateProj::Rejected { rejected } => {
                    let (rejection, head, config) = &**rejected;
                    return Poll::Ready(Ok(respond(rejection, head, config)));
                }
            };
            state.set(next);
        }
    }
}

fn respond<B>(rejection: &Rejection, head: &Parts, config: &Config) -> Response<ResponseBody<B>> {
    rejection.respond(head, config.on_rejection.as_deref(), config.headers)
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
