//! [`RedisStock`]: the stock of a fleet, which outlives its servers.
//!
//! One task for each SKU reads its level four times a second. What clients poll, whether Redis has lost the
//! SKU, and when a turn or the time to pay ends, follows from that, whatever the number of clients.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
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
pub(crate) const KEYS: [&str; 11] = [
    "stock", "buyers", "orders", "line", "turns", "unpaid", "paid", "returned", "refunds", "payments", "draw",
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
    /// When the level was read, and what it was.
    seen: Mutex<(Instant, Result<Level, StockError>)>,
    /// Why nothing can be sold all the same, as the last look or change has told.
    trouble: Mutex<Option<StockError>>,
    /// How many orders and payments there were, as Redis has told for sure. A Redis with fewer has lost some.
    history: AtomicU64,
    /// The last order or payment of this server, as Redis has told for sure. Who has it has all before it.
    last: Mutex<String>,
    followers: Mutex<Followers>,
}

/// Who wants to know what the replicas have of what was written before, and in which history that was.
type Caller = (String, oneshot::Sender<Result<Replication, StoreError>>);
type Told = (String, String, u64, u64, u64, u64, Vec<u32>, String);

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

/// What a master says of its replicas.
#[derive(Clone)]
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
    fn of(info: &str) -> Self {
        let field = |name| info.lines().find_map(|line| line.strip_prefix(name));
        let online = || info.lines().filter(|line| line.contains(",state=online,"));
        let lag = |line: &str| line.split_once(",lag=")?.1.split(',').next()?.parse::<u64>().ok();
        let replica = |line: &str| {
            let address = line.split_once(':')?.1.split_once(",state=")?.0.to_owned();
            Some((address, !line.contains(",offset=0,")))
        };
        Self {
            confirmed: online().filter_map(lag).filter(|lag| *lag <= LAG).count() as u32,
            history: field("master_replid:").unwrap_or_default().to_owned(),
            online: online().filter_map(replica).collect(),
        }
    }
}

impl Followers {
    /// Takes note of the replicas of a master. Returns whether one has left it of late.
    fn see(&mut self, replicas: &Replication) -> bool {
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
        self.left.is_some_and(|at| at.elapsed() < LEFT_BY)
    }
}

/// What came of a call.
struct Sent {
    reply: Reply,
    /// What a look has seen.
    level: Vec<u32>,
    /// Why the change may not be safe.
    trouble: Option<StockError>,
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
        let told = told
            .map(|(confirmed, info)| Replication { confirmed, ..Replication::of(&info) })
            .map_err(|error| match error {
                StoreError::Timeout => error,
                // What it is asked about was executed.
                error => StoreError::Uncertain { error: Box::new(error) },
            });
        let is_elsewhere = |it: &Replication| callers.iter().any(|(of, _)| *of != it.history);
        if told.as_ref().is_ok_and(is_elsewhere) && !replicas.on_cluster {
            // One of the two masters is the old one. The next connection leads to where the name does now.
            let _ = commands.query::<Value>(&redis::cmd("QUIT")).await;
        }
        callers.drain(..).for_each(|(_, caller)| drop(caller.send(told.clone())));
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
        let mut stock = Stock::new();
        for ((sku, pieces), callers) in on_sale.iter().zip(queues.iter().cycle()) {
            let keys = KEYS.map(|what| key(sku, what));
            let kept = put_on_sale(&commands, sku, *pieces, &keys, terms.draws).await?;
            let wanted = replicas.wanted;
            let nothing =
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
                seen: Mutex::new((Instant::now(), Err(StoreError::Unavailable.into()))),
                // Until they have confirmed something.
                trouble: Mutex::new(nothing),
                history: AtomicU64::new(0),
                last: Mutex::default(),
                followers: Mutex::default(),
            });
            opened.look().await?;
            tokio::spawn(Arc::clone(&opened).follow());
            stock.insert(sku.clone(), OnSale::Redis(opened));
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
        let last = lock(&self.last).clone();
        let looked = self.send("tick", &self.kept, &last, 0).await;
        let looked = looked.and_then(|Sent { reply, level, trouble }| {
            let [stock, sold, paid, entries, turns] = level[..] else {
                return Err(malformed("expected a level").into());
            };
            let refused = reply.order.split_once(' ').map(|(code, message)| {
                StoreError::Refused { code: code.to_owned(), message: message.to_owned() }.into()
            });
            Ok((Level { stock, sold, paid, entries, turns }, refused.or(trouble)))
        });
        let (sku, mut seen) = (&self.sku, lock(&self.seen));
        let there = |it: &Level| it.entries + it.turns + it.sold;
        if let (Ok(before), Ok((level, _))) = (&seen.1, &looked)
            && there(level) < there(before)
            && self.terms.opening.opens_in().is_some()
        {
            let entries = there(before) - there(level);
            tracing::error!(%sku, entries, "Redis has lost entries: their users have to enter again");
        }
        let (level, trouble) = match &looked {
            Ok((level, trouble)) => (Some(Ok(*level)), trouble.clone()),
            Err(lost @ StockError::Lost(_)) => (Some(Err(lost.clone())), None),
            // Until it is stale, the level before is shown.
            Err(error) => (None, Some(error.clone())),
        };
        // What was not confirmed stays so until the replicas confirm it: the next look may be at another master.
        if trouble.is_some() || self.replicas.wanted == 0 || looked.is_err() {
            *lock(&self.trouble) = trouble;
        }
        if let Some(level) = level {
            *seen = (Instant::now(), level);
        }
        looked.map(drop)
    }

    pub(super) fn level(&self) -> Result<Level, StockError> {
        let (at, level) = &*lock(&self.seen);
        if at.elapsed() > STALE { Err(StoreError::Unavailable.into()) } else { level.clone() }
    }

    pub(super) fn trouble(&self) -> Option<StockError> {
        let trouble = lock(&self.trouble).clone();
        trouble.or_else(|| self.level().err())
    }

    pub(super) async fn call(self: &Arc<Self>, call: Call<'_>) -> Result<Reply, StockError> {
        let uuid = |order: &OrderId| order.uuid.to_string();
        let (op, subject, value, more) = match call {
            Call::Order { user, order, ticket } => ("order", user.as_str(), &*uuid(order), ticket),
            Call::Pay { order, payment, is_real } => {
                ("pay", &*uuid(order), payment, u64::from(is_real))
            }
            Call::Enter(user) => {
                let place = self.draw.as_ref().map_or(0, |draw| draw.score(user));
                ("enter", user.as_str(), &*place.to_string(), 0)
            }
            Call::Entry(user) => ("entry", user.as_str(), "", 0),
        };
        let sent = match self.send(op, subject, value, more).await {
            // Redis may have made the change. To make it again is safe. After a timeout there is no time left
            // for that.
            Err(StockError::Store(error))
                if error.may_have_counted() && !matches!(error, StoreError::Timeout) =>
            {
                self.send(op, subject, value, more).await.map_err(|_| error)?
            }
            sent => sent?,
        };
        sent.trouble.map_or(Ok(sent.reply), Err)
    }

    /// Sends a call to the script. A change waits for the replicas.
    async fn send(
        self: &Arc<Self>,
        op: &str,
        subject: &str,
        value: &str,
        more: u64,
    ) -> Result<Sent, StockError> {
        let opening = self.draw.as_ref().map(|_| self.terms.opening.micros().to_string());
        let terms = (opening.unwrap_or_default(), self.terms.turn_us(), self.terms.pay_us());
        let (wanted, history) = (self.replicas.wanted, self.history.load(Ordering::Relaxed));
        let arguments = (op, terms, history, subject, value, more, u8::from(wanted > 0));
        let told: Told = self.commands.script(&self.script, &self.keys, arguments).await?;
        let (outcome, order, number, now_us, news_us, history, level, info) = told;
        let outcome = serde_json::from_value(outcome.into()).map_err(malformed)?;
        if outcome == Outcome::Lost {
            // It is not set again: the orders are lost with it, and would be sold twice.
            return Err(StockError::Lost(self.sku.clone()));
        }
        let replicas = (!info.is_empty()).then(|| Replication::of(&info));
        let mut trouble = replicas.as_ref().and_then(|it| self.risk(it));
        let is_unsure =
            history > self.history.load(Ordering::Relaxed) || lock(&self.trouble).is_some();
        match replicas {
            None if wanted == 0 => drop(self.history.fetch_max(history, Ordering::Relaxed)),
            // Nobody got anything that could be lost.
            Some(_) if matches!(outcome, Outcome::SoldOut | Outcome::TurnOver | Outcome::Over) => {
                trouble = None;
            }
            Some(by) if op != "tick" => trouble = self.confirm(by, history).await,
            // A failover may take back what too few replicas have.
            Some(by) if is_unsure && trouble.is_none() => {
                let stock = Arc::clone(self);
                tokio::spawn(async move { stock.confirm(by, history).await });
            }
            _ => {}
        }
        match outcome {
            _ if trouble.is_some() => {}
            Outcome::Placed => lock(&self.last).clone_from(&order),
            Outcome::Paid if op == "pay" => value.clone_into(&mut lock(&self.last)),
            _ => {}
        }
        Ok(Sent { reply: Reply { outcome, order, number, now_us, news_us }, level, trouble })
    }

    /// Returns why what the master has may be lost with it, if so.
    fn risk(&self, replicas: &Replication) -> Option<StockError> {
        let left = lock(&self.followers).see(replicas);
        let (confirmed, wanted) = (replicas.confirmed, self.replicas.wanted);
        if confirmed < wanted {
            return Some(StockError::NotReplicated { confirmed, wanted });
        }
        left.then_some(StockError::ReplicaLeft)
    }

    /// Returns why what a call to this master has told may be lost with it, if so. Otherwise takes note of how many orders and
    /// payments there were.
    async fn confirm(&self, told_by: Replication, count: u64) -> Option<StockError> {
        let (caller, replicas) = oneshot::channel();
        let _ = self.callers.send((told_by.history.clone(), caller));
        let replicas =
            replicas.await.map_err(|_| malformed("the task that asks for the replicas has ended"));
        let confirmed = replicas.and_then(|it| it).map(|mut replicas| {
            // Another master may lack what this one has told.
            if replicas.history != told_by.history {
                replicas.confirmed = 0;
            }
            self.risk(&replicas)
        });
        let trouble = confirmed.unwrap_or_else(|error| Some(error.into()));
        if trouble.is_none() {
            self.history.fetch_max(count, Ordering::Relaxed);
        }
        lock(&self.trouble).clone_from(&trouble);
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

    /// What one look after another sees: a history, and a name for each replica, its offset, and how long ago it has
    /// replied.
    #[test]
    fn replica_that_connects_again_or_has_no_data_has_not_left() {
        type Look<'a> = (&'a str, &'a [(&'a str, u32, u32)]);
        let cases: &[(&[Look], bool)] = &[
            // It is listed twice, before its master has missed the old connection.
            (&[("A", &[("a", 1, 0)]), ("A", &[("a", 1, 0), ("a", 1, 40)])], false),
            (&[("A", &[("a", 1, 0)]), ("A", &[("a", 0, 0)]), ("A", &[("a", 1, 0)])], false),
            (
                &[("A", &[("a", 1, 0)]), ("A", &[("b", 0, 0), ("a", 1, 0)]), ("A", &[("a", 1, 9)])],
                false,
            ),
            (&[("A", &[("a", 1, 0), ("b", 1, 0)]), ("A", &[("a", 1, 0)])], true),
            (&[("A", &[("a", 1, 0)]), ("A", &[("b", 1, 0)])], true),
            // Of a new or restarted master, it may not be there yet.
            (&[("A", &[("a", 1, 0)]), ("B", &[("b", 1, 0)]), ("A", &[("a", 1, 0)])], false),
            (&[("A", &[("a", 1, 0), ("b", 1, 0)]), ("B", &[("a", 1, 0)])], true),
        ];
        for (looks, has_left) in cases {
            let mut followers = Followers::default();
            let left = looks.iter().map(|(history, replicas)| {
                let line = |(address, offset, lag): &_| {
                    format!(
                        "slave0:{address},state=online,offset={offset},lag={lag},type=replica\r\n"
                    )
                };
                let replicas: String = replicas.iter().map(line).collect();
                followers.see(&Replication::of(&format!("{replicas}master_replid:{history}\r\n")))
            });
            assert_eq!(left.last(), Some(*has_left), "{looks:?}");
        }
    }
}
