//! [`RedisStock`]: the stock of a fleet, which outlives its servers.
//!
//! One task for each SKU reads its level four times a second. What clients poll, whether Redis has lost the
//! SKU, and when a turn or the time to pay ends, follows from that, whatever the number of clients.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Value, pipe};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tower_sliding_window::{RedisCommands, RedisScript, StoreError};

use super::{Call, Level, OnSale, Outcome, Reply, Stock, StockError, Terms};
use crate::draw::{Draw, FIRST_COME};
use crate::names::{OrderId, Sku};
use example_support::lock;

/// The keys of the script: all that Redis has of a SKU, but for one by which a server asks what the replicas have.
#[rustfmt::skip]
pub(crate) const KEYS: [&str; 10] = [
    "stock", "buyers", "orders", "line", "held", "paid", "returned", "refunds", "payments", "draw",
];
const SALE: &str = include_str!("../sale.lua");
/// What stands in place of a stock that Redis has lost, so that no server that is started sells it again.
const LOST: &str = "lost";
/// How often the levels are read.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// After how long every running server has marked what Redis has lost: it reconnects within half a second, and
/// looks.
const MARKED_BY: Duration = Duration::from_millis(1500);
/// How old a level may be that is shown.
const STALE: Duration = Duration::from_secs(2);
/// For how long no order is safe after a replica has left its master, or while fewer follow a new or restarted one than
/// before: one of the others may be the next master, and Sentinels, Clusters and the other replicas take a while to follow.
const LEFT_BY: Duration = Duration::from_secs(5);
/// How long ago a replica may have replied, in whole seconds, that is taken to have what it was sent.
const LAG: u64 = 2;

/// Keeps the stock and the orders of a SKU in Redis, for every server with the same prefix.
pub(crate) struct RedisStock {
    sku: Sku,
    keys: [String; KEYS.len()],
    commands: RedisCommands,
    script: RedisScript,
    replicas: Replicas,
    terms: Terms,
    /// Those that wait for replicas.
    callers: UnboundedSender<Caller>,
    /// The seed of the draw, or what stands there instead.
    kept: String,
    pub(super) draw: Option<Draw>,
    known: Mutex<Known>,
}

/// What a server knows of a SKU.
#[derive(Default)]
struct Known {
    /// When the level was read last, and what it was.
    seen: Option<(Instant, Level)>,
    /// Why nothing can be sold, as the last look or change has told.
    trouble: Option<StockError>,
    /// How many orders and payments there were, as Redis has told for sure. A Redis with fewer has lost some.
    history: u64,
    /// The last order or payment of this server, as Redis has told for sure. Who has it has all before it.
    last: String,
    followers: Followers,
}

impl Known {
    /// Takes note of why nothing can be sold. A loss stands until a look has found the stock again.
    fn note(&mut self, trouble: Option<StockError>) {
        if self.seen.is_some() || !matches!(self.trouble, Some(StockError::Lost(_))) {
            self.trouble = trouble;
        }
    }
}

/// What Redis tells of a SKU.
struct Told {
    reply: Reply,
    history: u64,
    /// To a look.
    level: Level,
    /// If changes wait for replicas.
    replicas: Option<Replication>,
    /// Why what it tells may be lost with the master.
    risk: Option<StockError>,
}

/// Who wants to know what the replicas have of what was written before, and in which history that was.
type Caller = (String, oneshot::Sender<Result<Replication, StoreError>>);

/// What a master says of its replicas.
#[derive(Clone, Debug, Default)]
struct Replication {
    /// How many have confirmed all that was written before. Of a script, which does not wait: how many have replied of late.
    confirmed: u32,
    /// The name of what this master and its replicas have written. Another master has another.
    history: String,
    /// The addresses of those that follow it, and whether each has confirmed anything on its connection. One that has
    /// connected again may be listed twice for a while.
    online: Vec<(String, bool)>,
}

impl Replication {
    /// Reads what `INFO replication` says.
    fn of(info: &str) -> Self {
        let mut replication = Self::default();
        for line in info.lines() {
            if let Some(history) = line.strip_prefix("master_replid:") {
                history.clone_into(&mut replication.history);
            } else if let Some((name, state)) = line.split_once(",state=online,") {
                let address = name.split_once(':').map_or(name, |(_, address)| address);
                replication.online.push((address.to_owned(), !state.starts_with("offset=0,")));
                let lag = state.split(',').find_map(|it| it.strip_prefix("lag="));
                let is_recent = lag.is_some_and(|lag| lag.parse().is_ok_and(|lag: u64| lag <= LAG));
                replication.confirmed += u32::from(is_recent);
            }
        }
        replication
    }
}

/// The replicas of the master that was seen last.
#[derive(Default)]
struct Followers {
    history: String,
    known: HashSet<String>,
    /// When one of those before them had left, or did not follow another master yet.
    left: Option<Instant>,
    /// The most that there ever were.
    most: usize,
}

impl Followers {
    /// Takes note of the replicas of a master. Returns why what it has may be lost with it, if so.
    fn see(&mut self, replicas: &Replication, wanted: u32) -> Option<StockError> {
        // One that can't load what its master sends is listed again and again for an instant, and never confirms anything.
        let is_there = |(it, has_confirmed): &&(_, _)| *has_confirmed || self.known.contains(it);
        let there = replicas.online.iter().filter(is_there).map(|(it, _)| it.clone());
        let there: HashSet<_> = there.collect();
        // Who does not follow a master that is new or was restarted may be the next one.
        let has_left = match self.history == replicas.history {
            true => !self.known.is_subset(&there),
            false => replicas.online.len() < self.most,
        };
        if has_left {
            self.left = Some(Instant::now());
        }
        self.most = there.len().max(self.most);
        self.history.clone_from(&replicas.history);
        self.known = there;
        let confirmed = replicas.confirmed;
        if confirmed < wanted {
            return Some(StockError::NotReplicated { confirmed, wanted });
        }
        self.left.filter(|at| at.elapsed() < LEFT_BY).map(|_| StockError::ReplicaLeft)
    }
}

fn malformed(message: impl ToString) -> StoreError {
    StoreError::Protocol { message: message.to_string() }
}

/// How many replicas have an order before it is answered with 201.
///
/// Redis replicates after it has replied, so a failover loses what only the master had.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replicas {
    pub(crate) wanted: u32,
    /// How long Redis may take to reply, and the replicas to confirm, each.
    pub(crate) timeout: Duration,
    /// Whether the SKUs are on the nodes of a Cluster.
    pub(crate) on_cluster: bool,
}

/// Asks what the replicas have, with one `WAIT` for all who want to know meanwhile: it holds up whatever comes after it on its
/// connection.
async fn confirm_together(
    commands: RedisCommands,
    replicas: Replicas,
    key: String,
    mut queue: UnboundedReceiver<Caller>,
) {
    // A caller may come while those before it wait.
    let patience_ms = (replicas.timeout.min(STALE) * 2 / 5).as_millis().max(1) as u64;
    let mut ask = pipe();
    // It waits for what this connection has written, which is later than all that is asked about.
    ask.cmd("SET").arg(key).arg("").arg("EX").arg(60).ignore();
    ask.cmd("WAIT").arg(replicas.wanted).arg(patience_ms);
    ask.cmd("INFO").arg("replication");
    let mut callers = Vec::new();
    while queue.recv_many(&mut callers, usize::MAX).await > 0 {
        let mut told = commands.pipeline::<(u32, String)>(&ask).await;
        if let Err(StoreError::Disconnected { .. }) = told {
            told = commands.pipeline(&ask).await;
        }
        let told =
            told.map(|(confirmed, info)| Replication { confirmed, ..Replication::of(&info) });
        // What it is asked about was executed.
        let told = told.map_err(|error| StoreError::Uncertain { error: Box::new(error) });
        let mut is_elsewhere = false;
        for (of, caller) in callers.drain(..) {
            let mut told = told.clone();
            if let Ok(it) = &mut told
                && it.history != of
            {
                // Another master may lack what that of the caller has told.
                (it.confirmed, is_elsewhere) = (0, true);
            }
            let _ = caller.send(told);
        }
        if is_elsewhere && !replicas.on_cluster {
            // One of the two masters is the old one. The next connection leads to where the name does now.
            let _ = commands.query::<Value>(&redis::cmd("QUIT")).await;
        }
    }
}

impl RedisStock {
    /// Puts new SKUs on sale. A SKU that is there already keeps its stock, its draw and its orders, so a server
    /// may be restarted at any time. One that Redis has lost is an error.
    ///
    /// The connection that waits for replicas must be its own, because `WAIT` holds up what is sent after it.
    pub(crate) async fn open(
        waiting: RedisCommands,
        commands: RedisCommands,
        prefix: &str,
        on_sale: &[(Sku, u32)],
        replicas: Replicas,
        terms: Terms,
    ) -> Result<Stock, StockError> {
        // The braces put all keys of one SKU into one slot of a Redis Cluster. No SKU begins with `=`, so none of them is
        // the name of a log.
        let key = |sku: &Sku, what: &str| format!("{prefix}:{{{sku}}}:{what}");
        for (sku, _) in on_sale {
            let exists = redis::cmd("GET").arg(key(sku, KEYS[0])).to_owned();
            if commands.query::<Option<String>>(&exists).await?.is_none() {
                // It is new, or Redis has lost it: then a running server marks that meanwhile.
                sleep(MARKED_BY).await;
                break;
            }
        }
        let queue = |(sku, _): &(Sku, u32)| {
            let (callers, queue) = unbounded_channel();
            let key = key(sku, "confirmed");
            tokio::spawn(confirm_together(waiting.clone(), replicas, key, queue));
            callers
        };
        // On a Cluster those of a SKU wait at its node.
        let count = if replicas.on_cluster { on_sale.len() } else { 1 };
        let queues: Vec<_> = on_sale.iter().take(count).map(queue).collect();
        let mut stock = Vec::new();
        for ((sku, pieces), callers) in on_sale.iter().zip(queues.iter().cycle()) {
            let keys = KEYS.map(|what| key(sku, what));
            let kept = put_on_sale(&commands, sku, *pieces, &keys, terms.draws).await?;
            let wanted = replicas.wanted;
            // Until they have confirmed something.
            let trouble =
                (wanted > 0).then_some(StockError::NotReplicated { confirmed: 0, wanted });
            let opened = Arc::new(Self {
                sku: sku.clone(),
                keys,
                commands: commands.clone(),
                script: RedisScript::new(SALE),
                replicas,
                terms: terms.clone(),
                callers: callers.clone(),
                draw: Draw::of(&kept),
                kept,
                known: Mutex::new(Known { trouble, ..Known::default() }),
            });
            opened.look().await?;
            tokio::spawn(Arc::clone(&opened).follow());
            stock.push((sku.clone(), OnSale::Redis(opened)));
        }
        Ok(stock)
    }

    async fn follow(self: Arc<Self>) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let _ = self.look().await;
        }
    }

    /// Reads the level, does what its time has come for, and marks the SKU if Redis has lost it.
    async fn look(self: &Arc<Self>) -> Result<(), StockError> {
        let last = lock(&self.known).last.clone();
        let told = self.ask("tick", &self.kept, &last, 0).await;
        let mut known = lock(&self.known);
        let Told { reply, history, level, replicas, risk } = told.inspect_err(|error| {
            // Until it is stale, the level before is shown.
            known.seen = known.seen.filter(|_| !matches!(error, StockError::Lost(_)));
            known.note(Some(error.clone()));
        })?;
        let there = |it: &Level| it.entries + it.turns + it.sold;
        let before = known.seen.replace((Instant::now(), level)).map_or(0, |it| there(&it.1));
        let entries = before.saturating_sub(there(&level));
        if entries > 0 && self.terms.opening.opens_in().is_some() {
            let sku = &self.sku;
            tracing::error!(%sku, entries, "Redis has lost entries: their users have to enter again");
        }
        let refused = reply.order.split_once(' ').map(|(code, message)| {
            StoreError::Refused { code: code.to_owned(), message: message.to_owned() }.into()
        });
        let trouble = refused.or(risk);
        // What was not confirmed stays so until the replicas confirm it: the next look may be at another master.
        if trouble.is_some() || self.replicas.wanted == 0 {
            known.note(trouble);
        } else if let Some(by) = replicas
            // A failover may take back what too few replicas have.
            && (history > known.history || known.trouble.is_some())
        {
            let stock = Arc::clone(self);
            tokio::spawn(async move { stock.confirm(by, history).await });
        }
        Ok(())
    }

    /// Returns the level as it was read last, until it is stale.
    pub(super) fn level(&self) -> Result<Level, StockError> {
        let known = lock(&self.known);
        match (&known.trouble, known.seen) {
            (Some(lost @ StockError::Lost(_)), _) => Err(lost.clone()),
            (_, Some((at, level))) if at.elapsed() <= STALE => Ok(level),
            _ => Err(StoreError::Unavailable.into()),
        }
    }

    pub(super) fn trouble(&self) -> Option<StockError> {
        let trouble = lock(&self.known).trouble.clone();
        trouble.or_else(|| self.level().err())
    }

    /// Makes a call. A change waits for the replicas.
    pub(super) async fn call(&self, call: Call<'_>) -> Result<Reply, StockError> {
        let uuid = |order: &OrderId| order.uuid.to_string();
        let (op, subject, value, more) = match call {
            Call::Order { user, order, ticket } => ("order", user.as_str(), &*uuid(order), ticket),
            Call::Pay { order, payment, is_real } => {
                ("pay", &*uuid(order), payment, is_real.into())
            }
            Call::Enter { user, place } => ("enter", user.as_str(), &*place.to_string(), 0),
            Call::Entry(user) => ("entry", user.as_str(), "", 0),
        };
        let told = match self.ask(op, subject, value, more).await {
            // Redis may have made the change. To make it again is safe. After a timeout there is no time left
            // for that.
            Err(StockError::Store(error))
                if error.may_have_counted() && !matches!(error, StoreError::Timeout) =>
            {
                self.ask(op, subject, value, more).await.map_err(|_| error)?
            }
            told => told?,
        };
        let Told { reply, history, replicas, .. } = told;
        // Who gets nothing has nothing that could be lost.
        let gets_nothing = [Outcome::SoldOut, Outcome::TurnOver, Outcome::Over];
        if let Some(by) = replicas.filter(|_| !gets_nothing.contains(&reply.outcome))
            && let Some(trouble) = self.confirm(by, history).await
        {
            return Err(trouble);
        }
        match reply.outcome {
            Outcome::Placed => lock(&self.known).last.clone_from(&reply.order),
            Outcome::Paid if op == "pay" => value.clone_into(&mut lock(&self.known).last),
            _ => {}
        }
        Ok(reply)
    }

    /// Calls the script.
    async fn ask(
        &self,
        op: &str,
        subject: &str,
        value: &str,
        more: u64,
    ) -> Result<Told, StockError> {
        let Terms { opening, turn, pay_within, .. } = &self.terms;
        // No turn is given while the sale is closed.
        let turn_us = opening.opens_in().map_or(turn.as_micros(), |_| 0) as u64;
        let opening = self.draw.as_ref().map(|_| opening.micros().to_string()).unwrap_or_default();
        let terms = (opening, turn_us, pay_within.as_micros() as u64);
        let (waits, history) = (self.replicas.wanted > 0, lock(&self.known).history);
        let arguments = (op, terms, history, subject, value, more, u8::from(waits));
        type Counts = (u32, u32, u32, u32, u32);
        type Raw = (String, String, u64, u64, u64, u64, Option<Counts>, Option<String>);
        let told: Raw = self.commands.script(&self.script, &self.keys, arguments).await?;
        let (outcome, order, number, now_us, news_us, history, counts, info) = told;
        let outcome = serde_json::from_value(outcome.into()).map_err(malformed)?;
        if outcome == Outcome::Lost {
            // It is not set again: the orders are lost with it, and would be sold twice.
            return Err(StockError::Lost(self.sku.clone()));
        }
        let (stock, sold, paid, entries, turns) = counts.unwrap_or_default();
        let replicas = info.as_deref().map(Replication::of);
        let mut known = lock(&self.known);
        if !waits {
            known.history = known.history.max(history);
        }
        let risk = replicas.as_ref().and_then(|it| known.followers.see(it, self.replicas.wanted));
        let reply = Reply { outcome, order, number, now_us, news_us };
        let level = Level { stock, sold, paid, entries, turns };
        Ok(Told { reply, history, level, replicas, risk })
    }

    /// Returns why what a call to this master has told may be lost with it, if so. Otherwise takes note of how many orders and
    /// payments there were.
    async fn confirm(&self, told_by: Replication, count: u64) -> Option<StockError> {
        let (caller, replicas) = oneshot::channel();
        let _ = self.callers.send((told_by.history.clone(), caller));
        let ended = || Err(malformed("the task that asks for the replicas has ended"));
        let replicas = replicas.await.unwrap_or_else(|_| ended());
        let mut known = lock(&self.known);
        let trouble = match replicas {
            Ok(replicas) => known.followers.see(&replicas, self.replicas.wanted),
            Err(error) => Some(error.into()),
        };
        if trouble.is_none() {
            known.history = known.history.max(count);
        }
        known.note(trouble.clone());
        trouble
    }
}

/// Sets the stock and the draw of a SKU that is new. Returns the seed that Redis keeps, or what stands there instead.
async fn put_on_sale(
    commands: &RedisCommands,
    sku: &Sku,
    pieces: u32,
    keys: &[String; KEYS.len()],
    draws: bool,
) -> Result<String, StockError> {
    let [stock, .., draw] = keys;
    let mode = if draws { Draw::seed() } else { FIRST_COME.to_owned() };
    let mut set = pipe();
    // Both or neither: of a stock whose draw is lost, nobody knows the seed.
    set.cmd("MSETNX").arg(stock).arg(pieces).arg(draw).arg(mode).ignore();
    set.get(stock).get(draw);
    let found = commands.pipeline::<(Option<String>, Option<String>)>(&set).await?;
    let (Some(there), Some(kept)) = found else { return Err(StockError::Lost(sku.clone())) };
    if there == LOST {
        return Err(StockError::Lost(sku.clone()));
    }
    if there != pieces.to_string() {
        tracing::warn!(%sku, kept = there, asked = pieces, "the stock was set before, and is kept");
    }
    if draws == (kept == FIRST_COME) {
        let kept = if draws { FIRST_COME } else { "draw" };
        tracing::warn!(%sku, kept, "the mode of the sale was set before, and is kept");
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What one look after another sees: a history, and the name and the offset of each replica.
    #[tokio::test(start_paused = true)]
    async fn replica_that_connects_again_or_has_no_data_has_not_left() {
        let cases = [
            // It is listed twice, before its master has missed the old connection.
            ("A a1, A a1 a1", false),
            ("A a1, A a0, A a1", false),
            ("A a1, A b0 a1, A a1", false),
            ("A a1 b1, A a1", true),
            // It may be the new master, although as many follow the old one as before.
            ("A a1, A b1", true),
            // Of a new or restarted master, it may not be there yet.
            ("A a1, B b1, A a1", false),
            ("A a1 b1, B a1", true),
        ];
        for (looks, has_left) in cases {
            let mut followers = Followers::default();
            let look = |look: &str| {
                let (history, replicas) = look.split_once(' ').unwrap();
                let replicas = replicas.split(' ').map(|it| it.split_at(1));
                let line = |(name, offset): (&str, &str)| {
                    format!("slave0:{name},state=online,offset={offset},lag=0,type=replica\r\n")
                };
                let replicas: String = replicas.map(line).collect();
                Replication::of(&format!("{replicas}master_replid:{history}\r\n"))
            };
            let looks: Vec<_> = looks.split(", ").map(look).collect();
            let risks = looks.iter().map(|it| followers.see(it, 1).is_some());
            assert_eq!(risks.last(), Some(has_left), "{looks:?}");
            tokio::time::advance(LEFT_BY).await;
            assert!(
                followers.see(&looks[looks.len() - 1], 1).is_none(),
                "the others follow by then"
            );
        }
    }
}
