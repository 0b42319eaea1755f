//! The bans of a [`RedisStore`](super::RedisStore).

use std::sync::Arc;
use std::time::Duration;

use redis::Pipeline;

use super::Inner;
use super::requests::{self, BanOutcome, BanReply};
use crate::error::StoreError;
use crate::key::Key;
use crate::policy::Policy;
use crate::redis::{Client, Scan, read};
use crate::store::{Ban, BanCursor, BanPage};
use crate::window::LogId;

/// When a ban was seen that is imposed now.
const NOW: (Duration, Duration) = (Duration::ZERO, Duration::ZERO);

impl From<BanReply> for Ban {
    fn from(reply: BanReply) -> Self {
        let is_new = reply.outcome == BanOutcome::Imposed;
        let (remaining, reason) = (reply.remaining, reply.reason);
        Self { remaining, reason, is_new, lengthens: reply.lengthens }
    }
}

impl Inner {
    pub(super) async fn ban(&self, log: &LogId) -> Result<Option<Ban>, StoreError> {
        let reply = requests::impose(&self.client, log, Duration::ZERO, "", NOW, false).await?;
        Ok((!reply.remaining.is_zero()).then(|| reply.into()))
    }

    pub(super) async fn impose(
        &self,
        log: &LogId,
        duration: Duration,
        reason: &str,
        only_longer: bool,
    ) -> Result<Ban, StoreError> {
        let ban = requests::impose(&self.client, log, duration, reason, NOW, only_longer).await?;
        // An admission that is under way must not lift it.
        self.denials.forget(std::slice::from_ref(log));
        // The local ban holds in an outage.
        self.local.restore_ban(log, ban.remaining, &ban.reason, Some(ban.timestamp));
        Ok(ban.into())
    }

    pub(super) async fn lift(&self, log: &LogId) -> Result<bool, StoreError> {
        // Before the call and after it: a denial that is under way may still have the ban.
        self.forget_ban(log);
        let (keys, script) = (self.client.keys(), &self.client.scripts().lift);
        let mut command = script.command(3);
        command.arg(keys.ban_record(log)).arg(keys.strikes(log)).arg(keys.lift_mark(log));
        let penalty = log.policy.get_penalty();
        command.arg(penalty.map_or(0, |penalty| penalty.longest_us()));
        let removed = self.client.run(script, &command).await.and_then(|it| read::<u64>(&it));
        self.forget_ban(log);
        Ok(removed? > 0)
    }

    fn forget_ban(&self, log: &LogId) {
        self.denials.forget(std::slice::from_ref(log));
        self.local.lift_ban(log);
    }

    pub(super) async fn bans(
        &self,
        policy: &Arc<Policy>,
        cursor: BanCursor,
        count: usize,
    ) -> Result<BanPage, StoreError> {
        let name = format!("{}:ban", policy.base_name());
        let what = "listing bans on a Cluster";
        let mut scan = Scan::new(&self.client, &name, cursor.position(), count, what)?;
        let mut bans = Vec::new();
        loop {
            let found = scan.step(bans.len()).await?;
            bans.extend(read_bans(&self.client, found).await?);
            if scan.is_over(bans.len()) {
                return Ok(BanPage::new(bans, scan.next_position().map(BanCursor::new)));
            }
        }
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
    let replies: Vec<redis::Value> = read(&client.send_all(&request).await?)?;
    let mut replies = replies.into_iter();
    let now_us = replies.next().map_or(Ok((0, 0)), |time| read(&time))?;
    let now_us = now_us.0 * 1_000_000 + now_us.1;
    let mut bans = Vec::with_capacity(records.len());
    for ((_, key), reply) in records.into_iter().zip(replies) {
        let (until_us, reason): (Option<u64>, Option<Vec<u8>>) = read(&reply)?;
        let wait_us = until_us.unwrap_or(0).saturating_sub(now_us);
        if wait_us > 0 {
            let reason = String::from_utf8_lossy(&reason.unwrap_or_default()).into_owned();
            let remaining = Duration::from_micros(wait_us);
            bans.push((key, Ban { remaining, reason, ..Ban::default() }));
        }
    }
    Ok(bans)
}
