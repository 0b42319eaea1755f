//! The bans of a [`RedisStore`](super::RedisStore).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use redis::Pipeline;
use tokio::time::Instant;

use super::requests;
use super::{RedisStore, Sent};
use crate::error::StoreError;
use crate::key::Key;
use crate::policy::{LONGEST_BAN, Policy};
use crate::redis::{Client, malformed, read};
use crate::store::{Ban, BanPage};
use crate::time::micros;
use crate::window::{Check, LogId, Outcome, STRIKES_REASON};

/// How far apart two readings of the end of one ban are at most.
const SAME_BAN_US: u64 = 1_000_000;

/// How much of the database a step of a page covers.
const MIN_STEP: usize = 10;
const MAX_STEP: usize = 1_000;
/// How much of it a page covers.
const MAX_PER_PAGE: usize = 100_000;

impl RedisStore {
    pub(super) async fn impose_once(
        &self,
        log: &LogId,
        duration: Duration,
        reason: &str,
        only_longer: bool,
    ) -> Result<Ban, StoreError> {
        let length = (micros(duration), micros(duration), 0);
        let client = self.0.client.once();
        let generation = || self.0.denials.generation_of(log);
        let (mut sent, mut known) = (Instant::now(), generation());
        let imposed = requests::impose(&client, log, length, reason, None, only_longer).await?.ban;
        let mut ban = imposed.clone();
        // This process may have lifted it since.
        while generation() != known {
            (sent, known) = (Instant::now(), generation());
            match requests::impose(&client, log, (0, 0, 0), "", None, false).await {
                Ok(reply) => ban = reply.ban,
                Err(_) => break,
            }
        }
        // An admission that is under way must not lift it.
        self.0.denials.forget(std::slice::from_ref(log));
        if !ban.remaining.is_zero() {
            // The local ban holds in an outage.
            self.see_ban(log, &ban, sent);
        }
        Ok(imposed)
    }

    /// Remembers a ban that a reply has shown. `sent` is when the call was sent. A ban that is known here already keeps its
    /// original length.
    pub(super) fn see_ban(&self, log: &LogId, ban: &Ban, sent: Instant) {
        let local = &self.0.local;
        let known_us = local.standing_ban(log).map_or(0, |(ban, now_us)| ban.wait_us(now_us));
        let is_known = !ban.is_new && is_same(known_us, ban.remaining);
        let length = if is_known { Duration::ZERO } else { ban.remaining };
        local.restore_ban(log, length, &ban.reason, sent);
        if self.0.health.since_loss().is_some_and(|since_loss| since_loss < sent.elapsed()) {
            let known = Duration::from_micros(known_us);
            self.note(|state| state.ban(log, ban.remaining.max(known)));
        }
    }

    /// For each log with a penalty, returns how long the ban lasts by Redis and by what is known here. Leaves out a log of which
    /// this process knows something newer.
    fn read_bans<'a>(
        &self,
        check: &'a Check,
        sent: &Sent,
        outcome: &Outcome,
    ) -> impl Iterator<Item = (&'a LogId, Duration, u64)> {
        let logs = check.logs.iter().zip(outcome.logs()).zip(&sent.generations);
        logs.filter_map(|((log, log_outcome), generation)| {
            // A node of a Cluster that is silent says nothing about its bans.
            let says = log.policy.get_penalty().is_some() && log_outcome.is_read();
            // A ban that was imposed or lifted here while the outcome was under way is newer than it.
            if !says || self.0.denials.generation_of(log) != *generation {
                return None;
            }
            let remaining = log_outcome.ban().remaining();
            let Some((ban, now_us)) = self.0.local.standing_ban(log) else {
                return Some((log, remaining, 0));
            };
            let is_later = self.0.local.us_at(sent.at) >= ban.seen_us;
            is_later.then(|| (log, remaining, ban.wait_us(now_us)))
        })
    }

    /// Takes note of the bans in an outcome, for an outage.
    ///
    /// A local ban ends no later than that of Redis, so a client that has waited as long as it was told is
    /// not banned here.
    pub(super) async fn note_bans(&self, check: &Check, sent: &Sent, outcome: &Outcome) {
        let is_shorter =
            |remaining: Duration, known_us| known_us >= micros(remaining) + SAME_BAN_US;
        // A ban that is gone was lifted, unless Redis has lost it: `FLUSHALL` breaks no connection.
        let mut before = self.read_bans(check, sent, outcome);
        let is_sure = !before.any(|(_, remaining, known_us)| is_shorter(remaining, known_us))
            || self.0.client.verify_data(&check.logs[0]).await.is_ok();
        let may_be_lost = !is_sure || self.0.health.losses() != sent.losses;
        for (log, remaining, known_us) in self.read_bans(check, sent, outcome) {
            if may_be_lost && is_shorter(remaining, known_us) {
                // Then the next check writes it, and learns whether it was lifted.
                continue;
            }
            if remaining.is_zero() || !is_same(known_us, remaining) {
                self.0.local.lift_ban(log);
            }
            if !remaining.is_zero() {
                let remaining = remaining.saturating_sub(sent.at.elapsed());
                let ban = Ban { remaining, reason: STRIKES_REASON.to_owned(), ..Ban::default() };
                self.see_ban(log, &ban, sent.at);
            }
        }
    }

    pub(super) async fn lift_once(self, log: LogId) -> Result<bool, StoreError> {
        // A connection that was closed while nobody used it fails here.
        let _ = self.0.client.verify_data(&log).await;
        // Before the call and after it: a denial that is under way may still have the ban.
        self.forget_ban(&log);
        let client = self.0.client.once();
        let (keys, script) = (&client.keys, &client.scripts.lift);
        let mut command = script.command(3);
        command.arg(keys.ban_record(&log)).arg(keys.strikes(&log)).arg(keys.lift_mark(&log));
        command.arg(LONGEST_BAN.as_secs() * 1000);
        let removed = client.run(script, &command).await;
        let removed = removed.and_then(|it| read::<u64>(&it));
        self.forget_ban(&log);
        Ok(removed? > 0)
    }

    fn forget_ban(&self, log: &LogId) {
        self.0.denials.forget(std::slice::from_ref(log));
        self.0.local.lift_ban(log);
    }

    pub(super) async fn page_of_bans(
        self,
        policy: Arc<Policy>,
        cursor: u64,
        count: usize,
    ) -> Result<BanPage, StoreError> {
        let client = &self.0.client;
        if client.is_cluster() {
            // `SCAN` covers one node only.
            return Err(StoreError::Unsupported { what: "listing bans on a Cluster" });
        }
        let (keys, name) = (&client.keys, format!("{}:ban", policy.base_name()));
        let (pattern, count) = (keys.pattern(&name), count.max(1));
        let (mut position, mut step, mut covered) = (cursor, 0, 0);
        let (mut seen, mut bans) = (HashSet::new(), Vec::new());
        loop {
            // Where most keys have the name, a large step would find more than the page needs.
            step = step.max(count.saturating_sub(bans.len()).clamp(MIN_STEP, MAX_STEP));
            let mut scan = redis::cmd("SCAN");
            scan.arg(position).arg("MATCH").arg(&pattern).arg("COUNT").arg(step);
            let (next, names): (u64, Vec<Vec<u8>>) = read(&client.send(&scan).await?)?;
            (position, covered) = (next, covered + step);
            // Large steps where the name is rare among other keys.
            step = if names.len() * 4 < step { (step * 2).min(MAX_STEP) } else { 0 };
            let records =
                names.into_iter().filter_map(|it| keys.key_of(&it, &name).map(|key| (it, key)));
            // SCAN may return a key more than once.
            let records = records.filter(|(_, key)| seen.insert(key.clone())).collect();
            bans.extend(present_bans(client, records).await?);
            if bans.len() >= count || position == 0 || covered >= MAX_PER_PAGE {
                return Ok(BanPage::new(bans, Some(position).filter(|it| *it > 0)));
            }
        }
    }
}

/// Returns whether a ban that Redis has for so long is the one known here: the same ban differs by a round trip. Another one
/// may be shorter, after this one was lifted.
fn is_same(known_us: u64, remaining: Duration) -> bool {
    known_us > 0 && known_us.abs_diff(micros(remaining)) < SAME_BAN_US
}

/// Returns the present bans among these ban records, in one round trip.
async fn present_bans(
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
    let [time, replies @ ..] = &replies[..] else { return Err(malformed("expected a time")) };
    let (seconds, us): (u64, u64) = read(time)?;
    let now_us = seconds * 1_000_000 + us;
    let mut bans = Vec::with_capacity(records.len());
    for ((_, key), reply) in records.into_iter().zip(replies) {
        let (until_us, reason): (Option<u64>, Option<Vec<u8>>) = read(reply)?;
        let wait_us = until_us.unwrap_or(0).saturating_sub(now_us);
        if wait_us > 0 {
            let reason = String::from_utf8_lossy(&reason.unwrap_or_default()).into_owned();
            let remaining = Duration::from_micros(wait_us);
            bans.push((key, Ban { remaining, reason, ..Ban::default() }));
        }
    }
    Ok(bans)
}
