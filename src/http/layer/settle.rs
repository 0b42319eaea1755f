//! The settings that cancel or settle a request after it was counted.

use std::sync::Arc;

use http::Response;

use super::SlidingWindowLayer;
use crate::http::body::{BodyCost, ResponseEnd};

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

    /// Settles the [budgets](crate::Policy::budget) of a request at what the head of its response tells.
    ///
    /// The request reserves what [`cost`](Self::cost) says, and takes what the closure returns from then on, more or
    /// less, as [`Limiter::settle`](crate::Limiter::settle) describes. With `None` the reservation stays. Other rules
    /// count one request in any case. Defaults to no closure.
    ///
    /// The layer settles before it responds, and [`headers_on_success`](Self::headers_on_success) shows what is left
    /// afterwards. A request that is cancelled by [`cancel_if`](Self::cancel_if) is not settled. One without a response
    /// keeps its reservation.
    ///
    /// ```
    /// use tower_sliding_window::{MemoryStore, Policy, Quota, SlidingWindowLayer, key};
    ///
    /// // The model behind the service says in a header how many tokens the answer took.
    /// let tokens = Policy::new("tokens").quota(Quota::per_minute(50_000)).budget();
    /// SlidingWindowLayer::new(tokens, key::header("x-user-id"), MemoryStore::new())
    ///     .cost(|_| 8_000)
    ///     .settle_from_head(|response| response.headers().get("x-tokens")?.to_str().ok()?.parse().ok());
    /// ```
    #[must_use]
    pub fn settle_from_head(
        self,
        cost: impl Fn(&Response<()>) -> Option<u32> + Send + Sync + 'static,
    ) -> Self {
        self.with(|config| config.head_cost = Some(Arc::new(cost)))
    }

    /// Settles the [budgets](crate::Policy::budget) of a request at what the end of its response body tells.
    ///
    /// The closure is called once the body has ended, has failed, or was dropped because the client hung up, with the
    /// number of bytes that were sent until then and the last of them, at most `tail`. It returns what the request
    /// takes from then on, or `None` to leave it as it was. Defaults to no closure.
    ///
    /// The settlement continues in the background. The last frame of the body does not wait for it, so a client that
    /// asks at once may still find the reservation.
    ///
    /// - To count what was used when a client hangs up, the closure needs a cost for an incomplete body as well.
    ///   With `None` such a client pays the whole reservation.
    /// - The response to a `HEAD` request, and a body that nobody has asked for a frame, end after 0 bytes.
    /// - With [`settle_from_head`](Self::settle_from_head) too, the end of the body has the last word.
    /// - A layer outside of this one that changes the body, such as compression, changes the number of bytes that the
    ///   client gets.
    ///
    /// ```
    /// use tower_sliding_window::{MemoryStore, Policy, Quota, SlidingWindowLayer, key};
    ///
    /// // A gigabyte an hour. A download reserves ten megabytes and takes what was sent of it.
    /// let downloads = Policy::new("downloads").quota(Quota::per_hour(1_000_000_000)).byte_budget();
    /// SlidingWindowLayer::new(downloads, key::header("x-user-id"), MemoryStore::new())
    ///     .cost(|_| 10_000_000)
    ///     .settle_from_body(0, |end| Some(u32::try_from(end.bytes()).unwrap_or(u32::MAX)));
    /// ```
    ///
    /// The guide shows how to read the [tokens of a stream](crate::docs::token_budgets#the-layer-settles).
    #[must_use]
    pub fn settle_from_body(
        self,
        tail: usize,
        cost: impl Fn(ResponseEnd<'_>) -> Option<u32> + Send + Sync + 'static,
    ) -> Self {
        self.with(|config| {
            config.body_cost = Some(BodyCost { tail_length: tail, cost: Arc::new(cost) })
        })
    }
}
