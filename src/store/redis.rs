//! [`RedisStore`]: logs on a Redis server, shared by a fleet.

mod bans;
mod builder;
mod denials;
mod in_turn;
mod journal;
mod reconcile;
mod requests;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;
use uuid::Uuid;

pub use self::builder::RedisStoreBuilder;
use self::denials::Denials;
use self::journal::{Journal, Origin, RequestState};
use self::requests::{CheckReply, CheckRequest, Mode, ReconcileRequest};
use super::{Ban, BanPage, Store, StoreFuture, to_the_end};
use crate::MemoryStore;
use crate::error::StoreError;
use crate::failure::FailurePolicy;
use crate::policy::Policy;
#[cfg(feature = "redis-commands")]
use crate::redis::RedisCommands;
use crate::redis::{Batch, Client, Health, RedisServers};
use crate::telemetry;
use crate::time::{Pace, micros};
use crate::window::{BanRecord, Check, DecidedBy, Explanation, LogId, LogOutcome, Outcome, Strike};

/// A store on Redis. All processes that use it with the same prefix share the logs.
///
/// A cheap handle: clones share everything.
///
/// ## Behavior
///
/// - A decision is one script call, atomic over all logs of the request. Requires Redis 6.2 or
///   later, or Valkey 8.1 or later.
/// - On a Cluster this holds for each key of a request: all logs of a key are in one slot. A request of several keys takes a
///   call for each, one after the other. If one denies, the request is taken out of the others, which may deny other
///   requests because of it until then. So give rules one key where that fits, and a Cluster to those who outgrow one server.
/// - Concurrent checks share script calls, whatever their logs, quotas, costs and penalties: up to 32 at a time, on a Cluster
///   those for one node. A Redis key of the wrong type concerns no other check.
/// - The clock is that of Redis, in microseconds. The clocks of the processes do not matter.
/// - A denial is repeated from memory for at most a second, see [`RedisStoreBuilder::deny_cache`].
/// - A Cluster has no list of all bans: [`Bans::page`](crate::Bans::page) is an error.
/// - A check whose reply is lost with its connection is sent once more under the same identity, and counts once. After a
///   silence the failure policy decides about it. A cancellation or a
///   settlement that has begun, and a ban or a lift by [`Bans`](crate::Bans), is finished also if its caller leaves, unless
///   its runtime ends.
/// - Keys of up to 128 bytes are stored in Redis in plain text. Longer ones are hashed, see [`Key`](crate::Key).
/// - Every Redis key has a TTL. A log expires its [retention](crate::Policy::retention) and a second
///   after its newest entry. It is one ZSET named `PREFIX:{=KEY}:POLICY:RETENTION`, such as
///   `tsw:{=alice}:user:60s`, with `%` and `}` in the key written as `%25` and `%7D`. If a policy counts no requests,
///   `:budget`, `:distinct` or `:in_flight` follows. A policy without a name
///   is named `default:QUOTAS`. Beside a log there may be the keys `POLICY:ban` and `POLICY:strikes`, and
///   the marks `:reset` and `POLICY:lifted`, by which other processes learn of a reset and of a lifted
///   ban. `PREFIX:mark` is lost when the data is, as is `PREFIX:NUMBER:mark` on each node of a Cluster.
/// - Concurrent requests share one connection, on a Cluster one to each primary. If it breaks, it is made again at once, and
///   requests wait for the first attempt. If that fails, or if the connection is
///   [silent](RedisStoreBuilder::response_timeout), no request waits until Redis is back: further attempts are made in the
///   background, with pauses of up to half a second. On a Cluster this holds for each node: of a request with several keys,
///   each node that replies can deny it.
/// - When Redis can't decide, the [`FailurePolicy`](crate::FailurePolicy) does. With `Local`, the default, logs in this
///   process decide, which hold what it has admitted. When Redis replies again, what was decided about a log is written to it
///   under the identities of the requests, before its next check. Then Redis decides again. Logs that other processes have
///   reset and bans that they have lifted in the meantime stay reset and lifted.
/// - If Redis has lost data, in a restart, a failover or by `FLUSHALL`, this process writes what it knows of a log before its
///   next check. It notices within a second of use. It also takes for a loss that another node has the slots of one, and that
///   `master_replid` has changed, as an hour after a server has lost its last replica.
///
/// ## The Redis server
///
/// - `maxmemory-policy noeviction`: a server that evicts logs admits too many. When it connects, the store warns of one
///   that may. A server whose memory is full refuses new logs, and then the failure policy decides about their keys.
/// - `lazyfree-lazy-expire yes`, the default of Valkey: otherwise Redis stands still while it frees a long log that
///   has expired, about 0.1 s for one of 500,000 entries.
///
/// ## Runtime
///
/// It needs a tokio runtime with time and I/O. Without one its methods panic.
///
/// ## Under paused time
///
/// Test with real time, not with tokio's paused clock (`start_paused = true`). The response timeout
/// and the deny cache follow tokio's clock, while Redis has its own. A paused clock jumps to the
/// next timer when all tasks wait, so each call to Redis times out at once. `tokio::time::advance`
/// does not move the windows in Redis.
///
/// ```no_run
/// use tower_sliding_window::RedisStore;
///
/// # async fn connect() -> Result<(), tower_sliding_window::StoreError> {
/// let store = RedisStore::connect("redis://127.0.0.1:6379").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisStore(Arc<Inner>);

struct Inner {
    client: Client,
    checks: Arc<Batch<CheckRequest>>,
    reconciles: Arc<Batch<ReconcileRequest>>,
    /// The denials of the last second.
    denials: Denials,
    /// What this process has admitted, by Redis or without it. It decides in an outage.
    local: MemoryStore,
    /// What Redis does not know of that.
    journal: Journal,
    health: Health,
    /// When it was last warned that Redis refuses checks or is overloaded.
    refusals: Pace,
}

impl RedisStore {
    /// Connects to a server, such as `redis://:password@127.0.0.1:6379/0`, or to [`RedisServers`], which says how to write
    /// a password with signs of a URL.
    ///
    /// It fails if the server does not reply now. A service that may start before its Redis does uses
    /// [`RedisStore::connect_lazy`].
    ///
    /// # Errors
    ///
    /// [`StoreError::Configuration`] if the URL is wrong. [`StoreError::Unreachable`] if the server can't be reached, or does
    /// not accept the credentials.
    pub async fn connect<T>(servers: T) -> Result<Self, StoreError>
    where
        T: TryInto<RedisServers>,
        StoreError: From<T::Error>,
    {
        Self::builder().connect(servers).await
    }

    /// Connects in the background, so that a service can start before its Redis does.
    ///
    /// Checks that come before the first connection is there wait for it, for at most the response timeout. If
    /// that fails, the failure policies decide until the store is connected.
    ///
    /// # Errors
    ///
    /// [`StoreError::Configuration`] if the URL is wrong.
    pub fn connect_lazy<T>(servers: T) -> Result<Self, StoreError>
    where
        T: TryInto<RedisServers>,
        StoreError: From<T::Error>,
    {
        Self::builder().connect_lazy(servers)
    }

    /// Returns a builder with the default settings.
    pub fn builder() -> RedisStoreBuilder {
        RedisStoreBuilder::default()
    }

    /// Returns a handle for the application's own commands on the connection of this store.
    #[cfg(feature = "redis-commands")]
    pub fn commands(&self) -> RedisCommands {
        RedisCommands::new(self.0.client.once())
    }
}

impl Store for RedisStore {
    fn admit(&self, check: &Check) -> StoreFuture<Outcome> {
        if check.logs.is_empty() {
            return StoreFuture::ready(Ok(Outcome::new(true, [])));
        }
        // What Redis does not know of another log concerns no denial by this one.
        let is_unwritten =
            |(log, outcome): (&LogId, &LogOutcome)| outcome.is_read() && self.0.journal.has(log);
        if let Some(denial) = self.0.denials.find(check, Instant::now())
            && !check.logs.iter().zip(denial.logs()).any(is_unwritten)
        {
            return StoreFuture::ready(Ok(denial));
        }
        StoreFuture::later(self.clone().decide(Arc::new(check.clone())))
    }

    fn peek(&self, check: &Check) -> StoreFuture<Outcome> {
        StoreFuture::later(self.clone().peek_in_turn(Arc::new(check.clone())))
    }

    fn explain(&self, check: &Check) -> StoreFuture<Explanation> {
        let (this, check) = (self.clone(), check.clone());
        StoreFuture::later(async move {
            match this.explain_by_redis(&check).await {
                Err(error) if error.is_outage() => {
                    let mut explained = this.0.local.explain(&*share(&check, &error)?).await?;
                    explained.decided_by = DecidedBy::LocalLog;
                    Ok(explained)
                }
                result => result,
            }
        })
    }

    fn settle(&self, check: &Check, cost: u32) -> StoreFuture<bool> {
        self.0.denials.forget(&check.logs);
        // Locally first: the journal does not get the earlier number of places from there any more.
        let was_here = self.0.local.settle_here(check, cost);
        let rest = self.note(|state| {
            let noted = check.part(|index| state.has(&check.logs[index], check.id));
            // It has its room already.
            let _ = state.settle(&noted, |_| cost, Instant::now());
            check.part(|index| !noted.logs.contains(&check.logs[index]))
        });
        if rest.logs.is_empty() {
            return StoreFuture::ready(Ok(was_here));
        }
        let was_noted = was_here && rest.logs.len() < check.logs.len();
        let this = self.clone();
        StoreFuture::later(async move {
            Ok(to_the_end(this.settle_in_redis(rest, cost, was_here)).await? || was_noted)
        })
    }

    fn reset(&self, log: &LogId) -> StoreFuture<()> {
        self.0.denials.forget(std::slice::from_ref(log));
        self.0.local.reset_here(log);
        self.0.journal.with(|state| state.forget(log));
        let (this, log) = (self.clone(), log.clone());
        StoreFuture::later(async move {
            // A connection that was closed while nobody used it fails here.
            let _ = this.0.client.verify_data(&log).await;
            // A repeated call would also remove what others have admitted since.
            let result = requests::reset(&this.0.client.once(), &log).await;
            this.0.denials.forget(&[log]);
            result
        })
    }

    fn ban(&self, log: &LogId) -> StoreFuture<Option<Ban>> {
        let (this, log) = (self.clone(), log.clone());
        StoreFuture::later(async move {
            // What can't be written now is written later.
            let _ = this.ensure_reconciled(&Check::new([log.clone()])).await;
            let reply = requests::impose(&this.0.client, &log, (0, 0, 0), "", None, false).await?;
            Ok(Some(reply.ban).filter(|ban| !ban.remaining.is_zero()))
        })
    }

    fn impose(
        &self,
        log: &LogId,
        duration: Duration,
        reason: &str,
        only_longer: bool,
    ) -> StoreFuture<Ban> {
        let (this, log, reason) = (self.clone(), log.clone(), reason.to_owned());
        StoreFuture::later(async move {
            // A ban is imposed once. A connection that was closed while nobody used it fails here.
            let _ = this.0.client.verify_data(&log).await;
            let _ = this.ensure_reconciled(&Check::new([log.clone()])).await;
            this.impose_once(&log, duration, &reason, only_longer).await
        })
    }

    fn lift(&self, log: &LogId) -> StoreFuture<bool> {
        StoreFuture::later(self.clone().lift_once(log.clone()))
    }

    fn bans(&self, policy: &Arc<Policy>, cursor: u64, count: usize) -> StoreFuture<BanPage> {
        StoreFuture::later(self.clone().page_of_bans(policy.clone(), cursor, count))
    }
}

/// What is known from before a check was sent.
struct Sent {
    at: Instant,
    /// Before the journal was looked at. What was decided here since is not known to Redis.
    known_at: Instant,
    losses: u64,
    generations: SmallVec<[u64; 2]>,
}

// # Interleavings
//
// - A check finds the journal empty and goes to Redis. Meanwhile another one of its log fails and is
//   decided here: both take the last place. Who decides here makes the journal look not empty before that, and
//   the local log keeps the instant. The first one records its admission in the local log. If the other was there before
//   it, its instant is not before the look at the journal, and if the log has too many entries now, the request is
//   cancelled. If not, the other one finds the admission in the local log. Test: `last_place_is_taken_once`.
// - A check is sent, or sent again, on a new connection, to a Redis that has lost what fills its log. It waits for the
//   connection, which knows of the loss, and makes that good first. Tests:
//   `value_that_is_denied_after_a_loss_was_not_seen` and `repeated_check_does_not_pass_because_of_a_loss`.
// - A reply from before a loss is read after it, when another request has taken the place. The local log has too many entries
//   then, too. If that request's reply is read later, it finds the doubt that the first one has left in the log. Tests:
//   `late_reply_from_before_a_loss_is_written_back` and `late_reply_read_before_a_later_one_does_not_share_its_place`.
// - A cancellation overtakes the write of its admission. The local log drops the request first, so that the journal does
//   not get it from there any more. If the journal has the request, its state there changes. Else the cancellation goes to
//   Redis. Tests: `cancelled_request_stays_cancelled`.
// - Two settlements of a request are under way, and the first one fails after the second one was made. What is noted is
//   what the local log has, in which they were made in their order. Test: `last_settlement_stands`.
// - Redis runs two settlements in another order, for their calls went beside each other. Whoever has the reply to an
//   earlier one makes the newest once more. Test: `settlement_that_is_late_is_made_anew`.
// - Redis runs a check after its cancellation, because the connection of the check was given up in between.
//   The request then keeps its place for one window: too few are admitted, never too many.
impl RedisStore {
    /// Decides on a request of which no denial is known.
    async fn decide(self, check: Arc<Check>) -> Result<Outcome, StoreError> {
        // Before the check is sent: so a loss that it finds is known when the check has its reply.
        self.0.client.watch_data();
        match self.is_split(&check) {
            true => to_the_end(self.clone().decide_in_turn(check)).await,
            false => self.decide_on_one_server(check).await,
        }
    }

    /// Decides on a request whose logs are on one server.
    async fn decide_on_one_server(&self, check: Arc<Check>) -> Result<Outcome, StoreError> {
        match self.ask(&check).await {
            Ok((sent, outcome)) => self.accept(&check, &sent, outcome),
            Err(error) => self.decide_without_redis(&check, error),
        }
    }

    /// Looks at a check whose logs are on one server.
    async fn peek_on_one_server(&self, check: &Arc<Check>) -> Result<Outcome, StoreError> {
        let look = async || {
            self.ensure_reconciled(check).await?;
            self.check_once(check.clone(), Mode::Peek).await
        };
        match look().await {
            // Such as one that was closed while nobody used it.
            Err(StoreError::Disconnected { .. }) => look().await,
            looked => looked,
        }
    }

    async fn explain_by_redis(&self, check: &Check) -> Result<Explanation, StoreError> {
        // A new request has no entry in flight yet.
        let mut new = check.clone();
        new.id = Uuid::nil();
        let peeked = self.peek_on_one_server(&Arc::new(new)).await?;
        requests::explain(&self.0.client, check, &peeked).await
    }

    /// Asks Redis about a request whose logs are on one server. Returns what was known before, too.
    async fn ask(&self, check: &Arc<Check>) -> Result<(Sent, Outcome), StoreError> {
        let known_at = Instant::now();
        let losses = self.ensure_reconciled(check).await.map_err(|error| {
            // Redis has not seen this request, and lacks what this process knows of its logs.
            self.warn_of_refusal(&error);
            StoreError::Unavailable
        })?;
        // Now: the reconciliation has freed and taken places itself.
        let generations = self.0.denials.generations(&check.logs);
        let sent = Sent { at: Instant::now(), known_at, losses, generations };
        let outcome = self.check(check.clone()).await?;
        self.note_bans(check, &sent, &outcome).await;
        Ok((sent, outcome))
    }

    /// Waits for a connection, takes note of losses of data, and writes what Redis lacks of the logs of a check. Returns the
    /// number of losses that this covers.
    async fn ensure_reconciled(&self, check: &Check) -> Result<u64, StoreError> {
        // Whoever has a connection knows of the losses before it.
        self.0.client.connected(&check.logs).await?;
        let losses = self.0.health.losses();
        self.mark_lost_logs(check, losses);
        self.reconcile(&check.logs).await.map(|()| losses)
    }

    /// Makes the logs of a check wait for their reconciliation, if Redis has lost data since they were last
    /// known to be there, or does not know a ban.
    fn mark_lost_logs(&self, check: &Check, losses: u64) {
        let Inner { local, journal, health, .. } = &*self.0;
        let since_loss = health.since_loss();
        for log in &check.logs {
            if since_loss.is_some_and(|since_loss| since_loss < log.policy.retention())
                && local.has_unseen_loss(log, losses)
            {
                // Who finds that the loss was seen finds the log in the journal.
                journal.with(|state| state.lose(log, local.see_loss(log, losses)));
            }
            let is_unknown = |(ban, now_us): &(BanRecord, u64)| {
                let age_us = now_us.saturating_sub(ban.seen_us);
                // It was imposed here, maybe beside a log with another retention.
                !ban.is_shared || since_loss.is_some_and(|since_loss| age_us > micros(since_loss))
            };
            if let Some((ban, now_us)) = local.standing_ban(log).filter(is_unknown) {
                let remaining = Duration::from_micros(ban.wait_us(now_us));
                journal.with(|state| state.ban(log, remaining));
            }
        }
    }

    /// Sends a check whose logs are on one server, and sends it again if the reply is lost.
    async fn check(&self, check: Arc<Check>) -> Result<Outcome, StoreError> {
        let lost = match self.check_once(check.clone(), Mode::New).await {
            Err(error) if error.may_have_counted() => error,
            result => return result,
        };
        let again = async {
            // The next connection may be to a Redis that has lost what fills the logs.
            self.ensure_reconciled(&check).await?;
            self.check_once(check, Mode::Again).await
        };
        again.await.map_err(|again| match again {
            // No outage, in which this process would decide.
            StoreError::Overloaded => StoreError::Uncertain { error: Box::new(again) },
            _ => lost,
        })
    }

    async fn check_once(&self, check: Arc<Check>, mode: Mode) -> Result<Outcome, StoreError> {
        // Once, unless so many entries have left a budget that a call counts out only some of them.
        let (began, mut turns, mut known) = (Instant::now(), 0, None);
        loop {
            let request = CheckRequest { check: check.clone(), mode, turns };
            turns += 1;
            let error = match self.0.checks.send(request, Instant::now()).await {
                Ok(CheckReply::Decided(outcome)) => return Ok(outcome),
                Ok(CheckReply::SendAgain(denial)) => {
                    known = denial.or(known);
                    if began.elapsed() <= Duration::from_secs(1) {
                        continue;
                    }
                    StoreError::Overloaded
                }
                Err(error) => error,
            };
            // A denial stands whatever fails after it. A place may have come free since.
            let Some(denial) = known else { return Err(error) };
            if mode != Mode::Peek {
                self.cancel_if_counted(&check, &error);
            }
            return Ok(denial);
        }
    }

    /// Takes note of an outcome by Redis.
    ///
    /// If a loss or a local decision since may have given a place away twice, or a ban may be lost, it cancels the request
    /// and decides again, here.
    fn accept(&self, check: &Check, sent: &Sent, outcome: Outcome) -> Result<Outcome, StoreError> {
        let Inner { local, health, denials, .. } = &*self.0;
        denials.note(check, &outcome, sent.at, &sent.generations);
        if !outcome.admitted {
            return Ok(outcome);
        }
        // Redis has counted it before now, so a local window never ends before that of Redis. At the local capacity a new
        // log is not recorded, and an outage refuses the key.
        let at = Instant::now();
        let is_doubted = local.record(check, at, sent.losses, sent.known_at);
        let is_lost = health.losses() != sent.losses;
        if is_lost {
            // Redis may have lost it since, and the rest of its logs may be written already.
            self.note(|state| {
                local.doubt(check);
                state.admit(check, at, Origin::Redis);
            });
        }
        // Redis has not counted what was decided here meanwhile, and does not know what it has lost.
        let is_unsure = is_lost || is_doubted;
        let is_banned = |log| local.standing_ban(log).is_some();
        if is_unsure && local.holds_too_many(check) || is_lost && check.logs.iter().any(is_banned) {
            let _ = local.settle_here(check, 0);
            self.cancel(check)?;
            return self.decide_here(check, &StoreError::Unavailable);
        }
        Ok(outcome)
    }

    /// Settles a request in Redis, now or later. `was_here` says whether the local log had it. Returns whether a log had it.
    async fn settle_in_redis(
        self,
        check: Check,
        cost: u32,
        was_here: bool,
    ) -> Result<bool, StoreError> {
        // Another settlement may be made meanwhile.
        let newest = |log: &LogId| self.0.local.cost_of(log, check.id).unwrap_or(cost);
        let mut was_there = Ok(false);
        loop {
            let (now, costs) = (Instant::now(), check.logs.iter().map(newest).collect::<Vec<_>>());
            let send = |((log, initial), cost): ((&LogId, u32), &u32)| {
                let places = log.settled_cost(*cost)?;
                let request = RequestState { initial, places, at: now, origin: Origin::Kept };
                let request = ReconcileRequest::new(log, vec![(check.id, request)]);
                Some(self.0.reconciles.send(request, now))
            };
            let sent: Vec<_> = check.costs().zip(&costs).filter_map(send).collect();
            for reply in sent {
                // All of them: one that nobody waits for is not sent.
                let reply = reply.await;
                was_there = was_there.and_then(|was_there| Ok(reply?.had || was_there));
            }
            self.0.denials.forget(&check.logs);
            if was_there.is_err() || check.logs.iter().map(newest).eq(costs) {
                break;
            }
        }
        was_there.or_else(|error| {
            self.note(|state| state.settle(&check, newest, Instant::now()))?;
            match check.on_failure {
                FailurePolicy::Local { .. } => Ok(was_here),
                _ => Err(error),
            }
        })
    }

    /// Decides on a request for which Redis failed, by its failure policy if this is an outage.
    fn decide_without_redis(
        &self,
        check: &Check,
        error: StoreError,
    ) -> Result<Outcome, StoreError> {
        self.warn_of_refusal(&error);
        let result = match error.is_outage() {
            true => self.decide_here(check, &error),
            false => Err(error.clone()),
        };
        let is_admitted = matches!(&result, Ok(outcome) if outcome.admitted);
        // With the policy `Open` the request passes, so Redis may keep it, but not in some of its logs only.
        let passes = is_admitted
            || check.on_failure == FailurePolicy::Open
                && !matches!(error, StoreError::Uncertain { .. });
        if !passes {
            self.cancel_if_counted(check, &error);
        }
        result
    }

    /// Decides by the local logs. Returns the error if the failure policy is not `Local`, or if the cost is
    /// above the share of this process.
    fn decide_here(&self, check: &Check, error: &StoreError) -> Result<Outcome, StoreError> {
        let (share, local) = (share(check, error)?, &self.0.local);
        let decided = self.note(|state| {
            let now = Instant::now();
            if check.cost > 0
                && let Err(full) = state.ensure_room(check, now, 1)
            {
                // A denial needs none.
                let looked = local.decide(&share, false)?;
                return if looked.admitted { Err(full) } else { Ok(looked) };
            }
            let outcome = local.decide(&share, true)?;
            if outcome.admitted {
                state.admit(check, now, Origin::Here);
            }
            for (log, log_outcome) in check.logs.iter().zip(outcome.logs()) {
                if log_outcome.ban().strike() == Strike::Banned {
                    state.ban(log, log_outcome.ban().remaining());
                }
            }
            Ok(outcome)
        });
        local.report();
        let mut outcome = decided?;
        // The caller gets an outcome and does not report the error.
        error.report();
        outcome.decided_by = DecidedBy::LocalLog;
        Ok(outcome)
    }

    /// Changes the journal, and has written what is in it.
    fn note<T>(&self, change: impl FnOnce(&mut journal::State) -> T) -> T {
        let changed = self.0.journal.with(change);
        self.ensure_task();
        changed
    }

    fn cancel(&self, check: &Check) -> Result<(), StoreError> {
        self.note(|state| state.settle(check, |_| 0, Instant::now()))
    }

    /// Cancels a request that was not admitted, if Redis may have counted it all the same.
    fn cancel_if_counted(&self, check: &Check, error: &StoreError) {
        if error.may_have_counted() {
            // A request in flight that was to renew its place keeps it.
            let is_new = |log| self.0.local.cost_of(log, check.id).is_none();
            let _ = self.cancel(&check.part(|index| is_new(&check.logs[index])));
        }
    }

    /// Says once a second that Redis refuses checks, or is overloaded: the connection works, so nothing else shows it.
    fn warn_of_refusal(&self, error: &StoreError) {
        let is_due = || self.0.refusals.is_due(Duration::from_secs(1));
        match error {
            StoreError::Uncertain { error } => self.warn_of_refusal(error),
            StoreError::Refused { code, .. } if is_due() => telemetry::refused(code),
            StoreError::Overloaded if is_due() => telemetry::overloaded(),
            _ => {}
        }
    }
}

/// Returns the check at the share of this process, see [`FailurePolicy::Local`], or the error.
fn share<'a>(check: &'a Check, error: &StoreError) -> Result<Cow<'a, Check>, StoreError> {
    let FailurePolicy::Local { instances } = check.on_failure else { return Err(error.clone()) };
    check.shared_among(instances).ok_or_else(|| error.clone())
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The debug output of the connection may contain a password.
        f.debug_struct("RedisStore").finish_non_exhaustive()
    }
}
