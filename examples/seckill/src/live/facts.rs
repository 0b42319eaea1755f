//! [`Facts`]: what is read now and then for the live page, and not counted.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, timeout};
use tower_sliding_window::store::RedisCommands;
use tower_sliding_window::{Bans, Offender, StoreError};

use crate::order::Sku;
use crate::routes::Shop;
use example_support::problem::whole_seconds;

/// How long the store may take to reply before the page says that it does not.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where the windows, the stock and the orders are.
#[derive(Clone)]
pub(crate) enum StoreKind {
    Memory,
    Redis(RedisCommands),
}

/// Where the facts are read.
pub(crate) struct Source {
    pub(crate) store: StoreKind,
    pub(crate) shop: Arc<Shop>,
    pub(crate) skus: Vec<Sku>,
    pub(crate) bans: Bans,
}

/// The state of the store and the stock, as they were last read.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) store: Value,
    pub(super) stock: Vec<Value>,
    /// The rest of the bans of the users denied most, in seconds.
    pub(super) banned: HashMap<Vec<u8>, u64>,
}

impl Facts {
    pub(super) fn unread() -> Self {
        Self { store: json!({ "kind": "unread" }), stock: Vec::new(), banned: HashMap::new() }
    }

    /// Reads them: one command for the store, and at most one for each SKU and each offender.
    pub(super) async fn read(source: &Source, offenders: &[Offender]) -> Self {
        let Source { store, shop, skus, bans } = source;
        let mut stock = Vec::new();
        for sku in skus {
            // What is not known is not shown: the state of the store says why.
            if let Ok(Some(level)) = shop.stock.level(sku).await {
                stock.push(json!({ "sku": sku, "stock": level.stock, "sold": level.sold }));
            }
        }
        let mut banned = HashMap::new();
        for offender in offenders {
            if let Ok(Some(ban)) = bans.get(offender.key().clone()).await {
                banned.insert(offender.key().as_bytes().to_vec(), whole_seconds(ban.remaining()));
            }
        }
        Self { store: store_state(store).await, stock, banned }
    }
}

/// Tells how the store replies, and what its circuit breaker does.
async fn store_state(store: &StoreKind) -> Value {
    let StoreKind::Redis(commands) = store else { return json!({ "kind": "memory" }) };
    let sent = Instant::now();
    let ping = redis::cmd("PING");
    let reply = timeout(PATIENCE, commands.query::<redis::Value>(&ping)).await;
    let reply = reply.unwrap_or(Err(StoreError::Timeout));
    let breaker = if matches!(reply, Err(StoreError::Unavailable)) { "open" } else { "closed" };
    let mut state = json!({ "kind": "redis", "breaker": breaker });
    match reply {
        Ok(_) => state["round_trip_ms"] = (sent.elapsed().as_secs_f64() * 1e3).into(),
        Err(error) => state["error"] = error.to_string().into(),
    }
    state
}
