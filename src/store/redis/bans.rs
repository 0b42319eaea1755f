//! The bans of a [`RedisStore`].

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::RedisStore;
use super::calls::Calls;
use super::commands::call_ban;
use super::reply::{self, BanOutcome, BanReply};
use super::script::{BAN, LIFT};
use crate::bans::Ban;
use crate::error::StoreError;
use crate::key::Key;
use crate::policy::Policy;
use crate::store::{BanStore, Partition, StoreFuture};

/// How many keys one call of SCAN looks at.
const KEYS_AT_ONCE: usize = 1000;

/// Imposes a ban, or looks at the one that stands if the duration is zero.
async fn ban(
    calls: &Calls,
    partition: &Partition,
    duration: Duration,
    reason: &str,
) -> Result<BanReply, StoreError> {
    let now = (Duration::ZERO, Duration::ZERO);
    let command = call_ban(calls.keys(), partition, duration, reason, now);
    reply::ban(&calls.run(&BAN, &command).await?)
}

impl From<BanReply> for Ban {
    fn from(reply: BanReply) -> Self {
        let is_new = reply.outcome == BanOutcome::Imposed;
        Self { remaining: reply.remaining, reason: reply.reason, is_new }
    }
}

/// Looks at the ban that stands.
async fn look(calls: &Calls, partition: &Partition) -> Result<Option<Ban>, StoreError> {
    let reply = ban(calls, partition, Duration::ZERO, "").await?;
    Ok((!reply.remaining.is_zero()).then(|| reply.into()))
}

impl BanStore for RedisStore {
    fn ban(&self, partition: &Partition) -> StoreFuture<Option<Ban>> {
        let (calls, partition) = (self.calls.clone(), partition.clone());
        StoreFuture::later(async move { look(&calls, &partition).await })
    }

    fn impose(&self, partition: &Partition, duration: Duration, reason: &str) -> StoreFuture<Ban> {
        let (calls, partition) = (self.calls.clone(), partition.clone());
        let (local, reason) = (self.local.clone(), reason.to_owned());
        StoreFuture::later(async move {
            let ban = ban(&calls, &partition, duration, &reason).await?;
            // For when Redis does not answer.
            let _ = local.impose_seen(&partition, ban.remaining, &ban.reason, Some(ban.at_us));
            Ok(ban.into())
        })
    }

    fn lift(&self, partition: &Partition) -> StoreFuture<bool> {
        let (calls, partition) = (self.calls.clone(), partition.clone());
        let local = self.local.clone();
        StoreFuture::later(async move {
            let _ = local.lift(&partition).await;
            let mut command = LIFT.command(3);
            command.arg(calls.keys().standing(&partition)).arg(calls.keys().strikes(&partition));
            command.arg(calls.keys().lift_mark(&partition));
            let penalty = partition.policy.penalty_for_strikes();
            command.arg(penalty.map_or(0, |penalty| penalty.longest_us()));
            let removed: u64 = reply::read(&calls.run(&LIFT, &command).await?)?;
            Ok(removed > 0)
        })
    }

    fn bans(&self, policy: &Arc<Policy>) -> StoreFuture<Vec<(Key, Ban)>> {
        let (calls, policy) = (self.calls.clone(), policy.clone());
        StoreFuture::later(async move {
            if calls.is_cluster() {
                return Err(StoreError::Unsupported { what: "listing bans on a Cluster" });
            }
            let name = format!("{}:ban", policy.window_name());
            let (mut cursor, mut bans) = (0_u64, Vec::new());
            loop {
                let mut scan = redis::cmd("SCAN");
                scan.arg(cursor).arg("MATCH").arg(calls.keys().pattern(&name));
                scan.arg("COUNT").arg(KEYS_AT_ONCE);
                let (next, found): (u64, Vec<Value>) = reply::read(&calls.send(&scan).await?)?;
                for found in found {
                    let found: Vec<u8> = reply::read(&found)?;
                    let Some(key) = calls.keys().key_of(&found, &name) else { continue };
                    let partition = Partition { policy: policy.clone(), key };
                    let known = bans.iter().any(|(key, _)| *key == partition.key);
                    if let Some(ban) = look(&calls, &partition).await?
                        && !known
                    {
                        bans.push((partition.key, ban));
                    }
                }
                cursor = next;
                if cursor == 0 {
                    return Ok(bans);
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::Keys;

    #[test]
    fn a_key_is_read_back_from_the_name_of_its_standing() {
        let keys = Keys::new("tsw".into());
        for key in [&b""[..], b"alice", b"}:user:ban", b"%7D%", b"a\0\n{", b"sha256:x"] {
            let name = keys.name(key, "user:ban");
            assert_eq!(keys.key_of(&name, "user:ban").unwrap().as_bytes(), key);
        }
        assert!(keys.key_of(b"tsw:{=alice}:other:ban", "user:ban").is_none());
    }
}
