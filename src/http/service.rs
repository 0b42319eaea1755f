use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_service::Service;

use super::body::ResponseBody;
use super::config::Config;
use super::future::ResponseFuture;

/// A service with a rate limit in front of it, made by
/// [`SlidingWindowLayer`](super::SlidingWindowLayer).
///
/// A request counts when its response future is first polled.
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
        // Only the service that was polled is ready; its clone may not be.
        let clone = self.inner.clone();
        let inner = mem::replace(&mut self.inner, clone);

        let (head, body) = request.into_parts();
        match self.config.check(&head) {
            Ok(Some(check)) => {
                ResponseFuture::decide(check, inner, head, body, self.config.clone())
            }
            Ok(None) => ResponseFuture::pass(inner, Request::from_parts(head, body)),
            Err(_) if self.config.shadow => {
                ResponseFuture::pass(inner, Request::from_parts(head, body))
            }
            Err(rejection) => ResponseFuture::reject(rejection, head, self.config.clone()),
        }
    }
}
