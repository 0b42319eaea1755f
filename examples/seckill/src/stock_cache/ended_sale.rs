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
/// The time between two attempts to read the buyers.
const PAUSE: Duration = Duration::from_secs(1);

/// The last sale of a SKU, once it is sold out.
#[derive(Default)]
pub(super) struct EndedSale(Mutex<State>);

#[derive(Default)]
struct State {
    sale: Option<Arc<Sale>>,
    begun: Option<Instant>,
}

/// A sale that is sold out.
pub(super) struct Sale {
    /// With another level it is another sale.
    pub(super) level: Level,
    hasher: RandomState,
    buyers: HashSet<u64>,
}

impl Sale {
    /// Tells whether a user may have an order. A user without one is nearly never taken for a buyer,
    /// and a buyer never for a user without one.
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

    /// Begins to read the buyers of a SKU that is sold out, unless that was begun a moment ago.
    pub(super) fn learn(self: &Arc<Self>, stock: RedisStock, sku: Sku) {
        {
            let mut state = lock(&self.0);
            if state.sale.is_some() || state.begun.is_some_and(|at| at.elapsed() < PAUSE) {
                return;
            }
            state.begun = Some(Instant::now());
        }
        let ended = Arc::clone(self);
        tokio::spawn(async move {
            match read(&stock, &sku).await {
                Ok(sale) => lock(&ended.0).sale = sale.map(Arc::new),
                Err(error) => tracing::debug!(%sku, %error, "the buyers can't be read"),
            }
        });
    }
}

/// Reads the sale of a SKU, if it is sold out and not too large.
async fn read(stock: &RedisStock, sku: &Sku) -> Result<Option<Sale>, StockError> {
    let level = stock.level(sku).await?;
    let is_over = |level: &Level| level.sold >= level.stock && level.sold <= LARGEST;
    let Some(level) = level.filter(is_over) else { return Ok(None) };
    let users = stock.buyers(sku).await?;
    let hasher = RandomState::new();
    let hashes = users.iter().map(|user| hasher.hash_one(user.as_str()));
    let buyers: HashSet<u64> = hashes.collect();
    // An operator may have changed the sale between the two reads.
    let is_whole = buyers.len() == level.sold as usize;
    Ok(is_whole.then_some(Sale { level, hasher, buyers }))
}
