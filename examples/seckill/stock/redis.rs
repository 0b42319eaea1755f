//! [`RedisStock`]: the stock of a fleet, which outlives its servers.

use std::sync::Arc;

use redis::{AsyncCommands, ErrorKind, RedisError, RedisResult, Script};

use super::{Level, Outcome};
use crate::common::connection::Connection;
use crate::order::{Order, OrderId, Sku};
use crate::user::UserId;

/// Keeps stock and orders in Redis, for every server with the same prefix. Clones share the
/// connection.
#[derive(Clone)]
pub(crate) struct RedisStock {
    connection: Connection,
    prefix: Arc<str>,
    place_order: Arc<Script>,
}

impl RedisStock {
    /// Puts on sale what is not yet: a SKU that is there already keeps its stock and its orders,
    /// so a server may be restarted at any time.
    pub(crate) async fn open(
        mut connection: Connection,
        prefix: &str,
        skus: impl IntoIterator<Item = (Sku, u32)>,
    ) -> RedisResult<Self> {
        for (sku, stock) in skus {
            let key = key(prefix, &sku, "stock");
            let _: bool = connection.set_nx(&key, stock).await?;
            let kept: u32 = connection.get(&key).await?;
            if kept != stock {
                tracing::warn!(%sku, kept, asked = stock, "the stock was set before, and is kept");
            }
        }
        let place_order = Arc::new(Script::new(include_str!("../place_order.lua")));
        Ok(Self { connection, prefix: prefix.into(), place_order })
    }

    pub(super) async fn place(&self, id: &OrderId, user: &UserId) -> RedisResult<Outcome> {
        let (code, held) = match self.try_place(id, user).await {
            // Whether the order was placed is unknown, but asking again under the same id is safe.
            Err(error) if lost_answer(&error) => self.try_place(id, user).await?,
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

    async fn try_place(&self, id: &OrderId, user: &UserId) -> RedisResult<(i64, String)> {
        self.place_order
            .key(self.key(&id.sku, "stock"))
            .key(self.key(&id.sku, "buyers"))
            .key(self.key(&id.sku, "orders"))
            .arg(user.as_str())
            .arg(id.uuid.to_string())
            .invoke_async(&mut self.connection.clone())
            .await
    }

    pub(super) async fn level(&self, sku: &Sku) -> RedisResult<Option<Level>> {
        let mut connection = self.connection.clone();
        let (stock, sold): (Option<u32>, u32) = redis::pipe()
            .get(self.key(sku, "stock"))
            .hlen(self.key(sku, "orders"))
            .query_async(&mut connection)
            .await?;
        Ok(stock.map(|stock| Level { stock, sold }))
    }

    pub(super) async fn order(&self, id: &OrderId) -> RedisResult<Option<Order>> {
        let mut connection = self.connection.clone();
        let user: Option<String> =
            connection.hget(self.key(&id.sku, "orders"), id.uuid.to_string()).await?;
        Ok(user.and_then(UserId::new).map(|user| Order::new(id.clone(), user)))
    }

    fn key(&self, sku: &Sku, what: &str) -> String {
        key(&self.prefix, sku, what)
    }
}

/// The braces put all keys of one SKU into one slot of a Redis Cluster. No SKU begins with `=`, so
/// none of them is the name of a window.
fn key(prefix: &str, sku: &Sku, what: &str) -> String {
    format!("{prefix}:{{{sku}}}:{what}")
}

fn lost_answer(error: &RedisError) -> bool {
    error.is_timeout() || error.is_connection_dropped()
}

fn not_understood() -> RedisError {
    RedisError::from((ErrorKind::UnexpectedReturnType, "place_order.lua gave an unknown reply"))
}
