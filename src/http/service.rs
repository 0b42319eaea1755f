use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::body::ResponseBody;
use super::config::Config;
use super::future::ResponseFuture;

/// A service with a rate limit in front of it, made by
/// [`SlidingWindowLayer`](super::SlidingWindowLayer).
///
/// A store in process decides in `call`, and so does a [`RedisStore`](crate::RedisStore) that remembers a denial. Any
/// other check is sent when the response future is first polled, and with
/// [`max_wait`](super::SlidingWindowLayer::max_wait) each of them. If the future is dropped before that, the request
/// does not count. A [distinct](crate::Policy::distinct) value stays seen.
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
    ResBody: Body,
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

        ResponseFuture::new(inner, request, self.config.clone())
    }
}
