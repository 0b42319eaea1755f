//! The problems that are this server's own.

use std::fmt::Display;
use std::time::Duration;

use axum::http::StatusCode;
use tower_sliding_window::StoreError;

use crate::order::{OrderId, Sku};
use example_support::problem::Problem;

pub(crate) fn not_open(wait: Duration) -> Problem {
    let title = "The sale is not open";
    Problem::new(StatusCode::FORBIDDEN, "sale-not-open", title)
        .detail("Orders sent before the opening count in the window all the same.")
        .retry_after(wait)
}

pub(crate) fn unknown_sku() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "unknown-sku", "No such SKU is for sale")
}

pub(crate) fn unknown_order() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "unknown-order", "No such order")
}

pub(crate) fn already_ordered(order_id: &OrderId) -> Problem {
    let title = "The user has an order for this SKU already";
    Problem::new(StatusCode::CONFLICT, "already-ordered", title)
        .member("order_id", order_id.to_string())
}

pub(crate) fn sold_out(sku: &Sku) -> Problem {
    Problem::new(StatusCode::GONE, "sold-out", "Sold out")
        .detail(format!("Every {sku} has been sold."))
}

pub(crate) fn no_token() -> Problem {
    let title = "The request does not carry the admin token";
    Problem::new(StatusCode::UNAUTHORIZED, "no-token", title)
        .detail("Send `Authorization: Bearer TOKEN`, with the token the server was started with.")
}

pub(crate) fn no_such_user() -> Problem {
    let title = "The path names no user";
    Problem::new(StatusCode::BAD_REQUEST, "bad-user", title)
        .detail("A user id is 1 to 128 bytes of UTF-8, percent-encoded in the path.")
}

pub(crate) fn not_banned() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "not-banned", "The user is not banned")
}

pub(crate) fn bad_ban(why: impl Display) -> Problem {
    let title = "The ban is malformed";
    Problem::new(StatusCode::BAD_REQUEST, "bad-ban", title).detail(format!(
        "The body must be {{\"for\": \"1h\", \"reason\": \"...\"}}, in UTF-8: {why}."
    ))
}

pub(crate) fn ban_too_large(most: usize) -> Problem {
    let title = "The body is too large for a ban";
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "ban-too-large", title)
        .detail(format!("The body may have {most} bytes."))
}

pub(crate) fn bad_page(why: impl Display) -> Problem {
    let title = "The query names no page of bans";
    Problem::new(StatusCode::BAD_REQUEST, "bad-page", title).detail(format!(
        "It may be `limit`, from 1 to 10000, and `cursor`, the `next` of the page before: {why}."
    ))
}

/// Says that this store can't list bans, if that is the error.
pub(crate) fn no_page(error: StoreError) -> Problem {
    if !matches!(error, StoreError::Unsupported { .. }) {
        return error.into();
    }
    let title = "The bans of a Redis Cluster can't be listed";
    Problem::new(StatusCode::NOT_IMPLEMENTED, "no-list", title)
        .detail("Ask for one user: GET /admin/bans/{user}.")
}
