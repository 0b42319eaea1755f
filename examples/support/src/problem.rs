//! [`Problem`]: every error of a server as `application/problem+json` (RFC 9457), in the same form
//! as the responses of the layer.

use std::borrow::Cow;
use std::fmt::Display;
use std::time::Duration;

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use serde::Serialize;
use serde_json::{Map, Value};
use tower_sliding_window::StoreError;

use crate::logs::Throttle;

/// A response that says what went wrong.
#[derive(Debug, Serialize)]
pub struct Problem {
    #[serde(rename = "type")]
    kind: Cow<'static, str>,
    title: &'static str,
    #[serde(serialize_with = "number")]
    status: StatusCode,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    #[serde(flatten)]
    members: Map<String, Value>,
    #[serde(skip)]
    retry_after: Option<Duration>,
}

impl Problem {
    /// Creates a problem of the type `/problems/KIND`, which `title` describes.
    pub fn new(status: StatusCode, kind: &str, title: &'static str) -> Self {
        Self::of_type(status, format!("/problems/{kind}"), title)
    }

    /// Creates a problem that its status describes.
    pub fn plain(status: StatusCode) -> Self {
        Self::of_type(status, "about:blank", status.canonical_reason().unwrap_or("Refused"))
    }

    fn of_type(
        status: StatusCode,
        kind: impl Into<Cow<'static, str>>,
        title: &'static str,
    ) -> Self {
        let kind = kind.into();
        Self { kind, title, status, detail: None, members: Map::new(), retry_after: None }
    }

    /// Says what is wrong with this very request.
    #[must_use]
    pub fn detail(self, detail: impl Into<String>) -> Self {
        Self { detail: Some(detail.into()), ..self }
    }

    /// Adds a member that only this type of problem has.
    #[must_use]
    pub fn member(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.members.insert(name.to_owned(), value.into());
        self
    }

    /// Says when to try again.
    #[must_use]
    pub fn retry_after(self, wait: Duration) -> Self {
        Self { retry_after: Some(wait), ..self }
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

    /// Creates the 401 for a request without a user in this place, such as `header x-user-id`.
    pub fn no_user(place: impl Display) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "no-user", "The request names no user")
            .detail(format!("The {place} is missing or empty."))
    }

    /// Creates the 400 for a user in this place that can't be read.
    pub fn bad_user(place: impl Display) -> Self {
        let title = "The request does not name its user clearly";
        Self::new(StatusCode::BAD_REQUEST, "bad-user", title).detail(format!(
            "The {place} must be there once, in UTF-8, and be at most 128 bytes long."
        ))
    }
}

/// Responses with a problem to every path and method that the routes do not have.
pub fn with_fallbacks<S: Clone + Send + Sync + 'static>(routes: Router<S>) -> Router<S> {
    routes
        .fallback(|| async { Problem::plain(StatusCode::NOT_FOUND) })
        .method_not_allowed_fallback(|| async { Problem::plain(StatusCode::METHOD_NOT_ALLOWED) })
}

/// For the routes that ask the store themselves. The layer has its own response.
impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        static UNAVAILABLE: Throttle = Throttle::new();
        let wait = error.retry_after().unwrap_or(Duration::from_secs(1));
        UNAVAILABLE.log(move |times| tracing::warn!(%error, times, "the store does not answer"));
        Self::reduced_capacity(wait)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(&self)).into_response();
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

fn number<S: serde::Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}
