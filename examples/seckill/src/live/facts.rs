//! [`Facts`]: what is read now and then for the live page, and not counted.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, timeout};
use tower_sliding_window::StoreError;
use tower_sliding_window::store::RedisCommands;

use crate::order::Sku;
use crate::routes::Shop;

/// How long the store may take to reply before the page says that it does not.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where the windows, the stock and the orders are.
#[derive(Clone)]
pub(crate) enum StoreKind {
    Memory,
    Redis(RedisCommands),
}

/// The state of the store and the stock, as they were last read.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) store: Value,
    pub(super) stock: Vec<Value>,
}

impl Facts {
    pub(super) fn unread() -> Self {
        Self { store: json!({ "kind": "unread" }), stock: Vec::new() }
    }

    /// Reads them: one command for the store, and at most one for each SKU.
    pub(super) async fn read(store: &StoreKind, shop: &Shop, skus: &[Sku]) -> Self {
        let mut stock = Vec::new();
        for sku in skus {
            // What is not known is not shown: the state of the store says why.
            if let Ok(Some(level)) = shop.stock.level(sku).await {
                stock.push(json!({ "sku": sku, "stock": level.stock, "sold": level.sold }));
            }
        }
        Self { store: store_state(store).await, stock }
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
