//! [`KnownDenial`]: a denial that the store knows when the layer is called.

use std::sync::Arc;

use http::Response;

use super::body::ResponseBody;
use super::headers::RateLimitHeaders;
use super::rejection::{self, Rejection};
use super::span;
use crate::policy::Policy;
use crate::store::report_denial;
use crate::window::{Denied, QuotaState};

/// A denial by the only quota of a request that the store knows when the layer is called.
///
/// It is small, because it is moved several times until the response is made, and to move what was just
/// written is slow. With a check and its outcome in its place, the layer took a fifth longer.
pub(super) struct KnownDenial {
    policy: Arc<Policy>,
    state: QuotaState,
    headers: RateLimitHeaders,
}

impl KnownDenial {
    pub(super) fn new(policy: Arc<Policy>, state: QuotaState, headers: RateLimitHeaders) -> Self {
        Self { policy, state, headers }
    }

    /// Reports the denial, and responds with it.
    pub(super) fn respond<B>(&self) -> Response<ResponseBody<B>> {
        let wait = self.state.wait();
        report_denial(&self.policy, wait);
        span::record_denial(|| self.denied());
        match rejection::kept_denial(&self.policy, wait, self.headers, || self.denied()) {
            Some(kept) => rejection::kept_response(kept),
            None => Rejection::Denied(self.denied()).default_response(self.headers),
        }
    }

    /// Returns the denial without its key, which neither a response nor a span shows.
    fn denied(&self) -> Denied {
        Denied::without_key(self.policy.clone(), self.state)
    }
}
