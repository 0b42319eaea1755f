//! [`RedisStock`]: the stock of a fleet, which outlives its servers.
//!
//! One task for each SKU reads its level four times a second. What clients poll, whether Redis has lost the
//! SKU, and when a turn or the time to pay ends, follows from that, whatever the number of clients.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{FromRedisValue, RedisResult, Script, Value, pipe};
use serde::Deserialize;
use serde::de::IntoDeserializer;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tower_sliding_window::StoreError;
use tower_sliding_window::{RedisCommands, RedisScript};

use super::{Call, Level, Outcome, Reply, StockError, Terms};
use crate::draw::{Draw, FIRST_COME};
use crate::names::{Sku, UserId};
use example_support::lock;

/// The keys of the script: all that Redis has of a SKU.
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
/// How long after a replica has left its master nothing on that is safe: it may be the next master, and Sentinels, Clusters
/// and the other replicas take a while to follow it.
const LEFT_BY: Duration = Duration::from_secs(5);
/// How long ago a replica may have replied, in whole seconds, that is taken to have what it was sent.
const LAG: u64 = 2;
/// The most masters of a SKU that are remembered: each failover, and each move of its slot, has another.
const MOST_HISTORIES: usize = 64;
/// The most calls that wait for replicas together.
const MOST_TOGETHER: usize = 128;

/// Keeps stock and orders in Redis, for every server with the same prefix.
pub(crate) struct RedisStock {
    reads: RedisCommands,
    prefix: String,
    replicas: Replicas,
    script: RedisScript,
    terms: Terms,
    on_sale: HashMap<Sku, OnSale>,
}

/// The keys and the arguments of a call that waits for replicas, since when it does, and who wants to know what came of it
/// and what the replicas have.
type Job = ([Vec<String>; 2], Instant, oneshot::Sender<Result<(Told, Replication), StoreError>>);
type Told = (String, String, u64, u64, u64, u64, Vec<u32>, String);

/// Of a history the replicas that there were last, and when one of those before them had left.
type Followers = (Vec<String>, Option<Instant>);

/// What a master says of its replicas.
#[derive(Clone)]
struct Replication {
    /// How many have confirmed all that was written before. Of a look, which does not wait: how many have replied of late.
    confirmed: u32,
    /// The name of what this master and its replicas have written. Another master has another.
    history: String,
    /// How far the master is in it.
    offset: u64,
    /// The addresses of those that follow it, which several may share, and how far each of them has confirmed to be.
    online: Vec<(String, u64)>,
}

impl Replication {
    fn of(info: &str) -> Self {
        let field = |name| info.lines().find_map(|line| line.strip_prefix(name));
        let online = || info.lines().filter(|line| line.contains(",state=online,"));
        let number = |line: &str, name: &str| {
            line.split_once(name)?.1.split(',').next()?.parse::<u64>().ok()
        };
        let is_in_time = |line: &&str| number(line, ",lag=").is_some_and(|lag| lag <= LAG);
        let replica = |line: &str| {
            let address = line.split_once(':')?.1.split_once(",state=")?.0;
            Some((address.to_owned(), number(line, ",offset=")?))
        };
        Self {
            confirmed: online().filter(is_in_time).count() as u32,
            history: field("master_replid:").unwrap_or_default().to_owned(),
            offset: field("master_repl_offset:").and_then(|it| it.parse().ok()).unwrap_or(u64::MAX),
            online: online().filter_map(replica).collect(),
        }
    }
}

/// How many orders and payments a look has seen, and where the master was then, in which history. It is sure once the
/// replicas are there.
#[derive(Default)]
struct Unsure {
    count: u64,
    history: String,
    offset: u64,
}

struct OnSale {
    /// The calls that wait for replicas.
    jobs: mpsc::UnboundedSender<Job>,
    /// The seed of the draw, or what stands there instead.
    kept: String,
    draw: Option<Draw>,
    /// When the level was read, what it was, and why nothing can be sold all the same.
    seen: Mutex<(Instant, Result<Level, StockError>, Option<StockError>)>,
    /// How many orders and payments there were, as Redis has told for sure. A Redis with fewer has lost some.
    history: AtomicU64,
    unsure: Mutex<Unsure>,
    /// The last order and the last payment, as Redis has told for sure.
    last: Mutex<[String; 2]>,
    followers: Mutex<HashMap<String, Followers>>,
}

impl OnSale {
    /// Returns why what the master has may be lost with it, if so.
    fn trouble(&self, replicas: &Replication, wanted: u32) -> Option<StockError> {
        let mut histories = lock(&self.followers);
        if histories.len() >= MOST_HISTORIES {
            histories.clear();
        }
        // Those of an old master stay: one connection may be to it, and another to the new one.
        let (online, left) = histories.entry(replicas.history.clone()).or_default();
        let are_there: Vec<_> =
            replicas.online.iter().map(|(address, _)| address.clone()).collect();
        if online.iter().any(|it| !are_there.contains(it)) {
            *left = Some(Instant::now());
        }
        *online = are_there;
        let confirmed = replicas.confirmed;
        if confirmed < wanted {
            return Some(StockError::NotReplicated { confirmed, wanted });
        }
        left.is_some_and(|at| at.elapsed() < LEFT_BY).then_some(StockError::ReplicaLeft)
    }

    /// Takes note of how many orders and payments a look has seen. A failover may take back what too few replicas have, and
    /// these confirm once a second what they have. So what one look has seen is kept until a later one finds it there.
    fn note_seen(&self, count: u64, replicas: Replication, wanted: u32) {
        let mut unsure = lock(&self.unsure);
        if unsure.history == replicas.history {
            let confirmed = replicas.online.iter().filter(|(_, at)| *at >= unsure.offset).count();
            if confirmed < wanted as usize {
                return;
            }
            self.history.fetch_max(unsure.count, Ordering::Relaxed);
        }
        let Replication { history, offset, .. } = replicas;
        *unsure = Unsure { count, history, offset };
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
    /// How long Redis may take to reply, and the replicas to confirm, together.
    pub(crate) timeout: Duration,
    /// Whether the SKUs are on the nodes of a Cluster.
    pub(crate) on_cluster: bool,
}

/// Makes the calls that have come meanwhile, with one `WAIT` for all of them: it holds up whatever comes after it on its
/// connection.
async fn wait_together(
    commands: RedisCommands,
    replicas: Replicas,
    mut queue: mpsc::UnboundedReceiver<Job>,
) {
    let Replicas { wanted, timeout, on_cluster } = replicas;
    // A call may come while those before it wait.
    let patience_ms = (timeout.min(STALE) * 2 / 5).as_millis().max(1) as u64;
    let script = Script::new(SALE);
    let mut jobs = Vec::new();
    while queue.recv_many(&mut jobs, MOST_TOGETHER).await > 0 {
        let (mut calls, mut callers) = (pipe(), Vec::with_capacity(jobs.len()));
        for ([keys, arguments], since, caller) in jobs.drain(..) {
            if since.elapsed() < timeout {
                // The first call brings the script, which a new master does not have.
                let [command, text] = if callers.is_empty() {
                    ["EVAL", SALE]
                } else {
                    ["EVALSHA", script.get_hash()]
                };
                calls.cmd(command).arg(text).arg(keys.len()).arg(keys).arg(arguments);
                callers.push(caller);
            } else {
                // Whoever has sent it was told that it has failed.
                let _ = caller.send(Err(StoreError::Overloaded));
            }
        }
        if callers.is_empty() {
            continue;
        }
        calls.cmd("WAIT").arg(wanted).arg(patience_ms);
        calls.cmd("INFO").arg("replication");
        if !on_cluster {
            // The others may be of other SKUs. On a Cluster an error says where the SKU is.
            calls.ignore_errors();
        }
        let made = commands.pipeline::<Vec<RedisResult<Value>>>(&calls).await;
        match made.map_err(after_all) {
            Ok(mut replies) => {
                let info = replies.pop().map_or(Ok(String::new()), reading::<String>);
                let confirmed = replies.pop().map_or(Ok(0), reading::<u32>);
                let replicas = confirmed
                    .and_then(|confirmed| Ok(Replication { confirmed, ..Replication::of(&info?) }))
                    .map_err(after_all);
                for (caller, reply) in callers.into_iter().zip(replies) {
                    let told = reading(reply).and_then(|told| Ok((told, replicas.clone()?)));
                    let _ = caller.send(told);
                }
            }
            Err(error) => callers.into_iter().for_each(|it| drop(it.send(Err(error.clone())))),
        }
    }
}

fn reading<T: FromRedisValue>(reply: RedisResult<Value>) -> Result<T, StoreError> {
    redis::from_redis_value(reply.map_err(StoreError::from)?).map_err(malformed)
}

/// Returns an error of one of several commands: the others may have been executed.
fn after_all(error: StoreError) -> StoreError {
    match error {
        StoreError::Refused { .. } => StoreError::Uncertain { source: Box::new(error) },
        error => error,
    }
}

impl RedisStock {
    /// Puts new SKUs on sale. A SKU that is there already keeps its stock, its draw and its orders, so a server
    /// may be restarted at any time. One that Redis has lost is an error.
    ///
    /// The connection of the orders must be their own if replicas are waited for, because `WAIT` holds up what is
    /// sent after it.
    pub(crate) async fn open(
        orders: RedisCommands,
        reads: RedisCommands,
        prefix: &str,
        on_sale: &[(Sku, u32)],
        replicas: Replicas,
        terms: Terms,
    ) -> Result<Arc<Self>, StockError> {
        let mut stock = Self {
            reads,
            prefix: prefix.to_owned(),
            replicas,
            script: RedisScript::new(SALE),
            terms,
            on_sale: HashMap::new(),
        };
        for (sku, _) in on_sale {
            let exists = redis::cmd("GET").arg(stock.key(sku, "stock")).to_owned();
            if stock.reads.query::<Option<String>>(&exists).await?.is_none() {
                // It is new, or Redis has lost it: then a running server marks that meanwhile.
                sleep(MARKED_BY).await;
                break;
            }
        }
        let queue = || {
            let (jobs, queue) = mpsc::unbounded_channel();
            tokio::spawn(wait_together(orders.clone(), replicas, queue));
            jobs
        };
        let all = queue();
        for (sku, pieces) in on_sale {
            // On a Cluster those of a SKU wait at its node.
            let jobs = if replicas.on_cluster { queue() } else { all.clone() };
            let put = stock.put_on_sale(sku, *pieces, jobs).await?;
            stock.on_sale.insert(sku.clone(), put);
            stock.look(sku).await?;
        }
        let stock = Arc::new(stock);
        for (sku, _) in on_sale {
            tokio::spawn(Arc::clone(&stock).follow(sku.clone()));
        }
        Ok(stock)
    }

    async fn put_on_sale(
        &self,
        sku: &Sku,
        pieces: u32,
        jobs: mpsc::UnboundedSender<Job>,
    ) -> Result<OnSale, StockError> {
        let [stock, draw] = ["stock", "draw"].map(|what| self.key(sku, what));
        let mode = if self.terms.draws { Draw::seed() } else { FIRST_COME.to_owned() };
        let mut set = pipe();
        // Both or neither: of a stock whose draw is lost, nobody knows the seed.
        set.cmd("MSETNX").arg(&stock).arg(pieces).arg(&draw).arg(mode).ignore();
        set.get(&stock).get(&draw);
        type Kept = (Option<String>, Option<String>);
        let (Some(pieces_kept), Some(kept)) = self.reads.pipeline::<Kept>(&set).await? else {
            return Err(StockError::Lost(sku.clone()));
        };
        if pieces_kept == LOST {
            return Err(StockError::Lost(sku.clone()));
        }
        if pieces_kept != pieces.to_string() {
            tracing::warn!(%sku, kept = pieces_kept, asked = pieces, "the stock was set before, and is kept");
        }
        let draw = Draw::of(&kept);
        if draw.is_some() != self.terms.draws {
            let kept = if draw.is_some() { "draw" } else { FIRST_COME };
            tracing::warn!(%sku, kept, "the mode of the sale was set before, and is kept");
        }
        let unseen = (Instant::now(), Err(StoreError::Unavailable.into()), None);
        Ok(OnSale {
            jobs,
            kept,
            draw,
            seen: Mutex::new(unseen),
            history: AtomicU64::new(0),
            unsure: Mutex::default(),
            last: Mutex::default(),
            followers: Mutex::default(),
        })
    }

    async fn follow(self: Arc<Self>, sku: Sku) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let _ = self.look(&sku).await;
        }
    }

    /// Reads the level of a SKU, does what its time has come for, and marks it if Redis has lost it.
    async fn look(&self, sku: &Sku) -> Result<(), StockError> {
        let Some(OnSale { kept, seen, last, .. }) = self.on_sale.get(sku) else { return Ok(()) };
        let [order, payment] = lock(last).clone();
        let tick = ["tick".to_owned(), kept.clone(), order, payment];
        let looked = self.send(sku, &tick).await.and_then(|Sent { reply, level, trouble }| {
            let [stock, sold, paid, entries, turns] = level[..] else {
                return Err(malformed("expected a level").into());
            };
            let refused = reply.order.split_once(' ').map(|(code, message)| {
                StoreError::Refused { code: code.to_owned(), message: message.to_owned() }.into()
            });
            Ok((Level { stock, sold, paid, entries, turns }, refused.or(trouble)))
        });
        let mut seen = lock(seen);
        let there = |it: &Level| it.entries + it.turns + it.sold;
        if let (Ok(before), Ok((level, _))) = (&seen.1, &looked)
            && there(level) < there(before)
            && self.terms.opening.opens_in().is_some()
        {
            let entries = there(before) - there(level);
            tracing::error!(%sku, entries, "Redis has lost entries: their users have to enter again");
        }
        match &looked {
            Ok((level, trouble)) => *seen = (Instant::now(), Ok(*level), trouble.clone()),
            Err(lost @ StockError::Lost(_)) => {
                if !matches!(seen.1, Err(StockError::Lost(_))) {
                    tracing::error!(%sku, "Redis has lost a SKU on sale: it is marked as lost");
                }
                *seen = (Instant::now(), Err(lost.clone()), None);
            }
            // Until it is stale, the level before is shown.
            Err(error) => seen.2 = Some(error.clone()),
        }
        looked.map(drop)
    }

    pub(super) fn draw(&self, sku: &Sku) -> Option<Option<&Draw>> {
        self.on_sale.get(sku).map(|it| it.draw.as_ref())
    }

    pub(super) fn level(&self, sku: &Sku) -> Result<Option<Level>, StockError> {
        let Some(OnSale { seen, .. }) = self.on_sale.get(sku) else { return Ok(None) };
        let (at, level, _) = &*lock(seen);
        if at.elapsed() > STALE {
            return Err(StoreError::Unavailable.into());
        }
        level.clone().map(Some)
    }

    pub(super) fn trouble(&self, sku: &Sku) -> Option<StockError> {
        let at_look = self.on_sale.get(sku).and_then(|it| lock(&it.seen).2.clone());
        at_look.or_else(|| self.level(sku).err())
    }

    pub(super) async fn call(
        self: &Arc<Self>,
        sku: &Sku,
        call: Call<'_>,
    ) -> Result<Reply, StockError> {
        let of = |user: &UserId| user.as_str().to_owned();
        let place = |user| self.draw(sku).flatten().map_or(0, |draw| draw.score(user)).to_string();
        let (op, subject, value, ticket) = match call {
            Call::Order { user, order, ticket } => {
                ("order", of(user), order.uuid.to_string(), ticket)
            }
            Call::Pay { order, payment, is_real } => {
                ("pay", order.uuid.to_string(), payment.to_owned(), u64::from(is_real))
            }
            Call::Enter(user) => ("enter", of(user), place(user), 0),
            Call::Entry(user) => ("entry", of(user), String::new(), 0),
            Call::Show(user) => ("show", of(user), String::new(), 0),
        };
        let call = [op.to_owned(), subject, value, ticket.to_string()];
        if is_read(op) || self.replicas.wanted == 0 {
            return self.change(sku, &call).await;
        }
        // A task of its own sees the call to its end, so that the circuit breaker learns of it.
        let (stock, sku) = (Arc::clone(self), sku.clone());
        let changed = tokio::spawn(async move { stock.change(&sku, &call).await });
        match timeout(self.replicas.timeout, changed).await {
            Ok(Ok(reply)) => reply,
            // Only a panic, or the end of the program, ends the task early.
            Ok(Err(_)) | Err(_) => Err(StoreError::Timeout.into()),
        }
    }

    async fn change(&self, sku: &Sku, call: &[String; 4]) -> Result<Reply, StockError> {
        let sent = match self.send(sku, call).await {
            // Redis may have made the change. To make it again is safe. After a timeout there is no time left
            // for that.
            Err(StockError::Store(error))
                if error.may_have_counted() && !matches!(error, StoreError::Timeout) =>
            {
                self.send(sku, call).await.map_err(|again| match error {
                    // It was not executed.
                    StoreError::Refused { .. } => again,
                    error => error.into(),
                })?
            }
            sent => sent?,
        };
        match (sent.reply.outcome, sent.trouble) {
            (Outcome::SoldOut | Outcome::TurnOver | Outcome::Unknown | Outcome::Over, _)
            | (_, None) => Ok(sent.reply),
            (_, Some(trouble)) => Err(trouble),
        }
    }

    /// Sends a call to the script. A change waits for the replicas with others.
    async fn send(&self, sku: &Sku, call: &[String; 4]) -> Result<Sent, StockError> {
        let [op, rest @ ..] = call;
        let keys = KEYS.map(|what| self.key(sku, what));
        let Some(on_sale) = self.on_sale.get(sku) else {
            return Err(StockError::Lost(sku.clone()));
        };
        let OnSale { jobs, draw, history, last, .. } = on_sale;
        let opening = draw.as_ref().map(|_| self.terms.opening.micros().to_string());
        let mut arguments = vec![op.clone(), opening.unwrap_or_default()];
        let numbers = [self.terms.turn_us(), self.terms.pay_us(), history.load(Ordering::Relaxed)];
        arguments.extend(numbers.map(|it| it.to_string()));
        arguments.extend_from_slice(rest);
        let wanted = self.replicas.wanted;
        arguments.extend((op == "tick" && wanted > 0).then(|| "1".to_owned()));
        let (told, replicas): (Told, _) = if !is_read(op) && wanted > 0 {
            let (caller, told) = oneshot::channel();
            let _ = jobs.send(([keys.into(), arguments], Instant::now(), caller));
            let told = told.await.map_err(|_| malformed("expected a reply to each call"))?;
            let (told, replicas) = told?;
            (told, Some(replicas))
        } else {
            let told: Told = self.reads.script(&self.script, &keys, &arguments).await?;
            let replicas = (!told.7.is_empty()).then(|| Replication::of(&told.7));
            (told, replicas)
        };
        let (outcome, order, number, now_us, news_us, now_history, level, _) = told;
        let parsed: Result<Outcome, serde::de::value::Error> =
            Outcome::deserialize(outcome.as_str().into_deserializer());
        let outcome = parsed.map_err(malformed)?;
        if outcome == Outcome::Lost {
            // It is not set again: the orders are lost with it, and would be sold twice.
            return Err(StockError::Lost(sku.clone()));
        }
        let trouble = replicas.as_ref().and_then(|it| on_sale.trouble(it, wanted));
        // A failover may take back what too few replicas have. `WAIT` waits for what this call wrote.
        let is_paid = outcome == Outcome::Paid && op == "pay";
        let wrote = is_paid || matches!(outcome, Outcome::Placed | Outcome::Held);
        if wanted == 0 || wrote && trouble.is_none() {
            history.fetch_max(now_history, Ordering::Relaxed);
            if is_paid {
                lock(last)[1].clone_from(&rest[1]);
            } else if outcome == Outcome::Placed {
                lock(last)[0].clone_from(&order);
            }
        } else if let (Outcome::Done, None, Some(replicas)) = (outcome, &trouble, replicas) {
            on_sale.note_seen(now_history, replicas, wanted);
        }
        Ok(Sent { reply: Reply { outcome, order, number, now_us, news_us }, level, trouble })
    }

    /// The braces put all keys of one SKU into one slot of a Redis Cluster. No SKU begins with `=`, so
    /// none of them is the name of a log.
    fn key(&self, sku: &Sku, what: &str) -> String {
        format!("{}:{{{sku}}}:{what}", self.prefix)
    }
}

/// Returns whether a call changes nothing but what its time has come for.
fn is_read(op: &str) -> bool {
    matches!(op, "entry" | "show" | "tick")
}
