//! [`Commands`]: each question to Redis, and again if the answer is lost.

use std::future::Future;
use std::time::Duration;

use redis::aio::ConnectionManager;
use redis::{Cmd, Value};
use tokio::time::timeout;

use super::keys::Keys;
use super::reply;
use super::script::{ADMIT, CANCEL, Script, with_argument};
use crate::error::StoreError;
use crate::store::{Check, Partition, Store, StoreFuture, Verdict};

/// Where `admit.lua` has its mode, not counting the keys: behind the command, the hash, the
/// number of keys, the member and the cost.
const MODE: usize = 5;

/// A Redis server as a store, with nothing remembered in this process.
pub(in crate::store) struct Commands {
    connection: ConnectionManager,
    keys: Keys,
    response_timeout: Duration,
    admit: &'static Script,
}

impl Commands {
    pub(super) fn new(connection: ConnectionManager, keys: Keys, timeout: Duration) -> Self {
        Self { connection, keys, response_timeout: timeout, admit: &ADMIT }
    }

    /// Begins a call of a script about some windows.
    fn call(&self, script: &Script, partitions: &[Partition]) -> Cmd {
        let mut command = script.command(partitions.len());
        for partition in partitions {
            command.arg(self.keys.window(partition));
        }
        command
    }

    fn decide(&self, check: &Check, mode: &str) -> StoreFuture<Verdict> {
        let admit = self.admit;
        let mut command = self.call(admit, &check.partitions);
        command.arg(check.id.as_bytes()).arg(check.cost).arg(mode);
        command.arg(u8::from(check.wants_reset));
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
        let mode = MODE + check.partitions.len();
        let quotas = check.partitions.iter().map(|part| part.policy.judged().len()).sum();
        let (mut connection, response_timeout) = (self.connection.clone(), self.response_timeout);
        StoreFuture::later(async move {
            let reply = in_time(response_timeout, admit.run(&command, &mut connection)).await;
            let reply = match reply {
                // Only now is it worth looking whether the request has been counted.
                Err(error) if error.may_have_counted() => {
                    let command = with_argument(&command, mode, b"repeat");
                    in_time(response_timeout, admit.run(&command, &mut connection)).await
                }
                reply => reply,
            };
            reply::verdict(reply?, quotas)
        })
    }
}

impl Store for Commands {
    fn admit(&self, check: &Check) -> StoreFuture<Verdict> {
        self.decide(check, if check.repeated { "repeat" } else { "new" })
    }

    fn peek(&self, check: &Check) -> StoreFuture<Verdict> {
        self.decide(check, "peek")
    }

    fn cancel(&self, check: &Check) -> StoreFuture<bool> {
        let mut command = self.call(&CANCEL, &check.partitions);
        command.arg(check.id.as_bytes()).arg(check.cost);
        let (mut connection, response_timeout) = (self.connection.clone(), self.response_timeout);
        StoreFuture::later(async move {
            let removed = in_time(response_timeout, CANCEL.run(&command, &mut connection)).await?;
            Ok(reply::read::<u64>(&removed)? > 0)
        })
    }

    fn reset(&self, partitions: &[Partition]) -> StoreFuture<()> {
        let mut command = redis::cmd("DEL");
        for partition in partitions {
            command.arg(self.keys.window(partition));
        }
        let (mut connection, response_timeout) = (self.connection.clone(), self.response_timeout);
        StoreFuture::later(async move {
            let deleted =
                async { command.query_async::<Value>(&mut connection).await.map_err(reply::error) };
            in_time(response_timeout, deleted).await.map(drop)
        })
    }
}

/// Waits for an answer, and for a connection to ask on, no longer than this.
async fn in_time(
    limit: Duration,
    reply: impl Future<Output = Result<Value, StoreError>>,
) -> Result<Value, StoreError> {
    timeout(limit, reply).await.unwrap_or(Err(StoreError::Timeout))
}

#[cfg(test)]
impl Commands {
    /// Returns a store whose script reads the hash `clock` (fields `s` and `us`) where the shipped
    /// one asks for `TIME`, and which is the shipped one otherwise.
    pub(in crate::store) fn with_clock(connection: ConnectionManager, clock: &str) -> Self {
        let shipped = include_str!("../../../lua/admit.lua");
        let asks = "call('TIME')";
        assert_eq!(shipped.matches(asks).count(), 1, "TIME is called once");
        let code = shipped.replace(asks, &format!("call('HMGET', '{clock}', 's', 'us')"));
        let keys = Keys::new(clock.to_owned());
        Self {
            admit: Box::leak(Box::new(Script::new(&code))),
            ..Self::new(connection, keys, Duration::from_secs(10))
        }
    }
}
