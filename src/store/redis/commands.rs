//! [`Commands`]: each question to Redis, and again if the answer is lost.

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;
#[cfg(test)]
use redis::aio::ConnectionManager;

use super::calls::Calls;
#[cfg(test)]
use super::connection::{Connection, Connector};
use super::keys::Keys;
#[cfg(test)]
use super::link::Link;
use super::reply::{self, BanOutcome};
use super::script::{ADMIT, ADMIT_ALL, BAN, CANCEL, RESET, RESTORE, Script};
use crate::error::StoreError;
use crate::penalty::REASON;
use crate::quota::Quota;
use crate::store::{Admission, Check, KnownLog, Partition, Restored, Store, StoreFuture, Verdict};
use crate::window::micros;

/// A Redis server as a store, with nothing remembered in this process.
pub(in crate::store) struct Commands(Arc<Inner>);

struct Inner {
    calls: Calls,
    keys: Keys,
    admit: &'static Script,
    admit_all: &'static Script,
    cancel: &'static Script,
    reset: &'static Script,
    restore: &'static Script,
    /// Whether the connection itself may send a command again whose answer was lost.
    sent_twice: bool,
}

/// A call of the one script or the other.
enum Question {
    One(Cmd),
    All(Cmd),
}

impl Commands {
    pub(super) fn new(calls: Calls, keys: Keys) -> Self {
        Self(Arc::new(Inner {
            calls,
            keys,
            admit: &ADMIT,
            admit_all: &ADMIT_ALL,
            cancel: &CANCEL,
            reset: &RESET,
            restore: &RESTORE,
            sent_twice: false,
        }))
    }

    /// Has every request looked up before it is counted, for the connection may send it twice.
    #[cfg(feature = "cluster")]
    pub(super) fn sent_twice(mut self) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            inner.sent_twice = true;
        }
        self
    }
}

impl Store for Commands {
    fn admit(&self, check: &Arc<Check>) -> StoreFuture<Verdict> {
        let (inner, check) = (self.0.clone(), check.clone());
        let repeated = check.repeated || inner.sent_twice;
        let question = match quota_of_the_commonest(&check) {
            Some(quota) if !repeated => inner.admit(&check, quota),
            _ if repeated => inner.admit_all(&check, "repeat"),
            _ => inner.admit_all(&check, "new"),
        };
        StoreFuture::later(async move {
            match inner.ask(&check, &question).await {
                // Only now is it worth looking whether the request has been counted.
                Err(error) if error.may_have_counted() => {
                    let again = inner.admit_all(&check, "repeat");
                    Box::pin(inner.ask(&check, &again)).await.map_err(|_| error)
                }
                // The connection may have sent it before, with another outcome.
                Err(error) if inner.sent_twice && error.was_sent() => {
                    Err(StoreError::Uncertain { source: Box::new(error) })
                }
                verdict => verdict,
            }
        })
    }

    fn peek(&self, check: &Arc<Check>) -> StoreFuture<Verdict> {
        let (inner, check) = (self.0.clone(), check.clone());
        let question = inner.admit_all(&check, "peek");
        StoreFuture::later(async move { inner.ask(&check, &question).await })
    }

    fn cancel(&self, check: &Arc<Check>) -> StoreFuture<bool> {
        let inner = self.0.clone();
        let mut command = inner.call(inner.cancel, &check.partitions);
        command.arg(check.id.as_bytes()).arg(check.cost);
        for partition in &check.partitions {
            command.arg(partition.policy.horizon_us());
        }
        StoreFuture::later(async move {
            let live: u64 = reply::read(&inner.calls.run(inner.cancel, &command).await?)?;
            Ok(live > 0)
        })
    }

    fn restore(&self, log: &Partition, known: &KnownLog) -> StoreFuture<Restored> {
        let (inner, log, ban) = (self.0.clone(), log.clone(), known.ban.clone());
        let command = inner.call_restore(&log, &known.admissions);
        StoreFuture::later(async move {
            let mut restored = Restored::default();
            if let Some(command) = command {
                let reply = inner.calls.run(inner.restore, &command).await?;
                let (added, reset_us): (u32, i64) = reply::read(&reply)?;
                restored.added = added;
                restored.reset = u64::try_from(reset_us).ok().map(Duration::from_micros);
            }
            if let Some(ban) = ban {
                let seen = (ban.seen_there.unwrap_or_default(), ban.seen);
                let command = call_ban(&inner.keys, &log, ban.remaining, &ban.reason, seen);
                let reply = inner.calls.run(&BAN, &command).await?;
                restored.lifted = reply::ban(&reply)?.outcome == BanOutcome::LiftedSince;
            }
            Ok(restored)
        })
    }

    fn reset(&self, partitions: &[Partition]) -> StoreFuture<()> {
        let inner = self.0.clone();
        let mut command = inner.reset.command(2 * partitions.len());
        for partition in partitions {
            command.arg(inner.keys.window(partition)).arg(inner.keys.reset_mark(partition));
        }
        for partition in partitions {
            command.arg(partition.policy.horizon_us());
        }
        StoreFuture::later(async move { inner.calls.run(inner.reset, &command).await.map(|_| ()) })
    }
}

/// Puts a ban to `ban.lua`, with when it was seen on Redis's clock and how long ago it was seen, both
/// zero for one that is imposed now. A length of zero only looks at the ban that stands.
pub(super) fn call_ban(
    keys: &Keys,
    log: &Partition,
    length: Duration,
    reason: &str,
    (seen_there, seen): (Duration, Duration),
) -> Cmd {
    let decay_us = log.policy.penalty_for_strikes().map_or(0, |penalty| penalty.decay_us());
    let mut command = BAN.command(2);
    command.arg(keys.standing(log)).arg(keys.lift_mark(log));
    command.arg(micros(length)).arg(reason).arg(decay_us);
    command.arg(micros(seen_there)).arg(micros(seen));
    command
}

/// Returns the quota if `admit.lua` can decide: a new request of weight 1 in one window under one
/// quota of whole seconds, of which nothing but the decision is wanted.
fn quota_of_the_commonest(check: &Check) -> Option<Quota> {
    let [partition] = &check.partitions[..] else { return None };
    let ([quota], []) = (partition.policy.quotas(), partition.policy.candidates()) else {
        return None;
    };
    let unpunished = partition.policy.penalty_for_strikes().is_none();
    let plain = unpunished
        && check.cost == 1
        && !check.repeated
        && !check.wants_reset
        && !check.wants_stamp;
    (plain && quota.window().subsec_micros() == 0).then_some(*quota)
}

impl Inner {
    /// Begins a call of a script about some windows.
    fn call(&self, script: &Script, partitions: &[Partition]) -> Cmd {
        let mut command = script.command(partitions.len());
        for partition in partitions {
            command.arg(self.keys.window(partition));
        }
        command
    }

    /// Puts admissions to `restore.lua`, if there are any.
    fn call_restore(&self, log: &Partition, admissions: &[Admission]) -> Option<Cmd> {
        if admissions.is_empty() {
            return None;
        }
        let mut command = self.restore.command(2);
        command.arg(self.keys.window(log)).arg(self.keys.reset_mark(log));
        command.arg(log.policy.horizon_us());
        for admission in admissions {
            command.arg(admission.id.as_bytes()).arg(admission.cost);
            command.arg(micros(admission.age)).arg(if admission.confirmed { "NX" } else { "GT" });
        }
        Some(command)
    }

    /// Asks Redis, and reads its answer.
    async fn ask(&self, check: &Check, question: &Question) -> Result<Verdict, StoreError> {
        match question {
            Question::One(command) => {
                reply::verdict_of_one(&self.calls.run(self.admit, command).await?)
            }
            Question::All(command) => {
                reply::verdict(&self.calls.run(self.admit_all, command).await?, &check.partitions)
            }
        }
    }

    /// Puts a check to `admit.lua`.
    fn admit(&self, check: &Check, quota: Quota) -> Question {
        let mut command = self.call(self.admit, &check.partitions);
        command.arg(check.id.as_bytes()).arg(quota.limit()).arg(quota.window().as_secs());
        Question::One(command)
    }

    /// Puts a check to `admit_all.lua`.
    fn admit_all(&self, check: &Check, mode: &str) -> Question {
        let penalties = || reply::penalties(&check.partitions);
        let windows = check.partitions.len();
        let mut command = self.admit_all.command(windows + 2 * penalties().count());
        for partition in &check.partitions {
            command.arg(self.keys.window(partition));
        }
        for (place, _) in penalties() {
            let partition = &check.partitions[place];
            command.arg(self.keys.standing(partition)).arg(self.keys.strikes(partition));
        }
        command.arg(check.id.as_bytes()).arg(check.cost).arg(mode);
        command.arg(u8::from(check.wants_reset)).arg(windows);
        for partition in &check.partitions {
            let policy = &partition.policy;
            command.arg(policy.horizon_us()).arg(policy.judged().len());
            for quota in policy.quotas() {
                command.arg(quota.limit()).arg(quota.window_us());
            }
            for quota in policy.candidates() {
                command.arg(-i64::from(quota.limit())).arg(quota.window_us());
            }
        }
        for (place, penalty) in penalties() {
            let (most, within_us) =
                penalty.strikes().map_or((0, 0), |it| (it.limit(), it.window_us()));
            command.arg(place + 1).arg(most).arg(within_us);
            let rungs = penalty.rungs_us(check.id);
            command.arg(penalty.decay_us()).arg(REASON).arg(rungs.len());
            rungs.iter().for_each(|rung| {
                command.arg(*rung);
            });
        }
        Question::All(command)
    }
}

#[cfg(test)]
impl Commands {
    /// Returns a store whose scripts read the hash `clock` (fields `s` and `us`) where the shipped
    /// ones ask for `TIME`, and which are the shipped ones otherwise.
    pub(in crate::store) fn with_clock(connection: ConnectionManager, clock: &str) -> Self {
        let with_clock = |shipped: &str| Script::with_clock(shipped, clock);
        let outage = crate::store::failover::Outage::new();
        let connector = Connector::Managed(connection.clone());
        let link = Link::idle(connector, Duration::from_secs(10), outage);
        link.ready(Connection::Managed(connection));
        Self(Arc::new(Inner {
            calls: Calls::new(link, Keys::new(clock.to_owned())),
            keys: Keys::new(clock.to_owned()),
            admit: with_clock(include_str!("../../../lua/admit.lua")),
            admit_all: with_clock(include_str!("../../../lua/admit_all.lua")),
            cancel: with_clock(include_str!("../../../lua/cancel.lua")),
            reset: with_clock(include_str!("../../../lua/reset.lua")),
            restore: with_clock(include_str!("../../../lua/restore.lua")),
            sent_twice: false,
        }))
    }
}

#[cfg(all(test, feature = "cluster"))]
mod tests {
    use test_support::Redis;

    use super::*;
    use crate::policy::Policy;

    #[tokio::test]
    async fn what_may_have_been_sent_before_is_uncertain() {
        let server = Redis::start().await;
        let connection = server.connection().await;
        let setup = "HSET clock s 1790000000 us 0\nSET clock:{=alice}:user x";
        for line in setup.lines() {
            let mut words = line.split(' ');
            let mut command = redis::cmd(words.next().unwrap());
            command.arg(words.collect::<Vec<_>>());
            command.exec_async(&mut connection.clone()).await.unwrap();
        }
        let policy = Arc::new(Policy::new("user").quota(Quota::per_minute(1)));
        let check = Arc::new(Check::new([Partition::new(policy, "alice")]));
        let once = Commands::with_clock(connection.clone(), "clock");
        let error = once.admit(&check).await.unwrap_err();
        assert!(!error.may_have_counted(), "{error:?}");
        // The last sending was refused; an earlier one may have run, on another node.
        let error = Commands::with_clock(connection, "clock").sent_twice().admit(&check).await;
        let error = error.unwrap_err();
        assert!(error.may_have_counted() && matches!(error, StoreError::Uncertain { .. }));
    }

    #[tokio::test]
    async fn what_the_connection_may_send_twice_is_looked_up_before_it_is_counted() {
        let server = Redis::start().await;
        let connection = server.connection().await;
        let time = redis::cmd("HSET").arg(("clock", "s", 1_790_000_000, "us", 0)).to_owned();
        time.exec_async(&mut connection.clone()).await.unwrap();
        let store = Commands::with_clock(connection, "clock").sent_twice();
        let policy = Arc::new(Policy::new("user").quota(Quota::per_minute(1)));
        let check = Arc::new(Check::new([Partition::new(policy, "alice")]));
        for _ in 0..2 {
            assert!(store.admit(&check).await.unwrap().admitted, "it is the same request");
        }
    }
}
