use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_service::Service;

use super::body::ResponseBody;
use super::config::Config;
use super::forwarded_request::ForwardedRequest;
use super::future::{PendingRequest, ResponseFuture};
use super::next_step::NextStep;

/// A service with a rate limit in front of it, made by
/// [`SlidingWindowLayer`](super::SlidingWindowLayer).
///
/// ## When it decides
///
/// - A store may decide at once: a [`MemoryStore`](crate::MemoryStore) always does, and a
///   [`RedisStore`](crate::RedisStore) does for a denial that it repeats from memory. Then `call`
///   decides. It calls the inner service for an admitted request. A denied request leaves the inner
///   service ready for the next one, as in [`tower::filter`](https://docs.rs/tower/0.5/tower/filter/).
/// - Otherwise the response future sends the check when it is first polled. It takes the inner service
///   that was ready, and leaves a clone in its place.
#[derive(Clone, Debug)]
pub struct SlidingWindow<S> {
    inner: S,
    config: Arc<Config>,
}

impl<S> SlidingWindow<S> {
    pub(super) fn new(inner: S, config: Arc<Config>) -> Self {
        Self { inner, config }
    }
}

impl<S: Clone> SlidingWindow<S> {
    /// Takes the inner service for a request that waits, and leaves a clone for the next one.
    fn take_inner(&mut self) -> S {
        // Only the service that was polled is ready; its clone may not be.
        let clone = self.inner.clone();
        mem::replace(&mut self.inner, clone)
    }
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for SlidingWindow<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, ReqBody>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let (mut head, body) = request.into_parts();
        let check = match self.config.check(&head) {
            Ok(check) => check,
            Err(_) if self.config.shadow => None,
            Err(rejection) => {
                return ResponseFuture::respond(self.config.respond(&head, &rejection));
            }
        };
        let Some(check) = check else {
            let response = self.inner.call(Request::from_parts(head, body));
            return ResponseFuture::call(response, ForwardedRequest::default());
        };
        if self.config.waits() {
            let config = self.config.clone();
            return ResponseFuture::wait(check, self.take_inner(), head, body, config);
        }
        // Without a clone of the inner service, unless the store needs time.
        match self.config.send(&mut head, check) {
            NextStep::Wait(check, sent) => {
                let (inner, config) = (self.take_inner(), self.config.clone());
                let request = PendingRequest { check, inner, head, body, config };
                ResponseFuture::decide(sent, request)
            }
            NextStep::Forward { usage, cancel } => {
                let response = self.inner.call(Request::from_parts(head, body));
                ResponseFuture::call(response, ForwardedRequest::new(usage, cancel, &self.config))
            }
            NextStep::Reject(rejection) => {
                ResponseFuture::respond(self.config.respond(&head, &rejection))
            }
        }
    }
}
