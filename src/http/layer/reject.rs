//! The setting for the response to a rejected request.

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;

use super::SlidingWindowLayer;
use crate::http::body::RejectionBody;
use crate::http::rejection::Rejection;

impl SlidingWindowLayer {
    /// Adds a random time of up to `longest` to the wait that a denied client is told, so that those of a sale do not
    /// all come back in the same second. Defaults to zero.
    ///
    /// It is the same in `Retry-After`, `RateLimit` and the gRPC details, and the wait is never too short. Decisions in
    /// [`on_decision`](Self::on_decision) have the exact wait. The
    /// [draft](https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-ratelimit-headers-11#section-8.5) advises it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{MemoryStore, Quota, SlidingWindowLayer, key};
    ///
    /// SlidingWindowLayer::new(Quota::per_minute(5), key::header("x-user-id"), MemoryStore::new())
    ///     .retry_jitter(Duration::from_secs(10));
    /// ```
    #[must_use]
    pub fn retry_jitter(self, longest: Duration) -> Self {
        self.with(|config| config.jitter = longest)
    }

    /// Sets the response to a rejected request.
    ///
    /// Defaults to [`Rejection::to_response`], and to [`Rejection::to_grpc_response`] for a gRPC
    /// request. The closure gets the head of the request. It returns any `IntoResponse` with the
    /// feature `axum`, otherwise an [`http::Response`] with any body whose data is
    /// [`Bytes`](bytes::Bytes), such as a `String`. If the body fails, it ends there. If the compiler
    /// expects a `Response` and finds the `IntoResponse` of a closure (E0308), enable the feature `axum`.
    ///
    /// The layer adds `Retry-After` and the fields of [`headers`](Self::headers) unless the response
    /// has them. To a gRPC request it sends the response of the closure only if the content type of
    /// that begins with `application/grpc`, because a gRPC client can read no other. Otherwise it
    /// sends the default one.
    ///
    /// ```
    /// use http::Response;
    /// use tower_sliding_window::{MemoryStore, Quota, SlidingWindowLayer, key};
    ///
    /// SlidingWindowLayer::new(Quota::per_minute(5), key::header("x-user-id"), MemoryStore::new())
    ///     .on_rejection(|head, rejection| {
    ///         let wait = rejection.retry_after().unwrap_or_default();
    ///         let mut response = Response::new(format!("{} is full for {wait:?}", head.uri.path()));
    ///         *response.status_mut() = rejection.status();
    ///         response
    ///     });
    /// ```
    #[cfg(feature = "axum")]
    #[must_use]
    pub fn on_rejection<R: axum::response::IntoResponse>(
        self,
        respond: impl Fn(&Parts, &Rejection) -> R + Send + Sync + 'static,
    ) -> Self {
        let respond = move |head: &Parts, rejection: &Rejection| {
            respond(head, rejection).into_response().map(RejectionBody::other)
        };
        self.with(|config| config.on_rejection = Some(Arc::new(respond)))
    }

    /// Sets the response to a rejected request. With the feature `axum` the closure may return any
    /// `IntoResponse`, of which these responses are some, so that the feature breaks no caller.
    ///
    /// Without it the compiler reports any other `IntoResponse`, such as a tuple, as E0308.
    ///
    /// The rest is as with that feature: it defaults to [`Rejection::to_response`], and to
    /// [`Rejection::to_grpc_response`] for a gRPC request.
    #[cfg(not(feature = "axum"))]
    #[must_use]
    pub fn on_rejection<B>(
        self,
        respond: impl Fn(&Parts, &Rejection) -> http::Response<B> + Send + Sync + 'static,
    ) -> Self
    where
        B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let respond = move |head: &Parts, rejection: &Rejection| {
            respond(head, rejection).map(RejectionBody::other)
        };
        self.with(|config| config.on_rejection = Some(Arc::new(respond)))
    }
}
