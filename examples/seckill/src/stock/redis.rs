//! [`RedisStock`]: the stock of a fleet, which outlives its servers.
//!
//! One task for each SKU reads its level four times a second. What clients poll, whether Redis has lost the
//! SKU, and when a turn or the time to pay ends, follows from that, whatever the number of clients.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Pipeline, Value, cmd, pipe};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tower_sliding_window::{RedisCommands, RedisScript, StoreError};

use super::{Call, Level, OnSale, Outcome, Records, Reply, StockError, Terms};
use crate::draw::{Draw, FIRST_COME};
use crate::names::Sku;
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

/// Keeps the stock and the orders of a SKU in Redis, for every server with the same prefix.
pub(crate) struct RedisStock {
    sku: Sku,
    keys: [String; KEYS.len()],
    commands: RedisCommands,
    script: RedisScript,
    /// Those that must have a change before it is told, if there are any.
    replicas: Option<Arc<Replicas>>,
    terms: Terms,
    /// The seed of the draw, or what stands there instead.
    seed: String,
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
    /// The history of the master, if changes wait for its replicas.
    master: Option<String>,
}

/// What a master has told last of its replicas.
#[derive(Default)]
struct Followers {
    /// When it was asked, and how many had all that was written before.
    asked: Option<Instant>,
    confirmed: u32,
    /// Why it did not answer.
    error: Option<StoreError>,
    /// The name of what this master and its replicas have written. Another master has another.
    history: String,
    known: HashSet<String>,
    /// When one of those before them had left, or did not follow another master yet.
    left: Option<Instant>,
    /// The most that there ever were.
    most: usize,
}

impl Followers {
    /// Takes note of what a master says of its replicas, by `INFO replication`.
    fn see(&mut self, info: &str) {
        let (mut history, mut there, mut online) = ("", HashSet::new(), 0);
        for line in info.lines() {
            if let Some(name) = line.strip_prefix("master_replid:") {
                history = name;
            } else if let Some((name, state)) = line.split_once(",state=online,") {
                // One that has connected again may be listed twice for a while.
                let address = name.split_once(':').map_or(name, |(_, address)| address);
                online += 1;
                // One that can't load what its master sends is listed again and again for an instant, and never confirms
                // anything.
                if !state.starts_with("offset=0,") || self.known.contains(address) {
                    there.insert(address.to_owned());
                }
            }
        }
        // Who does not follow a master that is new or was restarted may be the next one.
        let has_left = match self.history == history {
            true => !self.known.is_subset(&there),
            false => online < self.most,
        };
        if has_left {
            self.left = Some(Instant::now());
        }
        self.most = there.len().max(self.most);
        history.clone_into(&mut self.history);
        self.known = there;
    }

    /// Returns whether one that has left of late may be the next master.
    fn has_left(&self) -> bool {
        self.left.is_some_and(|at| at.elapsed() < LEFT_BY)
    }
}

fn malformed(message: impl ToString) -> StoreError {
    StoreError::Protocol { message: message.to_string() }
}

/// How many replicas must have an order before it is answered with 201.
///
/// Redis replicates after it has replied, so a failover loses what only the master had.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MinReplicas {
    pub(crate) wanted: u32,
    /// How long Redis may take to reply, and the replicas to confirm, each.
    pub(crate) timeout: Duration,
    /// Whether the SKUs are on the nodes of a Cluster.
    pub(crate) on_cluster: bool,
}

/// What the replicas of a master have, which a connection of its own asks for.
struct Replicas {
    commands: RedisCommands,
    min: MinReplicas,
    ask: Pipeline,
    last: tokio::sync::Mutex<Followers>,
}

impl Replicas {
    fn new(commands: RedisCommands, min: MinReplicas, key: String) -> Self {
        // Who asks next may have to wait for one who is asking.
        let patience_ms = (min.timeout.min(STALE) * 2 / 5).as_millis().max(1) as u64;
        let mut ask = pipe();
        // It waits for what this connection has written, which is later than all that is asked about.
        ask.cmd("SET").arg(key).arg("").arg("EX").arg(60).ignore();
        ask.cmd("WAIT").arg(min.wanted).arg(patience_ms);
        ask.cmd("INFO").arg("replication");
        Self { commands, min, ask, last: Default::default() }
    }

    /// Returns why what a master has told until now may be lost with it, if so. One `WAIT` is for all who ask while the one
    /// before is under way: it holds up whatever comes after it on its connection.
    async fn risk(&self, master: &str) -> Option<StockError> {
        let told = Instant::now();
        let mut last = self.last.lock().await;
        if last.asked.is_none_or(|asked| asked <= told) {
            let asked = Instant::now();
            let mut answer = self.commands.pipeline::<(u32, String)>(&self.ask).await;
            if let Err(StoreError::Disconnected { .. }) = answer {
                answer = self.commands.pipeline(&self.ask).await;
            }
            last.asked = Some(asked);
            last.error = match answer {
                Ok((confirmed, info)) => {
                    last.confirmed = confirmed;
                    last.see(&info);
                    None
                }
                // What it is asked about was executed.
                Err(error) => Some(StoreError::Uncertain { error: Box::new(error) }),
            };
            if last.error.is_none() && last.history != master && !self.min.on_cluster {
                // One of the two masters is the old one. The next connection leads to where the name does now.
                let _ = self.commands.query::<Value>(&cmd("QUIT")).await;
            }
        }
        match &last.error {
            Some(error) => Some(error.clone().into()),
            // Another master may lack what this one has told.
            None if last.history != master => Some(self.too_few(0)),
            None if last.confirmed < self.min.wanted => Some(self.too_few(last.confirmed)),
            None => last.has_left().then_some(StockError::ReplicaLeft),
        }
    }

    fn too_few(&self, confirmed: u32) -> StockError {
        StockError::NotReplicated { confirmed, wanted: self.min.wanted }
    }
}

impl RedisStock {
    /// Puts new SKUs on sale. A SKU that is there already keeps its stock, its draw and its orders, so a server
    /// may be restarted at any time. Also returns those that Redis has lost.
    ///
    /// The connection that waits for replicas, if changes do, must be its own: `WAIT` holds up what is sent after it.
    pub(crate) async fn open(
        commands: RedisCommands,
        waiting: Option<RedisCommands>,
        prefix: &str,
        on_sale: &[(Sku, u32)],
        min: MinReplicas,
        terms: Terms,
    ) -> Result<(Vec<OnSale>, Vec<Sku>), StockError> {
        // The braces put all keys of one SKU into one slot of a Redis Cluster. No SKU begins with `=`, so none of them is
        // the name of a log.
        let key = |sku: &Sku, what: &str| format!("{prefix}:{{{sku}}}:{what}");
        for (sku, _) in on_sale {
            let exists = cmd("GET").arg(key(sku, KEYS[0])).to_owned();
            if commands.query::<Option<String>>(&exists).await?.is_none() {
                // It is new, or Redis has lost it: then a running server marks that meanwhile.
                sleep(MARKED_BY).await;
                break;
            }
        }
        let replicas = |key| Some(Arc::new(Replicas::new(waiting.clone()?, min, key)));
        let of_all = replicas(format!("{prefix}:confirmed"));
        let (mut stock, mut lost) = (Vec::new(), Vec::new());
        for (sku, pieces) in on_sale {
            let opened = async {
                let keys = KEYS.map(|what| key(sku, what));
                let seed = put_on_sale(&commands, sku, *pieces, &keys, terms.draws).await?;
                let draw = Draw::of(&seed);
                // On a Cluster those of a SKU wait at its node.
                let of_node = min.on_cluster.then(|| replicas(key(sku, "confirmed")));
                let replicas = of_node.unwrap_or_else(|| of_all.clone());
                // Until they have confirmed something.
                let trouble = replicas.as_ref().map(|it| it.too_few(0));
                let opened = Arc::new(Self {
                    sku: sku.clone(),
                    keys,
                    commands: commands.clone(),
                    script: RedisScript::new(SALE),
                    replicas,
                    terms: Terms { draws: draw.is_some(), ..terms.clone() },
                    seed,
                    known: Mutex::new(Known { trouble, ..Known::default() }),
                });
                opened.look().await?;
                let followed = Arc::clone(&opened);
                tokio::spawn(async move { followed.follow().await });
                Ok(OnSale { sku: sku.clone(), draw, records: Records::Redis(opened) })
            };
            match opened.await {
                Ok(opened) => stock.push(opened),
                Err(StockError::Lost(sku)) => lost.push(sku),
                Err(error) => return Err(error),
            }
        }
        Ok((stock, lost))
    }

    async fn follow(self: &Arc<Self>) {
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
        let told = self.ask("tick", &self.seed, &last, 0).await;
        let mut known = lock(&self.known);
        let Told { reply, history, level, master } = told.inspect_err(|error| {
            // Until it is stale, the level before is shown.
            known.seen = known.seen.filter(|_| !matches!(error, StockError::Lost(_)));
            known.note(Some(error.clone()));
        })?;
        known.seen = Some((Instant::now(), level));
        if let Some(master) = master {
            // A failover may take back what too few replicas have. No look waits for them.
            let stock = Arc::clone(self);
            tokio::spawn(async move { stock.confirm(&master, history).await });
        } else {
            known.note(reply.order.split_once(' ').map(|(code, message)| {
                let (code, message) = (code.to_owned(), message.to_owned());
                StoreError::Refused { code, message }.into()
            }));
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
        let drawn;
        let (op, subject, value, more) = match call {
            Call::Order { user, order, ticket } => ("order", user, order, ticket),
            Call::Pay { order, payment, is_real } => ("pay", order, payment, is_real.into()),
            Call::Enter { user, place } => {
                drawn = place.to_string();
                ("enter", user, &*drawn, 0)
            }
            Call::Entry { user } => ("entry", user, "", 0),
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
        let Told { reply, history, master, .. } = told;
        // Who gets nothing has nothing that could be lost.
        let gets_nothing = [Outcome::SoldOut, Outcome::TurnOver, Outcome::Over];
        if let Some(master) = master.filter(|_| !gets_nothing.contains(&reply.outcome))
            && let Some(trouble) = self.confirm(&master, history).await
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
        let Terms { opening, draws, turn, pay_within } = &self.terms;
        // No turn is given while the sale is closed.
        let turn_us = opening.opens_in().map_or(turn.as_micros(), |_| 0) as u64;
        let opening = if *draws { opening.micros().to_string() } else { String::new() };
        let terms = (opening, turn_us, pay_within.as_micros() as u64);
        let (waits, history) = (self.replicas.is_some(), lock(&self.known).history);
        let arguments = (op, terms, history, subject, value, more, u8::from(waits));
        type Counts = (u32, u32, u32, u32, u32);
        type Raw = (String, String, u64, u64, u64, u64, Option<Counts>, Option<String>);
        let told: Raw = self.commands.script(&self.script, &self.keys, arguments).await?;
        let (outcome, order, number, now_us, news_us, history, counts, master) = told;
        let outcome = serde_json::from_value(outcome.into()).map_err(malformed)?;
        if outcome == Outcome::Lost {
            // It is not set again: the orders are lost with it, and would be sold twice.
            return Err(StockError::Lost(self.sku.clone()));
        }
        if !waits {
            let mut known = lock(&self.known);
            known.history = known.history.max(history);
        }
        let (stock, sold, paid, entries, turns) = counts.unwrap_or_default();
        let level = Level { stock, sold, paid, entries, turns };
        let reply = Reply { outcome, order, number, now_us, news_us };
        Ok(Told { reply, history, level, master })
    }

    /// Returns why what a call to this master has told may be lost with it, if so. Otherwise takes note of how many orders and
    /// payments there were.
    async fn confirm(&self, master: &str, history: u64) -> Option<StockError> {
        let trouble = self.replicas.as_ref()?.risk(master).await;
        let mut known = lock(&self.known);
        if trouble.is_none() {
            known.history = known.history.max(history);
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
                format!("{replicas}master_replid:{history}\r\n")
            };
            let looks: Vec<_> = looks.split(", ").map(look).collect();
            looks.iter().for_each(|it| followers.see(it));
            assert_eq!(followers.has_left(), has_left, "{looks:?}");
            tokio::time::advance(LEFT_BY).await;
            followers.see(&looks[looks.len() - 1]);
            assert!(!followers.has_left(), "the others follow by then");
        }
    }
}
