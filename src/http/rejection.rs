mod grpc;
mod problem;

use std::borrow::Cow;
use std::time::Duration;

use http::header::CACHE_CONTROL;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use smallvec::SmallVec;

use super::body::{RejectionBody, ResponseBody};
use super::headers::{self, RateLimitHeaders};
use crate::error::StoreError;
use crate::quota::Quota;
use crate::window::Denied;

pub(super) type OnRejection = dyn Fn(&Parts, &Rejection) -> Response<RejectionBody> + Send + Sync;

/// Why the layer responds to a request itself.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Rejection {
    /// A log has no room: 429.
    Denied(Denied),
    /// The key is banned: 403 by default, see [`on_ban`](super::SlidingWindowLayer::on_ban).
    Banned {
        /// The denial, with the time that the ban still lasts.
        denied: Denied,
        /// The status of the response.
        status: StatusCode,
    },
    /// The request has no key for a rule: 401 by default, see
    /// [`on_missing_key`](super::SlidingWindowLayer::on_missing_key).
    MissingKey {
        /// The status of the response.
        status: StatusCode,
    },
    /// The request's key is ambiguous or malformed: 400.
    InvalidKey,
    /// The server did not provide the source of a rule's key: 500. This is a mistake in the server's
    /// setup, see [`KeyError::NotProvided`](crate::KeyError::NotProvided).
    KeyNotProvided {
        /// What has to be changed in the server. It is the `detail` of the problem document.
        fix: &'static str,
    },
    /// The check failed.
    ///
    /// A 503 if the store could not decide, a 429 if the request costs more than a limit, and a 500 for the mistakes
    /// [`StoreError::NoValue`], [`StoreError::NoBudget`] and [`StoreError::Unsupported`].
    StoreFailed(StoreError),
}

impl Rejection {
    /// Returns the status of the response. That of a gRPC request is always 200, see
    /// [`to_grpc_response`](Self::to_grpc_response).
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Denied(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::StoreFailed(StoreError::CostAboveLimit { .. }) => StatusCode::TOO_MANY_REQUESTS,
            Self::StoreFailed(
                StoreError::NoValue { .. }
                | StoreError::NoBudget { .. }
                | StoreError::Unsupported { .. },
            ) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::MissingKey { status } | Self::Banned { status, .. } => *status,
            Self::InvalidKey => StatusCode::BAD_REQUEST,
            Self::KeyNotProvided { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            Self::StoreFailed(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns how long the client should wait, or `None` if no wait helps or its length is not known.
    ///
    /// It is the wait of a denial, the rest of a ban, or a second after a failure of the store. It is
    /// `None` for a request without a valid key, for one that costs more than a limit, and if a policy denies
    /// that counts requests in flight, see [`Denied::has_known_wait`].
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Denied(denied) | Self::Banned { denied, .. } => denied.known_wait(),
            Self::StoreFailed(error) => error.retry_after(),
            Self::MissingKey { .. } | Self::InvalidKey | Self::KeyNotProvided { .. } => None,
        }
    }

    /// Returns the default response to a request other than gRPC: a problem document
    /// ([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)) of the types that the draft on the
    /// RateLimit fields registers, with `Retry-After` if a wait of a known length helps, and `Cache-Control: no-store`: a cache
    /// must not keep a 429 ([RFC 6585, section 4](https://www.rfc-editor.org/rfc/rfc6585#section-4)), and some keep other errors.
    ///
    /// The layer adds the fields of [`headers`](super::SlidingWindowLayer::headers). A handler that has
    /// a [`Denied`] of its own responds with [`Denied::to_response`].
    pub fn to_response(&self) -> Response<String> {
        let mut response = problem::response(self);
        self.insert_fields(response.headers_mut());
        response
    }

    /// Returns the default response to a gRPC request: a status without a message, with all fields in
    /// the headers.
    ///
    /// A gRPC request is a `POST` whose content type begins with `application/grpc`. The layer sends
    /// this response with HTTP status 200, as the
    /// [gRPC protocol](https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md#responses)
    /// requires of a response without a message ("Trailers-Only"). A
    /// [gRPC-Web](https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-WEB.md) request gets the same
    /// fields, also in the headers, and its own content type.
    ///
    /// | field | value |
    /// |---|---|
    /// | `grpc-status` | see below |
    /// | `grpc-message` | the reason, with the names of the policies that deny the request |
    /// | `grpc-status-details-bin` | a `google.rpc.Status` with `google.rpc.RetryInfo`, if a wait helps |
    /// | `grpc-retry-pushback-ms` | the wait, rounded up to milliseconds; -1, so that the client does not retry, if no wait helps or it is longer than 24 days; no field, so that the client pauses as it is configured, if the wait [is not known](Denied::has_known_wait) ([gRFC A6](https://github.com/grpc/proposal/blob/master/A6-client-retries.md#pushback)) |
    ///
    /// The layer adds the RateLimit fields, but no `Retry-After`. The status is the one that
    /// [`google.rpc.Code`](https://github.com/googleapis/googleapis/blob/master/google/rpc/code.proto)
    /// has for the HTTP status of the rejection:
    ///
    /// | rejection | HTTP | `grpc-status` |
    /// |---|---|---|
    /// | `Denied` | 429 | 8, `RESOURCE_EXHAUSTED` |
    /// | `Banned` | 403 | 7, `PERMISSION_DENIED`: the key has no right to call, whatever room there is |
    /// | `MissingKey` | 401 | 16, `UNAUTHENTICATED` |
    /// | `InvalidKey` | 400 | 3, `INVALID_ARGUMENT` |
    /// | `KeyNotProvided` | 500 | 13, `INTERNAL` |
    /// | `StoreFailed`: the store could not decide | 503 | 14, `UNAVAILABLE` |
    /// | `StoreFailed`: a request without the value or the budget for its policies, or a policy that the store does not support | 500 | 13, `INTERNAL` |
    /// | `StoreFailed`: a cost that no store admits | 429 | 8, `RESOURCE_EXHAUSTED`, with -1 as the pushback |
    ///
    /// A status that was set with [`on_ban`](super::SlidingWindowLayer::on_ban) or
    /// [`on_missing_key`](super::SlidingWindowLayer::on_missing_key) is translated in the same way. If
    /// `google.rpc.Code` does not have it, `grpc-status` is 2, `UNKNOWN`.
    pub fn to_grpc_response(&self) -> Response<String> {
        grpc::response(self)
    }

    /// Makes the response to a request, by `on_rejection` if there is one, and adds `Retry-After` and
    /// the RateLimit fields.
    pub(super) fn respond<B>(
        &self,
        head: &Parts,
        on_rejection: Option<&OnRejection>,
        shown: RateLimitHeaders,
    ) -> Response<ResponseBody<B>> {
        let grpc = grpc::content_type(head);
        let own = on_rejection.map(|respond| respond(head, self));
        // No gRPC client can read another content type.
        let own = own.filter(|own| grpc.is_none() || grpc::is_response(own));
        let response = own.unwrap_or_else(|| match grpc {
            Some(_) => grpc::response(self).map(RejectionBody::Left),
            None => problem::response(self).map(RejectionBody::Left),
        });
        let mut response = response.map(ResponseBody::rejection);
        if response.status().is_redirection() {
            // There `Retry-After` says when to follow it (RFC 9110, section 10.2.3).
            return response;
        }
        if grpc.is_some() {
            response.extensions_mut().insert(InHttp(self.status()));
        }
        let headers = response.headers_mut();
        match grpc {
            Some(content_type) => grpc::set_content_type(headers, content_type),
            None => self.insert_fields(headers),
        }
        // A ban does not depend on the quotas, whose state would mislead the client.
        if let Self::Denied(denied) = self {
            shown.insert(headers, denied.usage());
        }
        response
    }

    /// Inserts `Cache-Control`, and `Retry-After` if a wait of a known length helps.
    fn insert_fields(&self, headers: &mut HeaderMap) {
        headers::insert(headers, CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(wait) = self.retry_after() {
            headers::insert_retry_after(headers, wait);
        }
    }

    /// Returns the names of the quotas and bans that deny the request, each once.
    fn violated(&self) -> SmallVec<[(&str, Option<Quota>); 2]> {
        let mut names = SmallVec::new();
        let (Self::Denied(denied) | Self::Banned { denied, .. }) = self else { return names };
        let mut add = |name| {
            if !names.contains(&name) {
                names.push(name);
            }
        };
        for (log, outcome) in denied.usage().logs().filter(|(_, outcome)| outcome.denies()) {
            let (name, quotas) = (log.policy.name(), log.policy.quotas());
            if quotas.len() == 1 || !outcome.is_full() {
                add((name, None));
                continue;
            }
            let full = quotas.iter().zip(outcome.quotas()).filter(|(_, state)| state.is_full());
            full.for_each(|(quota, _)| add((name, Some(*quota))));
        }
        names
    }
}

impl Denied {
    /// Returns the response that a layer makes of this denial by default, for a handler that checks a
    /// [`Limiter`](crate::Limiter) itself.
    ///
    /// It is a 429 with `Retry-After` if the wait [is known](Denied::has_known_wait), `RateLimit`,
    /// `RateLimit-Policy` and a problem document, or, if the key is banned, a 403 with a problem document and
    /// the same `Retry-After`. With axum, `into_response` of it is a response of axum.
    /// [`Rejection::to_grpc_response`] is the response to a gRPC request.
    ///
    /// ```
    /// use http::Response;
    /// use tower_sliding_window::{Decision, Limiter, MemoryStore, Quota, StoreError};
    ///
    /// async fn order(limiter: &Limiter, user: &str) -> Result<Response<String>, StoreError> {
    ///     Ok(match limiter.check(user).await? {
    ///         Decision::Admitted(_) => Response::new("ordered".to_owned()),
    ///         Decision::Denied(denied) => denied.to_response(),
    ///     })
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), StoreError> {
    /// let limiter = Limiter::new(Quota::per_minute(1), MemoryStore::new());
    /// assert_eq!(order(&limiter, "alice").await?.status(), 200);
    /// let response = order(&limiter, "alice").await?;
    /// assert_eq!(response.status(), 429);
    /// assert_eq!(response.headers()["retry-after"], "60");
    /// # Ok(())
    /// # }
    /// ```
    pub fn to_response(&self) -> Response<String> {
        let denied = self.clone();
        if self.usage().banned_for().is_some() {
            let status = StatusCode::FORBIDDEN;
            return Rejection::Banned { denied, status }.to_response();
        }
        let mut response = Rejection::Denied(denied).to_response();
        RateLimitHeaders::default().insert(response.headers_mut(), self.usage());
        response
    }
}

/// The status that a rejection would have if its request was not one of gRPC, whose responses all have 200.
#[derive(Clone, Copy)]
struct InHttp(StatusCode);

/// Returns the head of a response as it is in HTTP. A client that says that it speaks gRPC must not look like one that
/// was served.
pub(super) fn in_http(head: &Response<()>) -> Cow<'_, Response<()>> {
    let Some(InHttp(status)) = head.extensions().get() else { return Cow::Borrowed(head) };
    let mut head = head.clone();
    *head.status_mut() = *status;
    Cow::Owned(head)
}
