//! [`Sku`], [`OrderId`] and [`Order`]: what is sold, and the record of one sale.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use uuid::Uuid;

use crate::user::UserId;

/// The longest SKU, in bytes.
const LONGEST_SKU: usize = 64;

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
        if text.is_empty() || text.len() > LONGEST_SKU || !text.bytes().all(allowed) {
            return Err(SkuError { text: text.to_owned() });
        }
        Ok(Self(text.to_owned()))
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

impl FromStr for OrderId {
    type Err = OrderIdError;

    fn from_str(text: &str) -> Result<Self, OrderIdError> {
        // A SKU may have dots, a UUID has none.
        let (sku, uuid) = text.rsplit_once('.').ok_or(OrderIdError)?;
        let sku = sku.parse().map_err(|_| OrderIdError)?;
        let uuid = uuid.parse().map_err(|_| OrderIdError)?;
        Ok(Self { sku, uuid })
    }
}

impl Serialize for OrderId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A text is no order id.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("an order id is written SKU.UUID")]
pub(crate) struct OrderIdError;

/// The record of one sale.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Order {
    pub(crate) order_id: OrderId,
    pub(crate) sku: Sku,
    pub(crate) user: UserId,
}

impl Order {
    pub(crate) fn new(order_id: OrderId, user: UserId) -> Self {
        Self { sku: order_id.sku.clone(), order_id, user }
    }
}
