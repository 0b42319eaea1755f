//! [`Problem`]: every error of this server as `application/problem+json` (RFC 9457), in the same
//! form as the 429 of the layer.

use std::time::Duration;

use axum::Json;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::order::{OrderId, Sku};
use crate::stock::StockError;
use crate::user::UserFrom;

/// An answer that says what went wrong.
#[derive(Debug, Serialize)]
pub(crate) struct Problem {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    #[serde(serialize_with = "number")]
    status: StatusCode,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    order_id: Option<OrderId>,
    #[serde(skip)]
    retry_after: Option<Duration>,
}

impl Problem {
    fn new(status: StatusCode, kind: &'static str, title: &'static str) -> Self {
        Self { kind, title, status, detail: None, order_id: None, retry_after: None }
    }

    fn detail(self, detail: impl Into<String>) -> Self {
        Self { detail: Some(detail.into()), ..self }
    }

    fn retry_after(self, wait: Duration) -> Self {
        Self { retry_after: Some(wait), ..self }
    }

    pub(crate) fn no_user(from: &UserFrom) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "/problems/no-user", "The request names no user")
            .detail(format!("The {} {:?} is missing or empty.", from.place, from.name))
    }

    pub(crate) fn bad_user(from: &UserFrom) -> Self {
        let title = "The request does not name its user clearly";
        Self::new(StatusCode::BAD_REQUEST, "/problems/bad-user", title).detail(format!(
            "The {} {:?} must be there once, in UTF-8, and be at most 128 bytes long.",
            from.place, from.name
        ))
    }

    pub(crate) fn not_open(wait: Duration) -> Self {
        let title = "The sale is not open";
        Self::new(StatusCode::FORBIDDEN, "/problems/sale-not-open", title)
            .detail("Orders sent before the opening count in the window all the same.")
            .retry_after(wait)
    }

    pub(crate) fn unknown_sku() -> Self {
        Self::new(StatusCode::NOT_FOUND, "/problems/unknown-sku", "No such SKU is for sale")
    }

    pub(crate) fn unknown_order() -> Self {
        Self::new(StatusCode::NOT_FOUND, "/problems/unknown-order", "No such order")
    }

    pub(crate) fn already_ordered(order_id: OrderId) -> Self {
        let title = "The user has an order for this SKU already";
        let problem = Self::new(StatusCode::CONFLICT, "/problems/already-ordered", title);
        Self { order_id: Some(order_id), ..problem }
    }

    pub(crate) fn sold_out(sku: &Sku) -> Self {
        Self::new(StatusCode::GONE, "/problems/sold-out", "Sold out")
            .detail(format!("Every {sku} has been sold."))
    }

    pub(crate) fn no_such_page() -> Self {
        Self::new(StatusCode::NOT_FOUND, "about:blank", "Not Found")
    }

    pub(crate) fn wrong_method() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "about:blank", "Method Not Allowed")
    }
}

/// The same answer as the layer gives when the windows can't be asked.
impl From<StockError> for Problem {
    fn from(error: StockError) -> Self {
        tracing::warn!("{error}");
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
            "Request cannot be satisfied due to temporary server capacity constraints",
        )
        .retry_after(Duration::from_secs(1))
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(&self)).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(wait) = self.retry_after {
            // Rounded up: who comes back when told must not be too early.
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        response
    }
}

fn number<S: serde::Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}
