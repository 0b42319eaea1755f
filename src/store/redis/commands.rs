//! [`Commands`]: each question to Redis, and again if the answer is lost.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::ConnectionManager;
use redis::{Cmd, Value};
use tokio::time::timeout;

use super::keys::Keys;
use super::reply;
use super::script::{ADMIT, ADMIT_ALL, CANCEL, Script};
use crate::error::StoreError;
use crate::quota::Quota;
use crate::store::{Check, Partition, Store, StoreFuture, Verdict};

/// How often a request that nobody was told of is taken back, and how long that may take.
const GIVE_BACK_ATTEMPTS: u32 = 5;
const GIVE_BACK_TIMEOUT: Duration = Duration::from_secs(10);
const GIVE_BACK_PAUSE: Duration = Duration::from_secs(1);

/// A Redis server as a store, with nothing remembered in this process.
pub(in crate::store) struct Commands(Arc<Inner>);

struct Inner {
    connection: ConnectionManager,
    keys: Keys,
    response_timeout: Duration,
    admit: &'static Script,
    admit_all: &'static Script,
}

impl Commands {
    pub(super) fn new(connection: ConnectionManager, keys: Keys, timeout: Duration) -> Self {
        Self(Arc::new(Inner {
            connection,
            keys,
            response_timeout: timeout,
            admit: &ADMIT,
            admit_all: &ADMIT_ALL,
        }))
    }
}

impl Store for Commands {
    fn admit(&self, check: &Check) -> StoreFuture<Verdict> {
        let (inner, check) = (self.0.clone(), check.clone());
        StoreFuture::later(async move {
            let verdict = match quota_of_the_commonest(&check) {
                Some(quota) => inner.admit(&check, quota).await,
                None if check.repeated => inner.admit_all(&check, "repeat").await,
                None => inner.admit_all(&check, "new").await,
            };
            match verdict {
                // Only now is it worth looking whether the request has been counted.
                Err(error) if error.may_have_counted() => {
                    let again = inner.admit_all(&check, "repeat").await;
                    if again.is_err() {
                        tokio::spawn(async move { inner.give_back(&check).await });
                    }
                    again.map_err(|_| error)
                }
                verdict => verdict,
            }
        })
    }

    fn peek(&self, check: &Check) -> StoreFuture<Verdict> {
        let (inner, check) = (self.0.clone(), check.clone());
        StoreFuture::later(async move { inner.admit_all(&check, "peek").await })
    }

    fn cancel(&self, check: &Check) -> StoreFuture<bool> {
        let inner = self.0.clone();
        let command = inner.call_cancel(check);
        StoreFuture::later(async move {
            let removed: u64 = reply::read(&inner.run(&CANCEL, &command).await?)?;
            Ok(removed > 0)
        })
    }

    fn reset(&self, partitions: &[Partition]) -> StoreFuture<()> {
        let inner = self.0.clone();
        let mut command = redis::cmd("DEL");
        for partition in partitions {
            command.arg(inner.keys.window(partition));
        }
        StoreFuture::later(async move {
            let mut connection = inner.connection.clone();
            inner.in_time(command.exec_async(&mut connection)).await?.map_err(reply::error)
        })
    }
}

/// Returns the quota if `admit.lua` can decide: a new request of weight 1 in one window under one
/// quota of whole seconds, of which nothing but the decision is wanted.
fn quota_of_the_commonest(check: &Check) -> Option<Quota> {
    let [partition] = &check.partitions[..] else { return None };
    let ([quota], []) = (partition.policy.quotas(), partition.policy.candidates()) else {
        return None;
    };
    let plain = check.cost == 1 && !check.repeated && !check.wants_reset && !check.wants_stamp;
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

    fn call_cancel(&self, check: &Check) -> Cmd {
        let mut command = self.call(&CANCEL, &check.partitions);
        command.arg(check.id.as_bytes()).arg(check.cost);
        command
    }

    /// Removes a request that nobody was told of. On the connection it stands behind both askings;
    /// where that has broken, it is sent again when there is another.
    async fn give_back(&self, check: &Check) {
        let command = self.call_cancel(check);
        for _ in 0..GIVE_BACK_ATTEMPTS {
            let mut connection = self.connection.clone();
            let removed = timeout(GIVE_BACK_TIMEOUT, CANCEL.run(&command, &mut connection));
            if matches!(removed.await, Ok(Ok(_))) {
                return;
            }
            tokio::time::sleep(GIVE_BACK_PAUSE).await;
        }
    }

    async fn admit(&self, check: &Check, quota: Quota) -> Result<Verdict, StoreError> {
        let mut command = self.call(self.admit, &check.partitions);
        command.arg(check.id.as_bytes()).arg(quota.limit()).arg(quota.window().as_secs());
        reply::verdict_of_one(&self.run(self.admit, &command).await?)
    }

    async fn admit_all(&self, check: &Check, mode: &str) -> Result<Verdict, StoreError> {
        let mut command = self.call(self.admit_all, &check.partitions);
        command.arg(check.id.as_bytes()).arg(check.cost).arg(mode);
        command.arg(u8::from(check.wants_reset));
        let mut judged = 0;
        for partition in &check.partitions {
            let policy = &partition.policy;
            command.arg(policy.horizon_us()).arg(policy.judged().len());
            for quota in policy.quotas() {
                command.arg(quota.limit()).arg(quota.window_us());
            }
            for quota in policy.candidates() {
                command.arg(-i64::from(quota.limit())).arg(quota.window_us());
            }
            judged += policy.judged().len();
        }
        reply::verdict(&self.run(self.admit_all, &command).await?, judged)
    }

    async fn run(&self, script: &Script, command: &Cmd) -> Result<Value, StoreError> {
        let mut connection = self.connection.clone();
        self.in_time(script.run(command, &mut connection)).await?
    }

    /// Waits for an answer, and for a connection to ask on, no longer than the response timeout.
    async fn in_time<T>(&self, answer: impl Future<Output = T>) -> Result<T, StoreError> {
        timeout(self.response_timeout, answer).await.map_err(|_| StoreError::Timeout)
    }
}

#[cfg(test)]
impl Commands {
    /// Returns a store whose scripts read the hash `clock` (fields `s` and `us`) where the shipped
    /// ones ask for `TIME`, and which are the shipped ones otherwise.
    pub(in crate::store) fn with_clock(connection: ConnectionManager, clock: &str) -> Self {
        let with_clock = |shipped: &str| {
            let asks = "call('TIME')";
            assert_eq!(shipped.matches(asks).count(), 1, "TIME is called once");
            let code = shipped.replace(asks, &format!("call('HMGET', '{clock}', 's', 'us')"));
            &*Box::leak(Box::new(Script::new(&code)))
        };
        Self(Arc::new(Inner {
            connection,
            keys: Keys::new(clock.to_owned()),
            response_timeout: Duration::from_secs(10),
            admit: with_clock(include_str!("../../../lua/admit.lua")),
            admit_all: with_clock(include_str!("../../../lua/admit_all.lua")),
        }))
    }
}
