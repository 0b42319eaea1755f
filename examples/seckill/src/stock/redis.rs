//! [`RedisStock`]: the stock of a fleet, which outlives its servers.
//!
//! One task for each SKU reads its level four times a second. What clients poll, and whether Redis has lost
//! the SKU, follows from that, whatever the number of clients.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::pipe;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tower_sliding_window::StoreError;
use tower_sliding_window::store::{RedisCommands, RedisScript};

use super::{Level, Outcome, StockError};
use crate::names::{OrderId, Sku, UserId};
use example_support::lock;

const PLACE_ORDER: &str = include_str!("../place_order.lua");
/// What stands in place of a stock that Redis has lost, so that no server that is started sells it again.
const LOST: &str = "lost";
/// How often the levels are read.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How old a level may be that is shown.
const STALE: Duration = Duration::from_secs(2);

/// Keeps stock and orders in Redis, for every server with the same prefix.
pub(crate) struct RedisStock {
    orders: RedisCommands,
    reads: RedisCommands,
    prefix: String,
    replicas: Replicas,
    place_order: RedisScript,
    /// What was last read of each SKU on sale.
    seen: HashMap<Sku, Mutex<Seen>>,
}

/// When a level was read, and what it was.
type Seen = (Instant, Result<Level, StockError>);

/// How many replicas have an order before it is answered with 201.
///
/// Redis replicates after it has replied, so a failover loses what only the master had.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replicas {
    pub(crate) wanted: u32,
    /// How long Redis may take to reply, and the replicas to confirm, together.
    pub(crate) timeout: Duration,
}

impl RedisStock {
    /// Puts new SKUs on sale. A SKU that is there already keeps its stock and its orders, so a server
    /// may be restarted at any time. One that Redis has lost is an error.
    ///
    /// The connection of the orders must be their own if replicas are waited for, because `WAIT` holds
    /// up what is sent after it.
    pub(crate) async fn open(
        orders: RedisCommands,
        reads: RedisCommands,
        prefix: &str,
        on_sale: &[(Sku, u32)],
        replicas: Replicas,
    ) -> Result<Arc<Self>, StockError> {
        let unseen = || Mutex::new((Instant::now(), Err(StoreError::Timeout.into())));
        let stock = Arc::new(Self {
            orders,
            reads,
            prefix: prefix.to_owned(),
            replicas,
            place_order: RedisScript::new(PLACE_ORDER),
            seen: on_sale.iter().map(|(sku, _)| (sku.clone(), unseen())).collect(),
        });
        for (sku, _) in on_sale {
            let exists = redis::cmd("GET").arg(stock.key(sku, "stock")).to_owned();
            if stock.reads.query::<Option<String>>(&exists).await?.is_none() {
                // It is new, or Redis has lost it: then a running server marks that meanwhile.
                sleep(2 * LOOK_EVERY).await;
                break;
            }
        }
        for (sku, pieces) in on_sale {
            stock.put_on_sale(sku, *pieces).await?;
            stock.look(sku).await;
            tokio::spawn(Arc::clone(&stock).follow(sku.clone()));
        }
        Ok(stock)
    }

    async fn put_on_sale(&self, sku: &Sku, pieces: u32) -> Result<(), StockError> {
        let key = self.key(sku, "stock");
        let mut set = pipe();
        set.set_nx(&key, pieces).ignore().get(&key);
        let (kept,): (String,) = self.reads.pipeline(&set).await?;
        if kept == LOST {
            return Err(StockError::Lost(sku.clone()));
        }
        if kept != pieces.to_string() {
            tracing::warn!(%sku, kept, asked = pieces, "the stock was set before, and is kept");
        }
        Ok(())
    }

    async fn follow(self: Arc<Self>, sku: Sku) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            self.look(&sku).await;
        }
    }

    /// Reads the level of a SKU, and marks it if Redis has lost it.
    async fn look(&self, sku: &Sku) {
        let mut read = pipe();
        read.get(self.key(sku, "stock")).hlen(self.key(sku, "orders"));
        let level = match self.reads.pipeline::<(Option<String>, u32)>(&read).await {
            Ok((stock, sold)) => {
                if stock.is_none() {
                    let mut mark = redis::cmd("SETNX");
                    mark.arg(self.key(sku, "stock")).arg(LOST);
                    if let Ok(true) = self.reads.query(&mark).await {
                        tracing::error!(%sku, "Redis has lost a SKU on sale: it is marked as lost");
                    }
                }
                let stock = stock.and_then(|pieces| pieces.parse().ok());
                let level = stock.map(|stock| Level { stock, sold });
                level.ok_or_else(|| StockError::Lost(sku.clone()))
            }
            Err(error) => Err(error.into()),
        };
        if let Some(seen) = self.seen.get(sku) {
            *lock(seen) = (Instant::now(), level);
        }
    }

    pub(super) fn level(&self, sku: &Sku) -> Result<Option<Level>, StockError> {
        let Some(seen) = self.seen.get(sku) else { return Ok(None) };
        let (at, level) = &*lock(seen);
        if at.elapsed() > STALE {
            return Err(StoreError::Timeout.into());
        }
        level.clone().map(Some)
    }

    pub(super) async fn buyer(&self, id: &OrderId) -> Result<Option<UserId>, StockError> {
        if self.level(&id.sku)?.is_none() {
            return Ok(None);
        }
        let mut read = redis::cmd("HGET");
        read.arg(self.key(&id.sku, "orders")).arg(id.uuid.to_string());
        let user: Option<String> = self.reads.query(&read).await?;
        Ok(user.and_then(UserId::new))
    }

    pub(super) async fn place(
        self: &Arc<Self>,
        id: &OrderId,
        user: &UserId,
    ) -> Result<Outcome, StockError> {
        if !self.seen.contains_key(&id.sku) {
            return Ok(Outcome::UnknownSku);
        }
        if self.replicas.wanted == 0 {
            return self.place_whole(id, user).await;
        }
        // A task of its own sees the call to its end, so that the circuit breaker learns of it.
        let (stock, id, user) = (Arc::clone(self), id.clone(), user.clone());
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
        let outcome = match (code, held.parse()) {
            (1, _) => Outcome::Placed,
            (0, Ok(held)) => Outcome::AlreadyOrdered(held),
            (-1, _) => return Ok(Outcome::SoldOut),
            // It is not set again: the orders are lost with it, and would be sold twice.
            (-2, _) => return Err(StockError::Lost(id.sku.clone())),
            _ => {
                let message = "place_order.lua gave an unknown reply".to_owned();
                return Err(StoreError::Protocol { message }.into());
            }
        };
        let wanted = self.replicas.wanted;
        if confirmed < wanted {
            return Err(StockError::NotReplicated { confirmed, wanted });
        }
        Ok(outcome)
    }

    /// Returns the reply of the script, and how many replicas have what it wrote: they confirm within a
    /// fraction of a millisecond, or else the patience ends.
    async fn try_place(
        &self,
        id: &OrderId,
        user: &UserId,
    ) -> Result<((i64, String), u32), StoreError> {
        let keys = ["stock", "buyers", "orders"].map(|what| self.key(&id.sku, what));
        let uuid = id.uuid.to_string();
        let Replicas { wanted, timeout } = self.replicas;
        if wanted == 0 {
            let arguments = [user.as_str(), &uuid];
            let reply = self.orders.script(&self.place_order, &keys, &arguments).await?;
            return Ok((reply, 0));
        }
        let patience = timeout.as_millis().div_ceil(2) as u64;
        let mut place = pipe();
        // By its text: in a pipeline there is no second call for a server that lacks the script.
        place.cmd("EVAL").arg(PLACE_ORDER).arg(keys.len()).arg(&keys).arg(user.as_str()).arg(uuid);
        place.cmd("WAIT").arg(wanted).arg(patience);
        self.orders.pipeline(&place).await
    }

    /// The braces put all keys of one SKU into one slot of a Redis Cluster. No SKU begins with `=`, so
    /// none of them is the name of a log.
    fn key(&self, sku: &Sku, what: &str) -> String {
        format!("{}:{{{sku}}}:{what}", self.prefix)
    }
}
