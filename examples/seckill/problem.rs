//! The problems that are this server's own.

use std::fmt::Display;
use std::time::Duration;

use axum::http::StatusCode;
use tower_sliding_window::StoreError;

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

    pub(crate) fn no_token() -> Self {
        let title = "The request does not carry the admin token";
        Self::new(StatusCode::UNAUTHORIZED, "/problems/no-token", title).detail(
            "Send `Authorization: Bearer TOKEN`, with the token the server was started with.",
        )
    }

    pub(crate) fn no_such_user() -> Self {
        let title = "The path names no user";
        Self::new(StatusCode::BAD_REQUEST, "/problems/bad-user", title)
            .detail("A user id is 1 to 128 bytes of UTF-8, percent-encoded in the path.")
    }

    pub(crate) fn not_banned() -> Self {
        Self::new(StatusCode::NOT_FOUND, "/problems/not-banned", "The user is not banned")
    }

    pub(crate) fn bad_ban(why: impl Display) -> Self {
        let title = "The ban is malformed";
        Self::new(StatusCode::BAD_REQUEST, "/problems/bad-ban", title).detail(format!(
            "The body must be {{\"for\": \"1h\", \"reason\": \"...\"}}, in UTF-8: {why}."
        ))
    }

    pub(crate) fn ban_too_large(most: usize) -> Self {
        let title = "The body is too large for a ban";
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "/problems/ban-too-large", title)
            .detail(format!("The body may have {most} bytes."))
    }

    pub(crate) fn bad_page(why: impl Display) -> Self {
        let title = "The query names no page of bans";
        Self::new(StatusCode::BAD_REQUEST, "/problems/bad-page", title).detail(format!(
            "It may be `limit`, from 1 to 10000, and `cursor`, the `next` of the page before: {why}."
        ))
    }

    fn no_list() -> Self {
        let title = "The bans of a Redis Cluster can't be listed";
        Self::new(StatusCode::NOT_IMPLEMENTED, "/problems/no-list", title)
            .detail("Ask for one user: GET /admin/bans/{user}.")
    }
}

/// Only who asks about bans hears of it: the layer has its own answer.
impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        if let StoreError::Unsupported { .. } = error {
            return Self::no_list();
        }
        tracing::warn!(%error, "bans can't be asked for");
        Self::reduced_capacity(error.retry_after().unwrap_or(Duration::from_secs(1)))
    }
}

impl From<StockError> for Problem {
    fn from(error: StockError) -> Self {
        tracing::warn!("{error}");
        Self::reduced_capacity(Duration::from_secs(1))
    }
}
