//! [`DirectStore`]: sends each check as one script call, and once more if the reply is lost.

#[cfg(test)]
mod shared_log;
#[cfg(all(test, feature = "cluster"))]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;
use tokio::time::Instant;

use super::explain::explain;
use super::reply::{self, BanOutcome};
use super::requests::{AdmitRequest, RestoreRequest, SettleRequest};
use crate::error::StoreError;
use crate::policy::Policy;
use crate::redis::{Batch, BatchedRequest, Client, Keys};
use crate::store::underlying::{CheckResult, Underlying};
use crate::store::{LogSnapshot, Restored, Store, StoreFuture};
use crate::time::micros;
use crate::window::{Check, Explanation, LogId, Outcome, STRIKES_REASON};

/// A cheap handle: clones share everything.
#[derive(Clone)]
pub(crate) struct DirectStore(Arc<Inner>);

struct Inner {
    client: Client,
    admissions: Batch<AdmitRequest>,
    settlements: Batch<SettleRequest>,
    restores: Batch<RestoreRequest>,
    /// Whether the connection itself sends a command again if the reply is lost.
    resends: bool,
    /// How long a call may be under way before it counts as failed.
    response_timeout: Duration,
}

impl DirectStore {
    pub(super) fn new(client: Client, response_timeout: Duration) -> Self {
        Self::with(client, response_timeout, false)
    }

    /// Makes Redis look for each request before it counts it, because the connection may send a
    /// command twice. On a Cluster no calls are shared, because most logs are in different slots.
    #[cfg(feature = "cluster")]
    pub(super) fn with_resends(self) -> Self {
        Self::with(self.0.client.clone(), self.0.response_timeout, true)
    }

    fn with(client: Client, response_timeout: Duration, resends: bool) -> Self {
        Self(Arc::new(Inner {
            admissions: Batch::new(client.clone()),
            settlements: Batch::new(client.clone()),
            restores: Batch::new(client.clone()),
            client,
            resends,
            response_timeout,
        }))
    }
}

impl Underlying for DirectStore {
    type Prepared = ();

    fn prepare(&self, _check: &Check, _now: Instant) -> Result<Outcome, ()> {
        Err(())
    }

    async fn send(&self, check: &Check, (): &(), now: Instant) -> CheckResult {
        let request = match AdmitRequest::of(check) {
            Some(request) if !self.0.resends => self.0.admissions.send(request, now),
            _ => return Box::pin(self.admit_alone(check)).await,
        };
        match request.await {
            Ok(Some(reply)) => Ok(reply::admit(&reply, check)),
            Ok(None) => Box::pin(self.admit_alone(check)).await,
            Err(error) => Box::pin(self.repeat_if_lost(check, error)).await,
        }
    }
}

impl Store for DirectStore {
    fn admit(&self, check: &Check) -> StoreFuture<Outcome> {
        let (this, check) = (self.clone(), check.clone());
        StoreFuture::later(async move { this.send(&check, &(), Instant::now()).await })
    }

    fn peek(&self, check: &Check) -> StoreFuture<Outcome> {
        let (this, check) = (self.clone(), check.clone());
        StoreFuture::later(async move { this.admit_all(&check, "peek").await })
    }

    fn explain(&self, check: &Check) -> StoreFuture<Vec<Explanation>> {
        let (this, check) = (self.clone(), check.clone());
        StoreFuture::later(async move {
            let mut explained = Vec::with_capacity(check.logs.len());
            for (log, cost) in check.costs() {
                explained.push(explain(&this.0.client, log, cost).await?);
            }
            Ok(explained)
        })
    }

    fn settle(&self, check: &Check, cost: u32) -> StoreFuture<bool> {
        let (this, request) = (self.clone(), SettleRequest { check: check.clone(), cost });
        StoreFuture::later(async move { Ok(this.run(&this.0.settlements, request).await? > 0) })
    }

    fn restore(&self, log: &LogId, snapshot: &LogSnapshot) -> StoreFuture<Restored> {
        let (this, log, ban) = (self.clone(), log.clone(), snapshot.ban.clone());
        let delay = self.0.response_timeout;
        let request = (!snapshot.admissions.is_empty())
            .then(|| RestoreRequest::new(&log, &snapshot.admissions, delay));
        StoreFuture::later(async move {
            let (client, mut restored) = (&this.0.client, Restored::default());
            if let Some(request) = request {
                let (added, reset_us) = this.run(&this.0.restores, request).await?;
                restored.added = added;
                restored.reset = u64::try_from(reset_us).ok().map(Duration::from_micros);
            }
            if let Some(ban) = ban {
                let seen = (ban.store_timestamp.unwrap_or_default(), ban.age);
                let command = ban_command(client, &log, ban.remaining, &ban.reason, seen);
                let reply = client.run(&client.scripts().ban, &command).await?;
                restored.lifted = reply::ban(&reply)?.outcome == BanOutcome::LiftedSince;
            }
            Ok(restored)
        })
    }

    fn reset(&self, logs: &[LogId]) -> StoreFuture<()> {
        let client = self.0.client.clone();
        let script = &client.scripts().reset;
        let mut command = script.command(2 * logs.len());
        for log in logs {
            command.arg(client.keys().log(log)).arg(client.keys().reset_mark(log));
        }
        for log in logs {
            command.arg(log.policy.longest_window_us());
        }
        StoreFuture::later(async move { client.run(script, &command).await.map(|_| ()) })
    }
}

/// Returns the command that imposes a ban with `ban.lua`. A length of zero only reads the present
/// ban.
///
/// The last pair says when the ban was seen: the time on Redis's clock, and how long ago. Both are
/// zero for a ban that is imposed now.
pub(super) fn ban_command(
    client: &Client,
    log: &LogId,
    length: Duration,
    reason: &str,
    (store_timestamp, seen): (Duration, Duration),
) -> Cmd {
    let keys = client.keys();
    let decay_us = log.policy.get_penalty().map_or(0, |penalty| penalty.decay_us());
    let mut command = client.scripts().ban.command(2);
    command.arg(keys.ban_record(log)).arg(keys.lift_mark(log));
    command.arg(micros(length)).arg(reason).arg(decay_us);
    command.arg(micros(store_timestamp)).arg(micros(seen));
    command
}

impl DirectStore {
    fn keys(&self) -> &Keys {
        self.0.client.keys()
    }

    /// Sends a request to a script that takes several. On a Cluster it goes alone.
    async fn run<R: BatchedRequest>(
        &self,
        batch: &Batch<R>,
        request: R,
    ) -> Result<R::Reply, StoreError> {
        match self.0.resends {
            true => Box::pin(batch.send_alone(request)).await,
            false => batch.send(request, Instant::now()).await,
        }
    }

    /// Decides with `admit_all.lua`, and once more if the reply is lost.
    async fn admit_alone(&self, check: &Check) -> CheckResult {
        let mode = if check.repeated || self.0.resends { "repeat" } else { "new" };
        match self.admit_all(check, mode).await {
            Err(error) => self.repeat_if_lost(check, error).await,
            outcome => outcome,
        }
    }

    /// Sends a check again if Redis may have counted the request. Only this call looks for the
    /// request, because the search costs time.
    async fn repeat_if_lost(&self, check: &Check, error: StoreError) -> CheckResult {
        if error.may_have_counted() {
            return self.admit_all(check, "repeat").await.map_err(|_| error);
        }
        // An earlier attempt of the connection may have counted the request.
        if self.0.resends && error.was_sent() {
            return Err(StoreError::Uncertain { source: Box::new(error) });
        }
        Err(error)
    }

    async fn admit_all(&self, check: &Check, mode: &str) -> CheckResult {
        let (client, command) = (&self.0.client, self.admit_all_command(check, mode));
        let reply = client.run(&client.scripts().admit_all, &command).await?;
        reply::admit_all(&reply, check)
    }

    fn admit_all_command(&self, check: &Check, mode: &str) -> Cmd {
        let penalties = || reply::penalties(&check.logs);
        let logs = check.logs.len();
        let mut command = self.0.client.scripts().admit_all.command(logs + 2 * penalties().count());
        for log in &check.logs {
            command.arg(self.keys().log(log));
        }
        for (index, _) in penalties() {
            let log = &check.logs[index];
            command.arg(self.keys().ban_record(log)).arg(self.keys().strikes(log));
        }
        command.arg(check.id.as_bytes()).arg(mode);
        command.arg(u8::from(check.wants_reset)).arg(logs);
        for (log, cost) in check.costs() {
            command.arg(cost);
            add_quotas(&mut command, &log.policy);
        }
        for (index, penalty) in penalties() {
            let (limit, within_us) =
                penalty.strikes().map_or((0, 0), |it| (it.limit(), it.window_us()));
            command.arg(index + 1).arg(limit).arg(within_us);
            let lengths_us = penalty.ban_lengths_us(check.id);
            command.arg(penalty.decay_us()).arg(STRIKES_REASON).arg(lengths_us.len());
            for length_us in lengths_us {
                command.arg(length_us);
            }
        }
        command
    }
}

/// Adds the quotas of a policy to a call of `admit_all.lua`. A candidate has a negative limit.
fn add_quotas(command: &mut Cmd, policy: &Policy) {
    command.arg(policy.longest_window_us()).arg(policy.quotas_and_candidates().len());
    for quota in policy.quotas() {
        command.arg(quota.limit()).arg(quota.window_us());
    }
    for quota in policy.candidates() {
        command.arg(-i64::from(quota.limit())).arg(quota.window_us());
    }
}

#[cfg(test)]
impl DirectStore {
    /// Creates a store whose scripts read the hash `clock` instead of `TIME`. `clock` is also the
    /// prefix of its keys.
    pub(crate) fn with_clock(connection: redis::aio::ConnectionManager, clock: &str) -> Self {
        use crate::redis::{CircuitBreaker, Connection, Connector, Outage};

        let connector = Connector::Managed(connection.clone());
        let breaker = CircuitBreaker::new(connector, Duration::from_secs(10), Outage::new());
        breaker.set_ready(Connection::Managed(connection));
        // The contract test knows the time of each call.
        let client = Client::new(breaker, Keys::new(clock.to_owned())).with_clock(clock);
        Self::new(client, Duration::ZERO)
    }
}
