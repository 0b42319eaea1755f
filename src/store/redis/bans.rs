//! The bans of a [`RedisStore`].

use std::sync::Arc;
use std::time::Duration;

use redis::Pipeline;

use super::RedisStore;
use super::direct::ban_command;
use super::reply::{self, BanOutcome, BanReply};
use crate::error::StoreError;
use crate::key::Key;
use crate::policy::Policy;
use crate::redis::{Client, Scan, read};
use crate::store::{Ban, BanCursor, BanPage, BanStore, StoreFuture};
use crate::window::LogId;

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
            let name = format!("{}:ban", policy.log_name());
            let what = "listing bans on a Cluster";
            let mut scan = Scan::new(&client, &name, cursor.position(), count, what)?;
            let mut bans = Vec::new();
            loop {
                let found = scan.step(bans.len()).await?;
                bans.extend(read_bans(&client, found).await?);
                if scan.is_over(bans.len()) {
                    return Ok(BanPage::new(bans, scan.next_position().map(BanCursor::new)));
                }
            }
        })
    }
}

/// Returns the present bans among these ban records, in one round trip.
async fn read_bans(
    client: &Client,
    records: Vec<(Vec<u8>, Key)>,
) -> Result<Vec<(Key, Ban)>, StoreError> {
    if records.is_empty() {
        return Ok(Vec::new());
    }
    let mut request = Pipeline::with_capacity(records.len() + 1);
    request.cmd("TIME");
    for (name, _) in &records {
        request.cmd("HMGET").arg(name).arg("until").arg("reason");
    }
    let mut replies = client.send_all(&request).await?.into_iter();
    let now_us = replies.next().map_or(Ok((0, 0)), |time| read(&time))?;
    let now_us = now_us.0 * 1_000_000 + now_us.1;
    let mut bans = Vec::with_capacity(records.len());
    for ((_, key), reply) in records.into_iter().zip(replies) {
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
