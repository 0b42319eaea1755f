//! The bans of a [`RedisStore`](super::RedisStore).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use redis::Pipeline;

use super::requests;
use super::{Inner, Sent};
use crate::error::StoreError;
use crate::key::Key;
use crate::policy::{LONGEST_BAN, Policy};
use crate::redis::{Client, read};
use crate::store::{Ban, BanPage};
use crate::time::micros;
use crate::window::{BanRecord, Check, LogId, Outcome, STRIKES_REASON};

/// How far apart two readings of the end of one ban are at most.
const SAME_BAN_US: u64 = 1_000_000;

/// When a ban was seen that is imposed now.
const NOW: (u64, u64) = (0, 0);

/// How much of the database a step of a page covers.
const MIN_STEP: usize = 10;
const MAX_STEP: usize = 1_000;
/// How much of it a page covers.
const MAX_PER_PAGE: usize = 100_000;

impl Inner {
    pub(super) async fn ban(&self, log: &LogId) -> Result<Option<Ban>, StoreError> {
        let reply = requests::impose(&self.client, log, (0, 0, 0), "", NOW, false).await?;
        Ok(Some(reply.ban).filter(|ban| !ban.remaining.is_zero()))
    }

    pub(super) async fn impose(
        &self,
        log: &LogId,
        duration: Duration,
        reason: &str,
        only_longer: bool,
    ) -> Result<Ban, StoreError> {
        let length = (micros(duration), micros(duration), 0);
        let (losses, client) = (self.health.losses(), self.client.once());
        let reply = requests::impose(&client, log, length, reason, NOW, only_longer).await?;
        // An admission that is under way must not lift it.
        self.denials.forget(std::slice::from_ref(log));
        // The local ban holds in an outage.
        let ban = reply.ban;
        if ban.is_new {
            self.local.restore_ban(log, ban.remaining, &ban.reason, Some(reply.timestamp));
        } else {
            self.see_ban(log, &ban, reply.timestamp);
        }
        self.note_ban_if_lost(log, losses);
        Ok(ban)
    }

    /// Takes note of a ban that Redis has now. One that is known here keeps its length, of which this is the rest.
    pub(super) fn see_ban(&self, log: &LogId, ban: &Ban, at: Duration) {
        let known_us = self.local.standing_ban(log).map_or(0, |(ban, now_us)| ban.wait_us(now_us));
        let length = new_length(known_us, ban.remaining);
        self.local.restore_ban(log, length, &ban.reason, Some(at));
    }

    /// Has a ban written that was read when Redis had lost less.
    pub(super) fn note_ban_if_lost(&self, log: &LogId, losses: u64) {
        if self.health.losses() != losses {
            self.journal.with(|state| state.ban(log));
        }
    }

    /// Returns whether an outcome knows nothing of a ban that is known here, or only of a shorter one.
    pub(super) fn lacks_a_ban(&self, check: &Check, sent: &Sent, outcome: &Outcome) -> bool {
        let mut logs = check.logs.iter().zip(outcome.logs()).zip(&sent.generations);
        logs.any(|((log, log_outcome), generation)| {
            let same_us = micros(log_outcome.ban().remaining()) + SAME_BAN_US;
            let is_longer = |(ban, now_us): (BanRecord, _)| ban.wait_us(now_us) >= same_us;
            // What is older than a change here is not noted.
            let is_same = || self.denials.generations(std::slice::from_ref(log))[0] == *generation;
            log_outcome.is_read()
                && self.local.standing_ban(log).is_some_and(is_longer)
                && is_same()
        })
    }

    /// Takes note of the bans in an outcome, for an outage.
    ///
    /// A local ban ends no later than that of Redis, so a client that has waited as long as it was told is
    /// not banned here. A ban that was imposed or lifted here while the outcome was under way is newer than it. If it is
    /// not `is_sure` that Redis has lost nothing, no ban becomes shorter.
    pub(super) fn note_bans(&self, check: &Check, sent: &Sent, outcome: &Outcome, is_sure: bool) {
        let is_same = self.denials.generations(&check.logs).into_iter().zip(&sent.generations);
        let is_same = is_same.map(|(now, sent)| now == *sent);
        for ((log, log_outcome), is_same) in check.logs.iter().zip(outcome.logs()).zip(is_same) {
            // A node of a Cluster that is silent says nothing about its bans.
            if !is_same || log.policy.get_penalty().is_none() || !log_outcome.is_read() {
                continue;
            }
            let remaining = log_outcome.ban().remaining();
            let known = self.local.standing_ban(log);
            let sent_us = micros(sent.at.elapsed());
            // Whatever the clock of Redis says, a check that was sent since is a later one.
            if known.as_ref().is_some_and(|(ban, now_us)| {
                let is_unknown = ban.store_timestamp_us.is_none();
                sent_us > now_us.saturating_sub(ban.last_seen_us)
                    && (is_unknown || ban.store_timestamp_us > outcome.timestamp.map(micros))
            }) {
                // The reply to a later check was read before this one, or it was imposed here.
                continue;
            }
            let known_us = known.map_or(0, |(ban, now_us)| ban.wait_us(now_us));
            let is_lost = !is_sure || self.health.losses() != sent.losses;
            if is_lost && known_us >= micros(remaining) + SAME_BAN_US {
                // Redis may have lost it. Then the next check writes it, and learns whether it was lifted.
                continue;
            }
            let length = new_length(known_us, remaining);
            if remaining.is_zero() || !length.is_zero() {
                self.local.lift_ban(log);
            }
            if !remaining.is_zero() {
                let length = length.saturating_sub(sent.at.elapsed());
                self.local.restore_ban(log, length, STRIKES_REASON, outcome.timestamp);
                self.note_ban_if_lost(log, sent.losses);
            }
        }
    }

    pub(super) async fn lift(&self, log: &LogId) -> Result<bool, StoreError> {
        // Before the call and after it: a denial that is under way may still have the ban.
        self.forget_ban(log);
        let (keys, script) = (&self.client.keys, &self.client.scripts.lift);
        let mut command = script.command(3);
        command.arg(keys.ban_record(log)).arg(keys.strikes(log)).arg(keys.lift_mark(log));
        command.arg(LONGEST_BAN.as_secs() * 1000);
        let removed = self.client.once().run(script, &command).await;
        let removed = removed.and_then(|it| read::<u64>(&it));
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
        cursor: u64,
        count: usize,
    ) -> Result<BanPage, StoreError> {
        if self.client.is_cluster() {
            // `SCAN` covers one node only.
            return Err(StoreError::Unsupported { what: "listing bans on a Cluster" });
        }
        let (keys, name) = (&self.client.keys, format!("{}:ban", policy.base_name()));
        let (pattern, count) = (keys.pattern(&name), count.max(1));
        let (mut position, mut step, mut covered) = (cursor, 0, 0);
        let (mut seen, mut bans) = (HashSet::new(), Vec::new());
        loop {
            // Where most keys have the name, a large step would find more than the page needs.
            step = step.max(count.saturating_sub(bans.len()).clamp(MIN_STEP, MAX_STEP));
            let mut scan = redis::cmd("SCAN");
            scan.arg(position).arg("MATCH").arg(&pattern).arg("COUNT").arg(step);
            let (next, names): (u64, Vec<Vec<u8>>) = read(&self.client.send(&scan).await?)?;
            (position, covered) = (next, covered + step);
            // Large steps where the name is rare among other keys.
            step = if names.len() * 4 < step { (step * 2).min(MAX_STEP) } else { 0 };
            let records =
                names.into_iter().filter_map(|it| keys.key_of(&it, &name).map(|key| (it, key)));
            // SCAN may return a key more than once.
            let records = records.filter(|(_, key)| seen.insert(key.clone())).collect();
            bans.extend(read_bans(&self.client, records).await?);
            if bans.len() >= count || position == 0 || covered >= MAX_PER_PAGE {
                return Ok(BanPage::new(bans, Some(position).filter(|it| *it > 0)));
            }
        }
    }
}

/// Returns the length of a ban that Redis has for so long, or zero if it is the one known here: it is only seen again. The same
/// ban differs by a round trip. Another one may be shorter, after this one was lifted.
fn new_length(known_us: u64, remaining: Duration) -> Duration {
    let is_known = known_us > 0 && known_us.abs_diff(micros(remaining)) < SAME_BAN_US;
    if is_known { Duration::ZERO } else { remaining }
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
