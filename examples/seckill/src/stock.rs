//! [`Stock`]: what is for sale, and its orders.

mod error;
mod memory;
mod redis;

use uuid::Uuid;

pub(crate) use self::error::StockError;

pub(crate) use self::memory::MemoryStock;
pub(crate) use self::redis::{RedisStock, Replicas};
use crate::order::{OrderId, Sku};
use crate::user::UserId;

/// The stock and the orders of a sale, in this process or in Redis.
///
/// In both, a sale is one atomic step: never more orders than stock, never two orders of one user for
/// one SKU, and an order that is placed twice under one id is one order.
#[derive(Clone)]
pub(crate) enum Stock {
    Memory(MemoryStock),
    Redis(RedisStock),
}

/// What came of an attempt to buy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The order stands.
    Placed,
    /// The user has an order for this SKU already: this one.
    AlreadyOrdered(Uuid),
    SoldOut,
    UnknownSku,
}

/// How much of a SKU there was, and how much of it is sold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    pub(crate) stock: u32,
    pub(crate) sold: u32,
}

impl Stock {
    /// Sells one piece to a user.
    pub(crate) async fn place(&self, id: &OrderId, user: &UserId) -> Result<Outcome, StockError> {
        match self {
            Self::Memory(stock) => Ok(stock.place(id, user)),
            Self::Redis(stock) => stock.place(id, user).await,
        }
    }

    /// Returns how much of a SKU is sold, or nothing if it is not for sale.
    pub(crate) async fn level(&self, sku: &Sku) -> Result<Option<Level>, StockError> {
        match self {
            Self::Memory(stock) => Ok(stock.level(sku)),
            Self::Redis(stock) => stock.level(sku).await,
        }
    }

    /// Returns the user with the order of that id, if there is one.
    pub(crate) async fn buyer(&self, id: &OrderId) -> Result<Option<UserId>, StockError> {
        match self {
            Self::Memory(stock) => Ok(stock.buyer(id)),
            Self::Redis(stock) => stock.buyer(id).await,
        }
    }
}
