//! [`EndedSale`]: what is kept of a SKU that is sold out.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use example_support::lock;
use tokio::time::Instant;

use crate::order::Sku;
use crate::stock::{Level, RedisStock, StockError};

/// The most orders of a sale that is kept, in about 20 MB. After a larger one the stock decides on
/// every order.
const LARGEST: u32 = 1_000_000;
/// The time between two reads of the buyers.
const PAUSE: Duration = Duration::from_secs(1);

/// The last sale of a SKU, once it is sold out.
#[derive(Default)]
pub(super) struct EndedSale(Mutex<State>);

#[derive(Default)]
struct State {
    sale: Option<Arc<Sale>>,
    is_being_read: bool,
    read: Option<Instant>,
}

/// A sale that is sold out.
pub(super) struct Sale {
    /// With another level it is another sale.
    pub(super) level: Level,
    hasher: RandomState,
    buyers: HashSet<u64>,
}

impl Sale {
    /// Returns whether a user may have an order: `true` for each buyer, and, if two hashes are equal,
    /// for a user without an order.
    pub(super) fn may_have_order(&self, user: &str) -> bool {
        self.buyers.contains(&self.hasher.hash_one(user))
    }
}

impl EndedSale {
    pub(super) fn get(&self) -> Option<Arc<Sale>> {
        lock(&self.0).sale.clone()
    }

    pub(super) fn forget(&self) {
        lock(&self.0).sale = None;
    }

    /// Begins to read the buyers of a SKU that is sold out, unless they are being read or were a moment ago.
    pub(super) fn learn(self: &Arc<Self>, stock: RedisStock, sku: Sku) {
        {
            let mut state = lock(&self.0);
            let was_read = state.read.is_some_and(|at| at.elapsed() < PAUSE);
            if state.sale.is_some() || state.is_being_read || was_read {
                return;
            }
            state.is_being_read = true;
        }
        let ended = Arc::clone(self);
        tokio::spawn(async move {
            let sale = read(&stock, &sku).await.unwrap_or_else(|error| {
                tracing::debug!(%sku, %error, "the buyers can't be read");
                None
            });
            let read = Some(Instant::now());
            *lock(&ended.0) = State { sale: sale.map(Arc::new), is_being_read: false, read };
        });
    }
}

/// Reads the sale of a SKU, if it is sold out and not too large.
async fn read(stock: &RedisStock, sku: &Sku) -> Result<Option<Sale>, StockError> {
    let level = stock.level(sku).await?;
    let is_over = |level: &Level| level.sold >= level.stock && level.sold <= LARGEST;
    let Some(level) = level.filter(is_over) else { return Ok(None) };
    let hasher = RandomState::new();
    let mut buyers = HashSet::with_capacity(level.sold as usize);
    let add = |user: &str| {
        buyers.insert(hasher.hash_one(user));
    };
    stock.each_buyer(sku, add).await?;
    // An operator may have changed the sale between the two reads.
    let is_whole = buyers.len() == level.sold as usize;
    Ok(is_whole.then_some(Sale { level, hasher, buyers }))
}
