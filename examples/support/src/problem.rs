//! [`Problem`]: every error of a server as `application/problem+json` (RFC 9457), in the same form
//! as the responses of the layer.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use serde::de::{DeserializeOwned, Error};
use serde_json::{Map, Value};
use tokio::time::timeout;
use tower_sliding_window::StoreError;

use crate::logs::Throttle;
use crate::server::IO_TIMEOUT;

/// A response that says what went wrong.
#[derive(Debug)]
pub struct Problem {
    status: StatusCode,
    members: Map<String, Value>,
    retry_after: Option<Duration>,
}

impl Problem {
    /// Creates a problem of the type `/problems/KIND`, which `title` describes.
    pub fn new(status: StatusCode, kind: &str, title: &str) -> Self {
        Self::of_type(status, format!("/problems/{kind}"), title)
    }

    /// Creates a problem that its status describes.
    pub fn plain(status: StatusCode) -> Self {
        Self::of_type(status, "about:blank", status.canonical_reason().unwrap_or("Refused"))
    }

    fn of_type(status: StatusCode, kind: impl Into<Value>, title: &str) -> Self {
        let problem = Self { status, members: Map::new(), retry_after: None };
        problem.member("type", kind).member("title", title).member("status", status.as_u16())
    }

    /// Returns the status of the response.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Says what is wrong with this very request.
    pub fn detail(self, detail: impl Into<String>) -> Self {
        self.member("detail", detail.into())
    }

    /// Adds a member that only this type of problem has.
    pub fn member(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.members.insert(name.to_owned(), value.into());
        self
    }

    /// Says when to try again.
    pub fn retry_after(self, wait: Duration) -> Self {
        Self { retry_after: Some(wait), ..self }
    }

    /// Creates the 503 for an operator's change that Redis did not confirm.
    pub fn of_unconfirmed_change(error: StoreError) -> Self {
        Self::from(error).detail(
            "Redis did not confirm the change, and may have made it. Repeat it when Redis answers again.",
        )
    }

    /// Creates the 503 that the layer responds with when the store does not answer.
    pub fn reduced_capacity(wait: Duration) -> Self {
        Self::of_type(
            StatusCode::SERVICE_UNAVAILABLE,
            "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
            "Request cannot be satisfied due to temporary server capacity constraints",
        )
        .retry_after(wait)
    }
}

/// Responses with a problem to every path and method that the routes do not have.
pub fn with_fallbacks<S: Clone + Send + Sync + 'static>(routes: Router<S>) -> Router<S> {
    routes
        .fallback(|| async { Problem::plain(StatusCode::NOT_FOUND) })
        .method_not_allowed_fallback(|| async { Problem::plain(StatusCode::METHOD_NOT_ALLOWED) })
}

/// Keeps a response out of the caches in front of a server, for `map_response`. They know nothing of `x-user-id`, and may keep
/// a 200 and a 404 that say nothing (RFC 9111, section 4.2.2).
pub async fn no_store(mut response: Response) -> Response {
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Returns whether Redis may have made a change, or a part of it: a script may fail in its middle.
pub fn may_stand(error: &StoreError) -> bool {
    let code = if let StoreError::Refused { code, .. } = error { code } else { "" };
    error.may_have_counted() || matches!(code, "ERR" | "WRONGTYPE" | "NOPERM")
}

/// For the routes that ask the store themselves. The layer has its own response.
impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        static UNAVAILABLE: Throttle = Throttle::new();
        if let StoreError::Unsupported { .. } = error {
            return Self::plain(StatusCode::NOT_IMPLEMENTED).detail(error.to_string());
        }
        let wait = error.retry_after().unwrap_or(Duration::from_secs(1));
        let refuses = matches!(error, StoreError::Refused { .. });
        let what = if refuses { "the store refuses" } else { "the store does not answer" };
        UNAVAILABLE.log(move |times| tracing::warn!(%error, times, "{what}"));
        Self::reduced_capacity(wait)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.members)).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(wait) = self.retry_after {
            insert_retry_after(headers, wait);
        }
        response
    }
}

/// Sets `Retry-After`, in whole seconds: rounded up, so that a client that waits as long is not too
/// early.
pub fn insert_retry_after(headers: &mut HeaderMap, wait: Duration) {
    headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(wait).max(1)));
}

/// Returns a span of time in seconds, rounded up.
pub fn whole_seconds(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}

/// The body of a request, read whole within ten seconds: else a 408. The length is bounded by axum's
/// `DefaultBodyLimit`.
pub struct WholeBody(pub Bytes);

impl WholeBody {
    /// Reads it as a JSON object. A list would be read too, as the members in their order.
    pub fn object<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        match self.0.trim_ascii_start().first() {
            Some(b'[') => Err(Error::custom("a list, expected an object")),
            _ => serde_json::from_slice(&self.0),
        }
    }
}

impl<S: Send + Sync> FromRequest<S> for WholeBody {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        match timeout(IO_TIMEOUT, Bytes::from_request(request, state)).await {
            Ok(Ok(body)) => Ok(Self(body)),
            Ok(Err(error)) => Err(Problem::plain(error.status()).detail(error.body_text())),
            Err(_) => Err(Problem::plain(StatusCode::REQUEST_TIMEOUT)),
        }
    }
}
