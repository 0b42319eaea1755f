//! [`Sku`] and [`OrderId`]: what is sold, and the name of one sale.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use uuid::Uuid;

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
    type Err = SkuError;

    fn from_str(text: &str) -> Result<Self, SkuError> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        let fits = (1..=64).contains(&text.len()) && text.bytes().all(allowed);
        if fits { Ok(Self(text.to_owned())) } else { Err(SkuError { text: text.to_owned() }) }
    }
}

/// A text is no SKU.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the SKU {text:?} is not 1 to 64 characters of A-Z a-z 0-9 _ . -")]
pub(crate) struct SkuError {
    text: String,
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
