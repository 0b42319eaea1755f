//! [`Sku`], [`OrderId`] and [`UserId`]: what is sold, the name of one sale, and the buyer.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::Serialize;
use tower_sliding_window::{KeyError, KeyExtractor, key};
use uuid::Uuid;

use crate::routes::Shop;
use example_support::problem::Problem;

/// The header that names the user.
const USER: &str = "x-user-id";
/// The longest user id, in bytes.
const LONGEST_USER_ID: usize = 128;

/// The name of something for sale: 1 to 64 characters of `A-Z a-z 0-9 _ . -`.
///
/// It stands in URLs and in the hash tags of Redis keys, so it holds nothing that either would
/// have to escape.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub(crate) struct Sku(String);

impl fmt::Display for Sku {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Sku {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        let fits = (1..=64).contains(&text.len()) && text.bytes().all(allowed) && !is_dots(text);
        let error = || format!("the SKU {text:?} is not 1 to 64 characters of A-Z a-z 0-9 _ . -");
        if fits { Ok(Self(text.to_owned())) } else { Err(error()) }
    }
}

/// The name of an order, written `SKU.UUID`.
///
/// It begins with the SKU because that is where the order is kept: all records of one SKU share
/// a slot of a Redis Cluster, and different SKUs spread over the slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OrderId {
    pub(crate) sku: Sku,
    pub(crate) uuid: Uuid,
}

impl fmt::Display for OrderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.sku, self.uuid)
    }
}

impl OrderId {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        // A SKU may have dots, a UUID has none.
        let (sku, uuid) = text.rsplit_once('.')?;
        Some(Self { sku: sku.parse().ok()?, uuid: uuid.parse().ok()? })
    }
}

/// A user, as the authentication in front of this server names them: 1 to 128 bytes. User ids are personal: they may be
/// logged at the level debug only, so this one can't be formatted.
#[derive(Clone, PartialEq, Eq, Hash, Serialize)]
pub(crate) struct UserId(String);

impl UserId {
    pub(crate) fn new(text: String) -> Option<Self> {
        is_user_id(text.as_bytes()).then_some(Self(text))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Tells whether clients leave this out of a URL.
fn is_dots(text: &str) -> bool {
    text == "." || text == ".."
}

/// Tells whether a user id can't stand for two users: a key of more than 128 bytes, or one that looks like
/// a hash, is kept as its hash, and the replacement character stands for bytes that could not be decoded.
fn is_user_id(id: &[u8]) -> bool {
    let text = str::from_utf8(id).unwrap_or_default();
    (1..=LONGEST_USER_ID).contains(&text.len())
        && !is_dots(text)
        && !text.starts_with("sha256:")
        // A field of a page, where an operator bans a user, leaves them out.
        && !text.contains(char::is_control)
        && !text.contains(char::REPLACEMENT_CHARACTER)
}

/// Returns what finds the user id in a request: in the header `x-user-id`, or, if that is missing, in this
/// query parameter. A real shop has its authentication here.
pub(crate) fn user_key(query: Option<&str>) -> Arc<dyn KeyExtractor> {
    let (header, query) = (key::header(USER), query.map(key::query));
    Arc::new(move |parts: &Parts| {
        let found = match (header.extract(parts), &query) {
            (Err(KeyError::Missing), Some(query)) => query.extract(parts)?,
            (found, _) => found?,
        };
        if is_user_id(found.as_bytes()) { Ok(found) } else { Err(KeyError::Invalid) }
    })
}

/// The sender of a request, in a handler. Behind the limit there is one.
impl FromRequestParts<Arc<Shop>> for UserId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, shop: &Arc<Shop>) -> Result<Self, Problem> {
        let user = shop.user.extract(parts).ok();
        let user = user.and_then(|key| String::from_utf8(key.as_bytes().to_vec()).ok());
        user.map(Self).ok_or_else(|| Problem::plain(StatusCode::UNAUTHORIZED))
    }
}
