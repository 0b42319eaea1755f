//! The settings that cancel a request after it was counted.

use std::sync::Arc;

use http::Response;

use super::SlidingWindowLayer;

impl SlidingWindowLayer {
    /// Sets the responses after which the request is cancelled, so that it does not count.
    ///
    /// For example, cancel on success to count only failures, or cancel on "sold out" to make such
    /// requests free. Defaults to no responses.
    ///
    /// The layer cancels before it responds, so a client that retries at once finds the place free.
    ///
    /// A request without a response still counts once the inner service was called: if the service
    /// fails, and if the client hangs up. Otherwise a client could run the handler any number of
    /// times by hanging up each time. See [`cancel_unanswered`](Self::cancel_unanswered).
    ///
    /// The layer sees the responses from inside of it. A timeout or a catcher of panics that lies outside
    /// makes its response without this layer, and such a request counts: put both inside.
    ///
    /// If the client hangs up before the decision, the inner service is not called and the request
    /// does not count: a background task waits for the decision and cancels it. Without `cancel_if`
    /// such a request may count.
    ///
    /// The closure sees the head of the response, before the body. The status of a gRPC call is in the
    /// head, as `grpc-status`, only if the response has no message ("Trailers-Only"), as that of a
    /// tonic handler that returns an error at once. A status in the trailers comes after the body and
    /// is not seen, so a response without `grpc-status` may still fail.
    ///
    /// ```
    /// use http::StatusCode;
    /// use tower_sliding_window::{MemoryStore, Quota, SlidingWindowLayer, key};
    ///
    /// // Five failed logins an hour; successful ones are free.
    /// SlidingWindowLayer::new(Quota::per_hour(5), key::header("x-user-id"), MemoryStore::new())
    ///     .cancel_if(|response| response.status() != StatusCode::UNAUTHORIZED);
    /// ```
    #[must_use]
    pub fn cancel_if(
        self,
        cancels: impl Fn(&Response<()>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.with(|config| config.cancel_if = Some(Arc::new(cancels)))
    }

    /// Sets whether a request is also cancelled if the inner service was called but gave no response:
    /// because it failed, or because the client hung up first.
    ///
    /// Defaults to `false`. With `true` a client can run the handler any number of times by hanging
    /// up each time, so use it only for trusted clients. If the client is gone, the cancellation
    /// continues in the background.
    ///
    /// ```
    /// use tower_sliding_window::{MemoryStore, Quota, SlidingWindowLayer, key};
    ///
    /// // Between our own services: a request without a response does not count.
    /// SlidingWindowLayer::new(Quota::per_hour(100), key::header("x-service"), MemoryStore::new())
    ///     .cancel_unanswered(true);
    /// ```
    #[must_use]
    pub fn cancel_unanswered(self, cancel_unanswered: bool) -> Self {
        self.with(|config| config.cancel_unanswered = cancel_unanswered)
    }
}
