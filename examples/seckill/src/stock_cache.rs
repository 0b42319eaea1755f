//! [`StockCache`]: the stock as clients read it, at a cost for Redis that clients can't raise.

mod ended_sale;
mod slot;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use example_support::problem::Problem;
use quick_cache::sync::Cache;
use tower_sliding_window::{Decision, Limiter, MemoryStore, Quota};

use self::ended_sale::EndedSale;
use self::slot::Slot;
use crate::order::{OrderId, Sku};
use crate::stock::{Level, Outcome, Stock, StockError};
use crate::user::UserId;

/// How old a level may be that a client sees: ten reads a second for each SKU.
const SHOWN_AGE: Duration = Duration::from_millis(100);
/// How long an unknown SKU is taken to be unknown. One that another server puts on sale is found
/// after that.
const UNKNOWN_AGE: Duration = Duration::from_secs(1);
/// How old a level may be by which orders are refused.
const SOLD_OUT_AGE: Duration = Duration::from_secs(1);
/// The reads a second for SKUs that this server does not know to be on sale.
const UNKNOWN_READS: u32 = 10;
/// The most SKUs of other servers that are kept.
const OTHERS: usize = 1_000;

/// A stock, and in front of it what Redis has said about it in the last second. Clones share it.
///
/// A stock in this process needs nothing in front of it.
#[derive(Clone)]
pub(crate) struct StockCache {
    stock: Stock,
    /// The SKUs of `--stock`.
    own: Arc<HashMap<Sku, Own>>,
    /// The SKUs that clients have named. Some are on sale at other servers.
    others: Arc<Cache<Sku, Arc<Slot>>>,
    /// Bounds the reads for SKUs that may not exist, of which a client can invent any number.
    unknown_reads: Arc<Limiter>,
}

/// What is kept of an own SKU.
#[derive(Default)]
struct Own {
    slot: Arc<Slot>,
    ended_sale: Arc<EndedSale>,
}

impl StockCache {
    pub(crate) fn new(stock: Stock, own: impl IntoIterator<Item = Sku>) -> Self {
        let quota = Quota::new(UNKNOWN_READS, Duration::from_secs(1));
        Self {
            stock,
            own: Arc::new(own.into_iter().map(|sku| (sku, Own::default())).collect()),
            others: Arc::new(Cache::new(OTHERS)),
            unknown_reads: Arc::new(Limiter::new(quota, MemoryStore::new())),
        }
    }

    /// Returns how much of a SKU is sold, or nothing if it is not for sale.
    pub(crate) async fn level(&self, sku: &Sku) -> Result<Option<Level>, LevelError> {
        if let Stock::Memory(stock) = &self.stock {
            return Ok(stock.level(sku));
        }
        if let Some(own) = self.own.get(sku) {
            return own.slot.level(SHOWN_AGE, SHOWN_AGE, self.read(sku)).await;
        }
        let slot = match self.others.get(sku) {
            Some(slot) => slot,
            None => {
                let slot = Arc::new(Slot::default());
                self.others.insert(sku.clone(), Arc::clone(&slot));
                slot
            }
        };
        let (read, reads) = (self.read(sku), Arc::clone(&self.unknown_reads));
        let is_known = slot.is_on_sale();
        let bounded = async move {
            if !is_known
                && let Decision::Denied(denied) =
                    reads.check("unknown").await.map_err(StockError::from)?
            {
                return Err(LevelError::TooManyUnknown { retry_after: denied.retry_after() });
            }
            read.await
        };
        slot.level(SHOWN_AGE, UNKNOWN_AGE, bounded).await
    }

    fn read(&self, sku: &Sku) -> impl Future<Output = Result<Option<Level>, LevelError>> + use<> {
        let (stock, sku) = (self.stock.clone(), sku.clone());
        async move { Ok(stock.level(&sku).await?) }
    }

    /// Tells whether a SKU is sold out, and this user has no order of it. If not, the stock decides.
    ///
    /// This costs Redis one read a second. It is right because a stock does not grow and an order does
    /// not end while the servers run: what is sold out stays sold out. Only an operator changes that,
    /// or a failover that loses orders. Then the number of pieces or of orders is another, which the
    /// next read shows: for at most a second an order is refused that could have been placed. Users
    /// with an order are few, and the stock tells them its id. Without Redis nothing is known, as for
    /// all other orders.
    pub(crate) async fn is_sold_out_to(&self, sku: &Sku, user: &UserId) -> bool {
        if let Stock::Memory(stock) = &self.stock {
            return stock.is_sold_out_to(sku, user);
        }
        let Some(own) = self.own.get(sku) else { return false };
        let Some(sale) = own.ended_sale.get() else { return false };
        let level = own.slot.level(SOLD_OUT_AGE, SHOWN_AGE, self.read(sku)).await;
        if level.is_ok_and(|level| level == Some(sale.level)) {
            return !sale.may_have_order(user.as_str());
        }
        // Another sale, or none that is known.
        own.ended_sale.forget();
        false
    }

    /// Sells one piece to a user.
    pub(crate) async fn place(&self, id: &OrderId, user: &UserId) -> Result<Outcome, StockError> {
        let outcome = self.stock.place(id, user).await?;
        if outcome == Outcome::SoldOut
            && let (Stock::Redis(stock), Some(own)) = (&self.stock, self.own.get(&id.sku))
        {
            own.ended_sale.learn(stock.clone(), id.sku.clone());
        }
        Ok(outcome)
    }

    /// Returns the user with the order of that id, if there is one.
    pub(crate) async fn buyer(&self, id: &OrderId) -> Result<Option<UserId>, StockError> {
        self.stock.buyer(id).await
    }
}

/// Why it is not known how much of a SKU is left.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum LevelError {
    #[error(transparent)]
    Stock(#[from] StockError),
    #[error("clients name too many SKUs that are not known here")]
    TooManyUnknown { retry_after: Duration },
}

impl From<LevelError> for Problem {
    fn from(error: LevelError) -> Self {
        match error {
            LevelError::Stock(error) => error.into(),
            LevelError::TooManyUnknown { retry_after } => Self::reduced_capacity(retry_after),
        }
    }
}
