//! [`Problem`]: every error of this server as `application/problem+json` (RFC 9457).

use axum::Json;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tower_sliding_window::StoreError;

/// An answer that says what went wrong.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    kind: &'static str,
    title: &'static str,
    detail: Option<String>,
}

impl Problem {
    const fn new(status: StatusCode, kind: &'static str, title: &'static str) -> Self {
        Self { status, kind, title, detail: None }
    }

    fn detail(self, detail: impl Into<String>) -> Self {
        Self { detail: Some(detail.into()), ..self }
    }

    pub(crate) fn no_user() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "/problems/no-user", "The request names no user")
            .detail("The header x-user-id is missing or empty.")
    }

    pub(crate) fn bad_user() -> Self {
        let title = "The request does not name its user clearly";
        Self::new(StatusCode::BAD_REQUEST, "/problems/bad-user", title).detail(
            "The header x-user-id must be there once, in UTF-8, and be at most 128 bytes long.",
        )
    }

    pub(crate) fn bad_name() -> Self {
        Self::new(StatusCode::BAD_REQUEST, "/problems/bad-name", "The path has no proper name")
            .detail("The name of a room or a user is 1 to 128 bytes of UTF-8.")
    }

    pub(crate) fn bad_message(why: &serde_json::Error) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "/problems/bad-message", "The message is malformed")
            .detail(format!("The body must be {{\"text\": \"...\"}}, in UTF-8: {why}."))
    }

    pub(crate) fn too_long() -> Self {
        let title = "The message is too long";
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "/problems/message-too-long", title)
            .detail("The body may have 256 KiB.")
    }

    pub(crate) fn not_muted() -> Self {
        Self::new(StatusCode::NOT_FOUND, "/problems/not-muted", "The user is not muted")
    }

    pub(crate) fn no_such_page() -> Self {
        Self::new(StatusCode::NOT_FOUND, "about:blank", "Not Found")
    }

    pub(crate) fn wrong_method() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "about:blank", "Method Not Allowed")
    }
}

/// Only who asks about mutes hears of a store that fails.
impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        tracing::warn!(%error, "mutes can't be asked for");
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
            "Request cannot be satisfied due to temporary server capacity constraints",
        )
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Self { status, kind, title, detail } = self;
        let mut body = json!({ "type": kind, "title": title, "status": status.as_u16() });
        if let Some(detail) = detail {
            body["detail"] = detail.into();
        }
        let mut response = (status, Json(body)).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
