//! [`RedisStock`]: the stock of a fleet, which outlives its servers.

use std::sync::Arc;

use redis::pipe;
use tower_sliding_window::StoreError;
use tower_sliding_window::store::{RedisCommands, RedisScript};

use super::{Level, Outcome};
use crate::order::{OrderId, Sku};
use crate::user::UserId;

/// Keeps stock and orders in Redis, for every server with the same prefix. Clones share the
/// connection.
#[derive(Clone)]
pub(crate) struct RedisStock {
    commands: RedisCommands,
    prefix: Arc<str>,
    place_order: Arc<RedisScript>,
}

impl RedisStock {
    /// Puts new SKUs on sale. A SKU that is there already keeps its stock and its orders, so a server
    /// may be restarted at any time.
    pub(crate) async fn open(
        commands: RedisCommands,
        prefix: &str,
        skus: impl IntoIterator<Item = (Sku, u32)>,
    ) -> Result<Self, StoreError> {
        for (sku, stock) in skus {
            let key = key(prefix, &sku, "stock");
            let (kept,): (u32,) =
                commands.pipeline(pipe().set_nx(&key, stock).ignore().get(&key)).await?;
            if kept != stock {
                tracing::warn!(%sku, kept, asked = stock, "the stock was set before, and is kept");
            }
        }
        let place_order = Arc::new(RedisScript::new(include_str!("../place_order.lua")));
        Ok(Self { commands, prefix: prefix.into(), place_order })
    }

    pub(super) async fn place(&self, id: &OrderId, user: &UserId) -> Result<Outcome, StoreError> {
        let (code, held) = match self.try_place(id, user).await {
            // Redis may have placed the order. To place it again under the same id is safe.
            Err(error) if error.may_have_counted() => self.try_place(id, user).await?,
            reply => reply?,
        };
        match code {
            1 => Ok(Outcome::Placed),
            0 => Ok(Outcome::AlreadyOrdered(held.parse().map_err(|_| not_understood())?)),
            -1 => Ok(Outcome::SoldOut),
            -2 => Ok(Outcome::UnknownSku),
            _ => Err(not_understood()),
        }
    }

    async fn try_place(&self, id: &OrderId, user: &UserId) -> Result<(i64, String), StoreError> {
        let keys = ["stock", "buyers", "orders"].map(|what| key(&self.prefix, &id.sku, what));
        let arguments = [user.as_str(), &id.uuid.to_string()];
        self.commands.script(&self.place_order, &keys, &arguments).await
    }

    pub(super) async fn level(&self, sku: &Sku) -> Result<Option<Level>, StoreError> {
        let (stock, orders) = (key(&self.prefix, sku, "stock"), key(&self.prefix, sku, "orders"));
        let (stock, sold): (Option<u32>, u32) =
            self.commands.pipeline(pipe().get(stock).hlen(orders)).await?;
        Ok(stock.map(|stock| Level { stock, sold }))
    }

    pub(super) async fn buyer(&self, id: &OrderId) -> Result<Option<UserId>, StoreError> {
        let mut command = redis::cmd("HGET");
        command.arg(key(&self.prefix, &id.sku, "orders")).arg(id.uuid.to_string());
        let user: Option<String> = self.commands.query(&command).await?;
        Ok(user.and_then(UserId::new))
    }
}

/// The braces put all keys of one SKU into one slot of a Redis Cluster. No SKU begins with `=`, so
/// none of them is the name of a log.
fn key(prefix: &str, sku: &Sku, what: &str) -> String {
    format!("{prefix}:{{{sku}}}:{what}")
}

fn not_understood() -> StoreError {
    StoreError::Protocol { message: "place_order.lua gave an unknown reply".to_owned() }
}
