//! [`Stock`]: what is for sale, and its orders.

mod redis;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::StatusCode;
use tower_sliding_window::StoreError;
use uuid::Uuid;

pub(crate) use self::redis::{RedisStock, Replicas};
use crate::names::{OrderId, Sku, UserId};
use example_support::lock;
use example_support::logs::Throttle;
use example_support::problem::Problem;

/// The stock and the orders of a sale, in this process or in Redis.
///
/// In both, a sale is one atomic step: never more orders than stock, and never two orders of one user for
/// one SKU.
pub(crate) enum Stock {
    Memory(MemoryStock),
    Redis(Arc<RedisStock>),
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
#[derive(Clone, Copy, Debug)]
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
    pub(crate) fn level(&self, sku: &Sku) -> Result<Option<Level>, StockError> {
        match self {
            Self::Memory(stock) => Ok(stock.level(sku)),
            Self::Redis(stock) => stock.level(sku),
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

/// Keeps stock and orders in the memory of this process.
pub(crate) struct MemoryStock(Mutex<HashMap<Sku, Shelf>>);

/// One SKU. Bounded by its stock: only users with an order are kept.
struct Shelf {
    stock: u32,
    buyers: HashMap<UserId, Uuid>,
    orders: HashMap<Uuid, UserId>,
}

impl MemoryStock {
    pub(crate) fn new(skus: &[(Sku, u32)]) -> Self {
        let shelf = |stock| Shelf { stock, buyers: HashMap::new(), orders: HashMap::new() };
        Self(Mutex::new(skus.iter().map(|(sku, stock)| (sku.clone(), shelf(*stock))).collect()))
    }

    /// The lock is held for all of the looking and the selling, so that nothing comes between.
    fn place(&self, id: &OrderId, user: &UserId) -> Outcome {
        let mut shelves = lock(&self.0);
        let Some(shelf) = shelves.get_mut(&id.sku) else { return Outcome::UnknownSku };
        if let Some(held) = shelf.buyers.get(user) {
            return Outcome::AlreadyOrdered(*held);
        }
        if shelf.orders.len() >= shelf.stock as usize {
            return Outcome::SoldOut;
        }
        shelf.buyers.insert(user.clone(), id.uuid);
        shelf.orders.insert(id.uuid, user.clone());
        Outcome::Placed
    }

    fn level(&self, sku: &Sku) -> Option<Level> {
        let shelves = lock(&self.0);
        let shelf = shelves.get(sku)?;
        Some(Level { stock: shelf.stock, sold: shelf.orders.len() as u32 })
    }

    fn buyer(&self, id: &OrderId) -> Option<UserId> {
        lock(&self.0).get(&id.sku)?.orders.get(&id.uuid).cloned()
    }
}

/// Why the stock has no answer, or none that is safe.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum StockError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The order stands on the master only, and would be lost with it.
    #[error("{confirmed} of {wanted} replicas have the order")]
    NotReplicated { confirmed: u32, wanted: u32 },
    /// Redis has lost a SKU that this server was started with.
    #[error("Redis has lost the stock of {0}")]
    Lost(Sku),
}

const MAY_STAND: &str =
    "It may stand. Send the same request again to find out: it never orders twice.";

impl StockError {
    /// Returns the problem of a request to order, which says whether the order may stand.
    pub(crate) fn of_an_order(self) -> Problem {
        let detail = match &self {
            Self::NotReplicated { .. } => MAY_STAND,
            Self::Store(error) if error.may_have_counted() => MAY_STAND,
            Self::Store(_) | Self::Lost(_) => "No order was placed.",
        };
        Problem::from(self).detail(detail)
    }
}

impl From<StockError> for Problem {
    fn from(error: StockError) -> Self {
        static NOT_REPLICATED: Throttle = Throttle::new();
        static LOST: Throttle = Throttle::new();
        let unavailable = StatusCode::SERVICE_UNAVAILABLE;
        match error {
            StockError::Store(error) => error.into(),
            StockError::NotReplicated { .. } => {
                NOT_REPLICATED.log(|times| {
                    tracing::warn!(%error, times, "orders are answered with 503: too few replicas");
                });
                Self::new(unavailable, "not-replicated", "The order is not safe yet")
                    .retry_after(Duration::from_secs(1))
            }
            StockError::Lost(sku) => {
                LOST.log(|times| {
                    tracing::error!(
                        %sku,
                        times,
                        "REDIS HAS LOST THE STOCK OF A SKU ON SALE, and maybe orders: nothing is sold \
                         until an operator has restored SKU and orders, or set the stock anew"
                    );
                });
                Self::new(unavailable, "stock-lost", "The stock of this SKU is not known")
                    .retry_after(Duration::from_secs(10))
            }
        }
    }
}
