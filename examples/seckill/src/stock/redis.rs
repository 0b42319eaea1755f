//! [`RedisStock`]: the stock of a fleet, which outlives its servers.
//!
//! One task for each SKU reads its level four times a second. What clients poll, what is refused because
//! it is sold out, and whether Redis has lost the SKU all follow from that, whatever the number of
//! clients.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{FromRedisValue, Pipeline, pipe};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tower_sliding_window::store::{RedisCommands, RedisScript};
use tower_sliding_window::{Decision, Limiter, MemoryStore, Quota, StoreError};

use super::{Level, Outcome, StockError};
use crate::names::{OrderId, Sku, UserId};
use example_support::lock;

const PLACE_ORDER: &str = include_str!("../place_order.lua");
/// What stands in place of a stock that Redis has lost, so that no server that is started sells it again.
const LOST: &str = "lost";
/// How often the levels of the own SKUs are read.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How old a level may be that is shown, or by which orders are refused.
const STALE: Duration = Duration::from_secs(2);
/// The reads a second for SKUs of other servers, of which a client can invent any number.
const OTHER_READS: u32 = 10;
/// How long buyers that could not be read are not read again, so that Redis is not scanned all the time.
const READ_AGAIN: Duration = Duration::from_secs(5);
/// The most buyers of a sale that are kept, in about 20 MB. After a larger one Redis decides on every
/// order.
const MOST_BUYERS: u32 = 1_000_000;

/// Keeps stock and orders in Redis, for every server with the same prefix. Clones share it.
#[derive(Clone)]
pub(crate) struct RedisStock(Arc<Inner>);

pub(crate) struct Inner {
    orders: RedisCommands,
    reads: RedisCommands,
    prefix: String,
    replicas: Replicas,
    place_order: RedisScript,
    /// What this server was started with. It was in Redis then.
    own: HashMap<Sku, Mutex<Seen>>,
    other_reads: Limiter,
}

/// What was last read of an own SKU.
struct Seen {
    at: Instant,
    level: Result<Level, StockError>,
    buyers: Buyers,
}

/// The buyers of a SKU that is sold out.
enum Buyers {
    Unknown,
    BeingRead,
    /// With another level it is another sale.
    Of(Level, Arc<(RandomState, HashSet<u64>)>),
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
        let unseen =
            || Seen { at: Instant::now(), level: Err(UNSEEN.into()), buyers: Buyers::Unknown };
        let inner = Inner {
            orders,
            reads,
            prefix: prefix.to_owned(),
            replicas,
            place_order: RedisScript::new(PLACE_ORDER),
            own: on_sale.iter().map(|(sku, _)| (sku.clone(), Mutex::new(unseen()))).collect(),
            other_reads: Limiter::new(Quota::per_second(OTHER_READS), MemoryStore::new()),
        };
        let stock = Self(Arc::new(inner));
        let mut held = stock.held(&on_sale).await?;
        if !new_sale && held.contains(&None) {
            // Redis has never had it, or has lost it: then a running server marks that meanwhile.
            sleep(2 * LOOK_EVERY).await;
            held = stock.held(&on_sale).await?;
        }
        for ((sku, pieces), held) in on_sale.into_iter().zip(held) {
            let is_here = held.is_some_and(|held| held != LOST);
            stock.put_on_sale(&sku, pieces, new_sale && !is_here).await?;
            stock.look(&sku).await;
            tokio::spawn(stock.clone().follow(sku));
        }
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

    async fn put_on_sale(&self, sku: &Sku, pieces: u32, anew: bool) -> Result<(), StockError> {
        let key = self.key(sku, "stock");
        let mut set = pipe();
        // A running server may mark it as lost just now.
        if anew {
            set.set(&key, pieces)
        } else {
            set.set_nx(&key, pieces)
        };
        set.ignore().get(&key);
        let (kept, confirmed): (String, u32) = self.replicated(set).await?;
        if kept == LOST {
            return Err(StockError::Lost(sku.clone()));
        }
        if kept != pieces.to_string() {
            tracing::warn!(%sku, kept, asked = pieces, "the stock was set before, and is kept");
        }
        if confirmed < self.replicas.wanted {
            tracing::warn!(
                %sku,
                confirmed,
                wanted = self.replicas.wanted,
                "too few replicas: orders are answered with 503 until there are more, or the server \
                 is started with a lower --min-replicas"
            );
        }
        Ok(())
    }

    async fn follow(self, sku: Sku) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            self.look(&sku).await;
        }
    }

    /// Reads the level of an own SKU. Marks it if Redis has lost it, and reads its buyers once it is
    /// sold out.
    async fn look(&self, sku: &Sku) {
        let Some(own) = self.own.get(sku) else { return };
        let read = self.read(sku).await;
        if let Ok(None) = read {
            let mut mark = redis::cmd("SETNX");
            mark.arg(self.key(sku, "stock")).arg(LOST);
            if let Ok(true) = self.reads.query(&mark).await {
                tracing::error!(%sku, "Redis has lost a SKU on sale: it is marked as lost");
            }
        }
        let level = match read {
            Ok(level) => level.ok_or_else(|| StockError::Lost(sku.clone())),
            Err(error) => Err(error.into()),
        };
        let mut seen = lock(own);
        (seen.at, seen.level) = (Instant::now(), level);
        let Ok(level) = seen.level else { return };
        let is_known = match seen.buyers {
            Buyers::Unknown => false,
            Buyers::BeingRead => true,
            Buyers::Of(of, _) => of == level,
        };
        if level.sold < level.stock || level.sold > MOST_BUYERS {
            seen.buyers = Buyers::Unknown;
        } else if !is_known {
            seen.buyers = Buyers::BeingRead;
            tokio::spawn(self.clone().read_buyers(sku.clone(), level));
        }
    }

    /// Reads the buyers of a SKU that is sold out. Pages keep each command short.
    async fn read_buyers(self, sku: Sku, level: Level) {
        let (key, hasher) = (self.key(&sku, "buyers"), RandomState::new());
        let (mut buyers, mut cursor) = (HashSet::with_capacity(level.sold as usize), 0_u64);
        let is_read = loop {
            let mut scan = redis::cmd("HSCAN");
            scan.arg(&key).arg(cursor).arg("COUNT").arg(1000);
            let page: Result<(u64, Vec<(String, String)>), _> = self.reads.query(&scan).await;
            let Ok((next, page)) = page else { break false };
            buyers.extend(page.iter().map(|(user, _order)| hasher.hash_one(user)));
            cursor = next;
            if next == 0 {
                break true;
            }
        };
        // An operator may have changed the sale between the two reads, or Redis has lost a part.
        let is_whole = is_read && buyers.len() == level.sold as usize;
        if !is_whole {
            sleep(READ_AGAIN).await;
        }
        if let Some(own) = self.own.get(&sku) {
            let known = || Buyers::Of(level, Arc::new((hasher, buyers)));
            lock(own).buyers = if is_whole { known() } else { Buyers::Unknown };
        }
    }

    /// Tells whether a SKU is sold out, and this user has no order of it.
    ///
    /// It is right because a stock does not grow and an order does not end while the servers run: what
    /// is sold out stays sold out. Only an operator changes that, or a failover that loses orders. Then
    /// the level is another, which the next look shows. Users with an order are few, and the stock tells
    /// them its id. Without Redis nothing is known, as for all other orders.
    pub(super) fn is_sold_out_to(&self, sku: &Sku, user: &UserId) -> bool {
        let Some(own) = self.own.get(sku) else { return false };
        let buyers = {
            let seen = lock(own);
            match (&seen.level, &seen.buyers) {
                (Ok(level), Buyers::Of(of, buyers)) if level == of && seen.at.elapsed() < STALE => {
                    Arc::clone(buyers)
                }
                _ => return false,
            }
        };
        // Of a user without an order the hash may be that of a buyer: then the stock decides.
        let (hasher, buyers) = &*buyers;
        !buyers.contains(&hasher.hash_one(user.as_str()))
    }

    pub(super) async fn level(&self, sku: &Sku) -> Result<Option<Level>, StockError> {
        if let Some(own) = self.own.get(sku) {
            let seen = lock(own);
            let is_stale = seen.at.elapsed() > STALE;
            return if is_stale { Err(UNSEEN.into()) } else { seen.level.clone().map(Some) };
        }
        if let Decision::Denied(denied) = self.other_reads.check("others").await? {
            return Err(StockError::TooManyUnknown { retry_after: denied.retry_after() });
        }
        Ok(self.read(sku).await?)
    }

    async fn read(&self, sku: &Sku) -> Result<Option<Level>, StoreError> {
        let (stock, orders) = (self.key(sku, "stock"), self.key(sku, "orders"));
        let (stock, sold): (Option<String>, u32) =
            self.reads.pipeline(pipe().get(stock).hlen(orders)).await?;
        let stock = stock.and_then(|pieces| pieces.parse().ok());
        Ok(stock.map(|stock| Level { stock, sold }))
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
        let not_understood = || {
            let message = "place_order.lua gave an unknown reply".to_owned();
            StoreError::Protocol { message }
        };
        let outcome = match code {
            1 => Outcome::Placed,
            0 => Outcome::AlreadyOrdered(held.parse().map_err(|_| not_understood())?),
            -1 => return Ok(Outcome::SoldOut),
            // It is not set again: the orders are lost with it, and would be sold twice.
            -2 if self.own.contains_key(&id.sku) => return Err(StockError::Lost(id.sku.clone())),
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
        let Replicas { wanted, timeout } = self.replicas;
        if wanted == 0 {
            let (reply,) = self.orders.pipeline(&pipeline).await?;
            return Ok((reply, 0));
        }
        let patience = u64::try_from(timeout.as_millis() / 2).unwrap_or(u64::MAX).max(1);
        pipeline.cmd("WAIT").arg(wanted).arg(patience);
        self.orders.pipeline(&pipeline).await
    }

    pub(super) async fn buyer(&self, id: &OrderId) -> Result<Option<UserId>, StockError> {
        let (stock, orders) = (self.key(&id.sku, "stock"), self.key(&id.sku, "orders"));
        let (stock, user): (Option<String>, Option<String>) =
            self.reads.pipeline(pipe().get(stock).hget(orders, id.uuid.to_string())).await?;
        if stock.is_none_or(|stock| stock == LOST) && self.own.contains_key(&id.sku) {
            return Err(StockError::Lost(id.sku.clone()));
        }
        Ok(user.and_then(UserId::new))
    }

    /// The braces put all keys of one SKU into one slot of a Redis Cluster. No SKU begins with `=`, so
    /// none of them is the name of a log.
    fn key(&self, sku: &Sku, what: &str) -> String {
        format!("{}:{{{sku}}}:{what}", self.prefix)
    }
}

/// What is not known because Redis has not told it lately.
const UNSEEN: StoreError = StoreError::Timeout;

impl Deref for RedisStock {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}
