//! The problems that are this server's own.

use std::time::Duration;

use axum::http::StatusCode;

pub(crate) use crate::common::problem::Problem;
use crate::order::{OrderId, Sku};
use crate::stock::StockError;
use crate::user::UserFrom;

impl Problem {
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

    pub(crate) fn already_ordered(order_id: &OrderId) -> Self {
        let title = "The user has an order for this SKU already";
        Self::new(StatusCode::CONFLICT, "/problems/already-ordered", title)
            .member("order_id", order_id.to_string())
    }

    pub(crate) fn sold_out(sku: &Sku) -> Self {
        Self::new(StatusCode::GONE, "/problems/sold-out", "Sold out")
            .detail(format!("Every {sku} has been sold."))
    }
}

impl From<StockError> for Problem {
    fn from(error: StockError) -> Self {
        tracing::warn!("{error}");
        Self::reduced_capacity(Duration::from_secs(1))
    }
}
