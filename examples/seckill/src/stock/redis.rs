//! [`RedisStock`]: the stock of a fleet, which outlives its servers.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use example_support::policies::LOOK_EVERY;
use redis::{FromRedisValue, Pipeline, pipe};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tower_sliding_window::StoreError;
use tower_sliding_window::store::{RedisCommands, RedisScript};

use super::{Level, Outcome, StockError};
use crate::order::{OrderId, Sku};
use crate::user::UserId;

const PLACE_ORDER: &str = include_str!("../place_order.lua");
/// What stands in place of a stock that Redis has lost, so that no server that is started sells it again.
const LOST: &str = "lost";

/// Keeps stock and orders in Redis, for every server with the same prefix. Clones share the
/// connection.
#[derive(Clone)]
pub(crate) struct RedisStock {
    orders: RedisCommands,
    reads: RedisCommands,
    prefix: Arc<str>,
    /// What this server was started with. It was in Redis then.
    skus: Arc<HashSet<Sku>>,
    replicas: Replicas,
    place_order: Arc<RedisScript>,
}

/// How many replicas have an order before it is answered with 201.
///
/// Redis replicates after it has replied, so a failover loses what only the master had.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replicas {
    pub(crate) wanted: u32,
    /// How long Redis may take to reply, and the replicas to confirm, together.
    pub(crate) timeout: Duration,
}

impl Replicas {
    /// How much later than it was asked to, a Redis without other work ends a `WAIT`: it looks ten
    /// times a second.
    pub(crate) const LATER: Duration = Duration::from_millis(150);

    /// Returns how long `WAIT` is to wait.
    fn patience(self) -> u64 {
        u64::try_from(self.timeout.as_millis() / 2).unwrap_or(u64::MAX).max(1)
    }
}

impl RedisStock {
    /// Puts new SKUs on sale. A SKU that is there already keeps its stock and its orders, so a server
    /// may be restarted at any time. One that Redis has lost is put on sale again with `new_sale` only.
    ///
    /// The connection of the orders must be their own if replicas are waited for, because `WAIT` holds
    /// up what is sent after it, and its response timeout longer by [`Replicas::LATER`].
    pub(crate) async fn open(
        orders: RedisCommands,
        reads: RedisCommands,
        prefix: &str,
        on_sale: Vec<(Sku, u32)>,
        replicas: Replicas,
        new_sale: bool,
    ) -> Result<Self, StockError> {
        let place_order = Arc::new(RedisScript::new(PLACE_ORDER));
        let skus = Arc::new(on_sale.iter().map(|(sku, _)| sku.clone()).collect());
        let stock = Self { orders, reads, prefix: prefix.into(), skus, replicas, place_order };
        let mut held = stock.held(&on_sale).await?;
        if !new_sale && held.contains(&None) {
            // Redis has never had it, or has lost it: then a running server marks that meanwhile.
            sleep(2 * LOOK_EVERY).await;
            held = stock.held(&on_sale).await?;
        }
        for ((sku, pieces), held) in on_sale.into_iter().zip(held) {
            let key = stock.key(&sku, "stock");
            let is_here = held.is_some_and(|held| held != LOST);
            let mut set = pipe();
            // A running server may mark it as lost just now.
            if new_sale && !is_here {
                set.set(&key, pieces)
            } else {
                set.set_nx(&key, pieces)
            };
            set.ignore().get(&key);
            let (kept, confirmed): (String, u32) = stock.replicated(set).await?;
            if kept == LOST {
                return Err(StockError::Lost(sku));
            }
            if kept != pieces.to_string() {
                tracing::warn!(%sku, kept, asked = pieces, "the stock was set before, and is kept");
            }
            if confirmed < replicas.wanted {
                tracing::warn!(
                    %sku,
                    confirmed,
                    wanted = replicas.wanted,
                    "too few replicas: orders are answered with 503 until there are more, or the \
                     server is started with a lower --min-replicas"
                );
            }
        }
        tokio::spawn(stock.clone().mark_lost());
        Ok(stock)
    }

    /// Reads the stock of each SKU.
    async fn held(&self, skus: &[(Sku, u32)]) -> Result<Vec<Option<String>>, StoreError> {
        let mut held = Vec::new();
        for (sku, _) in skus {
            held.push(self.reads.query(redis::cmd("GET").arg(self.key(sku, "stock"))).await?);
        }
        Ok(held)
    }

    /// Marks, again and again, what was on sale and is no longer in Redis.
    async fn mark_lost(self) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            for sku in self.skus.iter() {
                let key = self.key(sku, "stock");
                // Without an answer nothing is known, and the next look tells.
                if let Ok(None) =
                    self.reads.query::<Option<String>>(redis::cmd("GET").arg(&key)).await
                    && let Ok(true) = self.reads.query(redis::cmd("SETNX").arg(key).arg(LOST)).await
                {
                    tracing::error!(%sku, "Redis has lost a SKU on sale: it is marked as lost");
                }
            }
        }
    }

    pub(super) async fn place(&self, id: &OrderId, user: &UserId) -> Result<Outcome, StockError> {
        if self.replicas.wanted == 0 {
            return self.place_whole(id, user).await;
        }
        // A task of its own sees the call to its end, so that the circuit breaker learns of it.
        let (stock, id, user) = (self.clone(), id.clone(), user.clone());
        let placed = tokio::spawn(async move { stock.place_whole(&id, &user).await });
        match timeout(self.replicas.timeout, placed).await {
            Ok(Ok(outcome)) => outcome,
            // Only a panic, or the end of the program, ends the task early.
            Ok(Err(_)) | Err(_) => Err(StoreError::Timeout.into()),
        }
    }

    async fn place_whole(&self, id: &OrderId, user: &UserId) -> Result<Outcome, StockError> {
        let reply = match self.try_place(id, user).await {
            // Redis may have placed the order. To place it again under the same id is safe. After a
            // timeout there is no time left for that.
            Err(error) if error.may_have_counted() && !matches!(error, StoreError::Timeout) => {
                self.try_place(id, user).await.map_err(|_| error)?
            }
            reply => reply?,
        };
        let ((code, held), confirmed) = reply;
        let outcome = match code {
            1 => Outcome::Placed,
            0 => Outcome::AlreadyOrdered(held.parse().map_err(|_| not_understood())?),
            -1 => return Ok(Outcome::SoldOut),
            -2 if self.skus.contains(&id.sku) => return Err(StockError::Lost(id.sku.clone())),
            -2 => return Ok(Outcome::UnknownSku),
            _ => return Err(not_understood().into()),
        };
        let wanted = self.replicas.wanted;
        if confirmed < wanted {
            return Err(StockError::NotReplicated { confirmed, wanted });
        }
        Ok(outcome)
    }

    /// Returns the reply of the script, and how many replicas have what it wrote.
    async fn try_place(
        &self,
        id: &OrderId,
        user: &UserId,
    ) -> Result<((i64, String), u32), StoreError> {
        let keys = ["stock", "buyers", "orders"].map(|what| self.key(&id.sku, what));
        let uuid = id.uuid.to_string();
        if self.replicas.wanted == 0 {
            let arguments = [user.as_str(), &uuid];
            let reply = self.orders.script(&self.place_order, &keys, &arguments).await?;
            return Ok((reply, 0));
        }
        let mut place = pipe();
        // By its text: in a pipeline there is no second call for a server that lacks the script.
        place.cmd("EVAL").arg(PLACE_ORDER).arg(keys.len()).arg(&keys).arg(user.as_str()).arg(uuid);
        self.replicated(place).await
    }

    /// Sends a pipeline with one reply. Returns the reply, and how many replicas have what it wrote:
    /// they confirm within a fraction of a millisecond, or else the patience ends.
    async fn replicated<T: FromRedisValue>(
        &self,
        mut pipeline: Pipeline,
    ) -> Result<(T, u32), StoreError> {
        if self.replicas.wanted == 0 {
            let (reply,) = self.orders.pipeline(&pipeline).await?;
            return Ok((reply, 0));
        }
        pipeline.cmd("WAIT").arg(self.replicas.wanted).arg(self.replicas.patience());
        self.orders.pipeline(&pipeline).await
    }

    pub(crate) async fn level(&self, sku: &Sku) -> Result<Option<Level>, StockError> {
        let (stock, orders) = (self.key(sku, "stock"), self.key(sku, "orders"));
        let (stock, sold): (Option<String>, u32) =
            self.reads.pipeline(pipe().get(stock).hlen(orders)).await?;
        let stock = stock.and_then(|pieces| pieces.parse().ok());
        self.check_kept(sku, stock.is_some())?;
        Ok(stock.map(|stock| Level { stock, sold }))
    }

    pub(super) async fn buyer(&self, id: &OrderId) -> Result<Option<UserId>, StockError> {
        let (stock, orders) = (self.key(&id.sku, "stock"), self.key(&id.sku, "orders"));
        let (stock, user): (Option<String>, Option<String>) =
            self.reads.pipeline(pipe().get(stock).hget(orders, id.uuid.to_string())).await?;
        self.check_kept(&id.sku, stock.is_some_and(|stock| stock != LOST))?;
        Ok(user.and_then(UserId::new))
    }

    /// Calls `see` with each user that has an order of a SKU, and with some of them twice. Pages keep
    /// each command short.
    pub(crate) async fn each_buyer(
        &self,
        sku: &Sku,
        mut see: impl FnMut(&str),
    ) -> Result<(), StockError> {
        let (key, mut cursor) = (self.key(sku, "buyers"), 0_u64);
        loop {
            let mut command = redis::cmd("HSCAN");
            command.arg(&key).arg(cursor).arg("COUNT").arg(1000);
            let (next, page): (u64, Vec<(String, String)>) = self.reads.query(&command).await?;
            page.iter().for_each(|(user, _order)| see(user));
            match next {
                0 => return Ok(()),
                _ => cursor = next,
            }
        }
    }

    /// A SKU that is gone was lost in a failover or a restart, if it was here. It is not set again:
    /// the orders are lost with it, and would be sold twice.
    fn check_kept(&self, sku: &Sku, is_kept: bool) -> Result<(), StockError> {
        if is_kept || !self.skus.contains(sku) {
            return Ok(());
        }
        Err(StockError::Lost(sku.clone()))
    }

    /// The braces put all keys of one SKU into one slot of a Redis Cluster. No SKU begins with `=`, so
    /// none of them is the name of a log.
    fn key(&self, sku: &Sku, what: &str) -> String {
        format!("{}:{{{sku}}}:{what}", self.prefix)
    }
}

fn not_understood() -> StoreError {
    StoreError::Protocol { message: "place_order.lua gave an unknown reply".to_owned() }
}
