//! [`DirectStore`]: each check as one script call, and again if the reply is lost.

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;

use super::reply::{self, BanOutcome};
use crate::error::StoreError;
use crate::policy::Policy;
use crate::quota::Quota;
use crate::redis::{Client, Keys, Script, read};
use crate::store::{Admission, LogSnapshot, Restored, Store, StoreFuture};
use crate::time::micros;
use crate::window::{Check, LogId, Outcome, STRIKES_REASON};

/// A Redis server as a store, with nothing remembered in this process.
#[derive(Clone)]
pub(crate) struct DirectStore {
    client: Client,
    /// Whether the connection itself may send a command again whose reply was lost.
    sent_twice: bool,
}

/// A call of one of the two scripts that decide.
enum Call {
    /// Of `admit.lua`, which is the shorter one.
    Admit(Cmd),
    /// Of `admit_all.lua`.
    AdmitAll(Cmd),
}

impl DirectStore {
    pub(super) fn new(client: Client) -> Self {
        Self { client, sent_twice: false }
    }

    /// Has every request looked up before it is counted, because the connection may send it twice.
    #[cfg(feature = "cluster")]
    pub(super) fn sent_twice(mut self) -> Self {
        self.sent_twice = true;
        self
    }
}

impl Store for DirectStore {
    fn admit(&self, check: &Arc<Check>) -> StoreFuture<Outcome> {
        let (this, check) = (self.clone(), check.clone());
        let repeated = check.repeated || this.sent_twice;
        let call = match only_quota(&check) {
            Some(quota) if !repeated => this.call_admit(&check, quota),
            _ if repeated => this.call_admit_all(&check, "repeat"),
            _ => this.call_admit_all(&check, "new"),
        };
        StoreFuture::later(async move {
            match this.send(&check, &call).await {
                // Only now is it worth looking whether the request has been counted.
                Err(error) if error.may_have_counted() => {
                    let again = this.call_admit_all(&check, "repeat");
                    Box::pin(this.send(&check, &again)).await.map_err(|_| error)
                }
                // The connection may have sent it before, with another outcome.
                Err(error) if this.sent_twice && error.was_sent() => {
                    Err(StoreError::Uncertain { source: Box::new(error) })
                }
                outcome => outcome,
            }
        })
    }

    fn peek(&self, check: &Arc<Check>) -> StoreFuture<Outcome> {
        let (this, check) = (self.clone(), check.clone());
        let call = this.call_admit_all(&check, "peek");
        StoreFuture::later(async move { this.send(&check, &call).await })
    }

    fn cancel(&self, check: &Arc<Check>) -> StoreFuture<bool> {
        let client = self.client.clone();
        let script = &client.scripts().cancel;
        let mut command = self.call(script, &check.logs);
        command.arg(check.id.as_bytes()).arg(check.cost);
        for log in &check.logs {
            command.arg(log.policy.longest_window_us());
        }
        StoreFuture::later(async move {
            let live: u64 = read(&client.run(script, &command).await?)?;
            Ok(live > 0)
        })
    }

    fn restore(&self, log: &LogId, snapshot: &LogSnapshot) -> StoreFuture<Restored> {
        let (client, log, ban) = (self.client.clone(), log.clone(), snapshot.ban.clone());
        let command = self.call_restore(&log, &snapshot.admissions);
        StoreFuture::later(async move {
            let mut restored = Restored::default();
            if let Some(command) = command {
                let reply = client.run(&client.scripts().restore, &command).await?;
                let (added, reset_us): (u32, i64) = read(&reply)?;
                restored.added = added;
                restored.reset = u64::try_from(reset_us).ok().map(Duration::from_micros);
            }
            if let Some(ban) = ban {
                let seen = (ban.store_timestamp.unwrap_or_default(), ban.age);
                let command = call_ban(&client, &log, ban.remaining, &ban.reason, seen);
                let reply = client.run(&client.scripts().ban, &command).await?;
                restored.lifted = reply::ban(&reply)?.outcome == BanOutcome::LiftedSince;
            }
            Ok(restored)
        })
    }

    fn reset(&self, logs: &[LogId]) -> StoreFuture<()> {
        let client = self.client.clone();
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

/// Calls `ban.lua` with a ban, and with when it was seen on Redis's clock and how long ago it was
/// seen, both zero for one that is imposed now. A length of zero only reads the ban that stands.
pub(super) fn call_ban(
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

/// Returns the quota if `admit.lua` can decide: on a new request of cost 1 in one log under one
/// quota of whole seconds, if nothing but the decision is wanted.
fn only_quota(check: &Check) -> Option<Quota> {
    let [log] = &check.logs[..] else { return None };
    let ([quota], []) = (log.policy.quotas(), log.policy.candidates()) else { return None };
    let plain = log.policy.get_penalty().is_none()
        && check.cost == 1
        && !check.repeated
        && !check.wants_reset
        && !check.wants_timestamp;
    (plain && quota.window().subsec_micros() == 0).then_some(*quota)
}

impl DirectStore {
    fn keys(&self) -> &Keys {
        self.client.keys()
    }

    /// Begins a call of a script about some logs.
    fn call(&self, script: &Script, logs: &[LogId]) -> Cmd {
        let mut command = script.command(logs.len());
        for log in logs {
            command.arg(self.keys().log(log));
        }
        command
    }

    /// Calls `restore.lua` with admissions, if there are any.
    fn call_restore(&self, log: &LogId, admissions: &[Admission]) -> Option<Cmd> {
        if admissions.is_empty() {
            return None;
        }
        let mut command = self.client.scripts().restore.command(2);
        command.arg(self.keys().log(log)).arg(self.keys().reset_mark(log));
        command.arg(log.policy.longest_window_us());
        for admission in admissions {
            command.arg(admission.id.as_bytes()).arg(admission.cost);
            command.arg(micros(admission.age)).arg(if admission.confirmed { "NX" } else { "GT" });
        }
        Some(command)
    }

    /// Sends a call, and reads its reply.
    async fn send(&self, check: &Check, call: &Call) -> Result<Outcome, StoreError> {
        let scripts = self.client.scripts();
        match call {
            Call::Admit(command) => {
                reply::admit(&self.client.run(&scripts.admit, command).await?, check)
            }
            Call::AdmitAll(command) => {
                reply::admit_all(&self.client.run(&scripts.admit_all, command).await?, check)
            }
        }
    }

    fn call_admit(&self, check: &Check, quota: Quota) -> Call {
        let mut command = self.call(&self.client.scripts().admit, &check.logs);
        command.arg(check.id.as_bytes()).arg(quota.limit()).arg(quota.window().as_secs());
        Call::Admit(command)
    }

    fn call_admit_all(&self, check: &Check, mode: &str) -> Call {
        let penalties = || reply::penalties(&check.logs);
        let logs = check.logs.len();
        let mut command = self.client.scripts().admit_all.command(logs + 2 * penalties().count());
        for log in &check.logs {
            command.arg(self.keys().log(log));
        }
        for (place, _) in penalties() {
            let log = &check.logs[place];
            command.arg(self.keys().ban_record(log)).arg(self.keys().strikes(log));
        }
        command.arg(check.id.as_bytes()).arg(check.cost).arg(mode);
        command.arg(u8::from(check.wants_reset)).arg(logs);
        for log in &check.logs {
            put_quotas(&mut command, &log.policy);
        }
        for (place, penalty) in penalties() {
            let (most, within_us) =
                penalty.strikes().map_or((0, 0), |it| (it.limit(), it.window_us()));
            command.arg(place + 1).arg(most).arg(within_us);
            let lengths_us = penalty.ban_lengths_us(check.id);
            command.arg(penalty.decay_us()).arg(STRIKES_REASON).arg(lengths_us.len());
            for length_us in lengths_us {
                command.arg(length_us);
            }
        }
        Call::AdmitAll(command)
    }
}

/// Adds a policy's quotas to a call of `admit_all.lua`. A candidate has a negative limit.
fn put_quotas(command: &mut Cmd, policy: &Policy) {
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
    /// Returns a store whose scripts read the hash `clock` instead of `TIME`, which is also the
    /// prefix of its keys.
    pub(crate) fn with_clock(connection: redis::aio::ConnectionManager, clock: &str) -> Self {
        use crate::redis::{CircuitBreaker, Connection, Connector, Outage};

        let connector = Connector::Managed(connection.clone());
        let breaker = CircuitBreaker::idle(connector, Duration::from_secs(10), Outage::new());
        breaker.ready(Connection::Managed(connection));
        Self::new(Client::new(breaker, Keys::new(clock.to_owned())).with_clock(clock))
    }
}

#[cfg(all(test, feature = "cluster"))]
mod tests {
    use redis_test::server::RedisServer;

    use super::*;
    use crate::policy::Policy;
    use crate::redis::tests::connect;

    #[tokio::test]
    async fn what_may_have_been_sent_before_is_uncertain() {
        let server = RedisServer::new();
        let connection = connect(&server).await;
        let setup = "HSET clock s 1790000000 us 0\nSET clock:{=alice}:user x";
        for line in setup.lines() {
            let mut words = line.split(' ');
            let mut command = redis::cmd(words.next().unwrap());
            command.arg(words.collect::<Vec<_>>());
            command.exec_async(&mut connection.clone()).await.unwrap();
        }
        let policy = Arc::new(Policy::new("user").quota(Quota::per_minute(1)));
        let check = Arc::new(Check::new([LogId::new(policy, "alice")]));
        let once = DirectStore::with_clock(connection.clone(), "clock");
        let error = once.admit(&check).await.unwrap_err();
        assert!(!error.may_have_counted(), "{error:?}");
        // The last sending was refused; an earlier one may have run, on another node.
        let error = DirectStore::with_clock(connection, "clock").sent_twice().admit(&check).await;
        let error = error.unwrap_err();
        assert!(error.may_have_counted() && matches!(error, StoreError::Uncertain { .. }));
    }

    #[tokio::test]
    async fn what_the_connection_may_send_twice_is_looked_up_before_it_is_counted() {
        let server = RedisServer::new();
        let connection = connect(&server).await;
        let time = redis::cmd("HSET").arg(("clock", "s", 1_790_000_000, "us", 0)).to_owned();
        time.exec_async(&mut connection.clone()).await.unwrap();
        let store = DirectStore::with_clock(connection, "clock").sent_twice();
        let policy = Arc::new(Policy::new("user").quota(Quota::per_minute(1)));
        let check = Arc::new(Check::new([LogId::new(policy, "alice")]));
        for _ in 0..2 {
            assert!(store.admit(&check).await.unwrap().admitted, "it is the same request");
        }
    }
}
