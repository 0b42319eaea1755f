//! The bans of a [`RedisStore`].

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use redis::Pipeline;

use super::RedisStore;
use super::direct::ban_command;
use super::reply::{self, BanOutcome, BanReply};
use crate::error::StoreError;
use crate::key::Key;
use crate::policy::Policy;
use crate::redis::{Client, read};
use crate::store::{Ban, BanCursor, BanPage, BanStore, StoreFuture};
use crate::window::LogId;

const MIN_STEP: usize = 10;
const MAX_STEP: usize = 1_000;
const MAX_PER_PAGE: usize = 100_000;

/// Imposes a ban. If the duration is zero, reads the present one.
async fn call_ban(
    client: &Client,
    log: &LogId,
    duration: Duration,
    reason: &str,
) -> Result<BanReply, StoreError> {
    let now = (Duration::ZERO, Duration::ZERO);
    let command = ban_command(client, log, duration, reason, now);
    reply::ban(&client.run(&client.scripts().ban, &command).await?)
}

impl From<BanReply> for Ban {
    fn from(reply: BanReply) -> Self {
        let is_new = reply.outcome == BanOutcome::Imposed;
        Self { remaining: reply.remaining, reason: reply.reason, is_new }
    }
}

impl BanStore for RedisStore {
    fn ban(&self, log: &LogId) -> StoreFuture<Option<Ban>> {
        let (client, log) = (self.client.clone(), log.clone());
        StoreFuture::later(async move {
            let reply = call_ban(&client, &log, Duration::ZERO, "").await?;
            Ok((!reply.remaining.is_zero()).then(|| reply.into()))
        })
    }

    fn impose(&self, log: &LogId, duration: Duration, reason: &str) -> StoreFuture<Ban> {
        let (client, log) = (self.client.clone(), log.clone());
        let (local, reason) = (self.local.clone(), reason.to_owned());
        StoreFuture::later(async move {
            let ban = call_ban(&client, &log, duration, &reason).await?;
            // The local ban holds in an outage.
            let _ = local.restore_ban(&log, ban.remaining, &ban.reason, Some(ban.timestamp));
            Ok(ban.into())
        })
    }

    fn lift(&self, log: &LogId) -> StoreFuture<bool> {
        let (client, log) = (self.client.clone(), log.clone());
        let local = self.local.clone();
        StoreFuture::later(async move {
            let _ = local.lift(&log).await;
            let (keys, script) = (client.keys(), &client.scripts().lift);
            let mut command = script.command(3);
            command.arg(keys.ban_record(&log)).arg(keys.strikes(&log)).arg(keys.lift_mark(&log));
            let penalty = log.policy.get_penalty();
            command.arg(penalty.map_or(0, |penalty| penalty.longest_us()));
            let removed: u64 = read(&client.run(script, &command).await?)?;
            Ok(removed > 0)
        })
    }

    fn page(&self, policy: &Arc<Policy>, cursor: BanCursor, count: usize) -> StoreFuture<BanPage> {
        let (client, policy) = (self.client.clone(), policy.clone());
        StoreFuture::later(async move {
            if client.is_cluster() {
                return Err(StoreError::Unsupported { what: "listing bans on a Cluster" });
            }
            page(&client, &policy, cursor, count).await
        })
    }
}

/// Scans from a cursor until `count` bans are found or [`MAX_PER_PAGE`] keys are covered.
async fn page(
    client: &Client,
    policy: &Policy,
    cursor: BanCursor,
    count: usize,
) -> Result<BanPage, StoreError> {
    let scan = Scan::new(client, policy);
    let (mut cursor, mut step) = (cursor.position(), count.clamp(MIN_STEP, MAX_STEP));
    let (mut seen, mut bans, mut covered) = (HashSet::new(), Vec::new(), 0);
    loop {
        let (next, mut keys) = scan.step(cursor, step).await?;
        let found = keys.len();
        // SCAN may return a key more than once.
        keys.retain(|(_, key)| seen.insert(key.clone()));
        bans.extend(scan.read_bans(keys).await?);
        (cursor, covered) = (next, covered + step);
        if cursor == 0 {
            return Ok(BanPage::new(bans, None));
        }
        if bans.len() >= count.max(1) || covered >= MAX_PER_PAGE {
            return Ok(BanPage::new(bans, Some(BanCursor::new(cursor))));
        }
        // Large steps where bans are rare among other keys. Where most keys are bans, a large step
        // would find more than the page needs.
        let missing = (count - bans.len()).clamp(MIN_STEP, MAX_STEP);
        step = if found * 4 < step { (step * 2).min(MAX_STEP) } else { missing };
    }
}

struct Scan<'a> {
    client: &'a Client,
    name: String,
    pattern: String,
}

impl<'a> Scan<'a> {
    fn new(client: &'a Client, policy: &Policy) -> Self {
        let name = format!("{}:ban", policy.log_name());
        Self { client, pattern: client.keys().pattern(&name), name }
    }

    /// Scans about `count` keys of the database. Returns the next cursor, and the ban records found
    /// with their keys.
    async fn step(
        &self,
        cursor: u64,
        count: usize,
    ) -> Result<(u64, Vec<(RedisKey, Key)>), StoreError> {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(&self.pattern).arg("COUNT").arg(count);
        let (next, found): (u64, Vec<RedisKey>) = read(&self.client.send(&scan).await?)?;
        let key = |redis_key: RedisKey| {
            let key = self.client.keys().key_of(&redis_key, &self.name)?;
            Some((redis_key, key))
        };
        Ok((next, found.into_iter().filter_map(key).collect()))
    }

    /// Returns the present bans among these ban records, in one round trip.
    async fn read_bans(&self, keys: Vec<(RedisKey, Key)>) -> Result<Vec<(Key, Ban)>, StoreError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let mut request = Pipeline::with_capacity(keys.len() + 1);
        request.cmd("TIME");
        for (redis_key, _) in &keys {
            request.cmd("HMGET").arg(redis_key).arg("until").arg("reason");
        }
        let mut replies = self.client.send_all(&request).await?.into_iter();
        let now_us = replies.next().map_or(Ok((0, 0)), |time| read(&time))?;
        let now_us = now_us.0 * 1_000_000 + now_us.1;
        let mut bans = Vec::with_capacity(keys.len());
        for ((_, key), reply) in keys.into_iter().zip(replies) {
            let (until_us, reason): (Option<u64>, Option<Vec<u8>>) = read(&reply)?;
            let wait_us = until_us.unwrap_or(0).saturating_sub(now_us);
            if wait_us > 0 {
                let reason = String::from_utf8_lossy(&reason.unwrap_or_default()).into_owned();
                let remaining = Duration::from_micros(wait_us);
                bans.push((key, Ban { remaining, reason, is_new: false }));
            }
        }
        Ok(bans)
    }
}

type RedisKey = Vec<u8>;
