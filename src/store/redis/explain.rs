//! The explanations of a [`RedisStore`](super::RedisStore), by `explain.lua`.

use redis::Value;
use uuid::Uuid;

use crate::error::StoreError;
use crate::redis::{Client, malformed, read};
use crate::window::{BanRecord, Entry, Explanation, LogId, MAX_LISTED, QuotaReading};

/// The number of slots before those of the quotas in a reply.
const HEAD: usize = 3;
const PER_QUOTA: usize = 3;
const ID_BYTES: usize = 16;

/// Until, level, reason and end of the episode.
type BanFields = (Option<u64>, Option<u64>, Option<Vec<u8>>, Option<u64>);
/// Entries of a ZSET, each with its score.
type Scored = Vec<(Vec<u8>, u64)>;

pub(super) async fn explain(
    client: &Client,
    log: &LogId,
    cost: u32,
) -> Result<Explanation, StoreError> {
    let (keys, script) = (client.keys(), &client.scripts().explain);
    let penalty = log.policy.get_penalty();
    let within_us = penalty.and_then(|it| it.strikes()).map_or(0, |strikes| strikes.window_us());
    let mut command = script.command(3);
    command.arg(keys.log(log)).arg(keys.ban_record(log)).arg(keys.strikes(log));
    command.arg(cost).arg(MAX_LISTED).arg(within_us);
    for quota in log.policy.quotas_and_candidates() {
        command.arg(quota.limit()).arg(quota.window_us());
    }
    explanation(&client.run(script, &command).await?, log, cost)
}

fn explanation(reply: &Value, log: &LogId, cost: u32) -> Result<Explanation, StoreError> {
    let count = HEAD + PER_QUOTA * log.policy.quotas_and_candidates().len();
    let Value::Array(slots) = reply else { return Err(malformed("expected an array")) };
    if slots.len() != count {
        return Err(malformed(format!("expected {count} slots from explain.lua")));
    }
    let (head, quotas) = slots.split_at(HEAD);
    let now_us = read(&head[0])?;
    let readings = quotas.chunks_exact(PER_QUOTA).map(reading);
    let mut readings = readings.collect::<Result<Vec<_>, _>>()?.into_iter();
    let none = || QuotaReading { taken: 0, must_leave: None, oldest: Vec::new() };
    let next = |_| readings.next().unwrap_or_else(none);
    let explanation = Explanation::of(log, cost, now_us, next).with_store("redis");
    let Some(penalty) = log.policy.get_penalty() else { return Ok(explanation) };
    let record = ban_record(&head[1], &head[2])?;
    Ok(explanation.with_ban(record.explain(now_us, penalty)))
}

fn reading(slots: &[Value]) -> Result<QuotaReading, StoreError> {
    let [taken, must_leave, oldest] = slots else { return Err(malformed("expected three slots")) };
    Ok(QuotaReading {
        taken: read(taken)?,
        must_leave: entries(must_leave)?.pop(),
        oldest: entries(oldest)?,
    })
}

fn entries(value: &Value) -> Result<Vec<Entry>, StoreError> {
    let entry = |(member, at_us): (Vec<u8>, u64)| {
        // The further entries of a request have a number after its UUID.
        let id = member.first_chunk::<ID_BYTES>().map(|id| Uuid::from_bytes(*id));
        let id = id.ok_or_else(|| malformed("expected entries that begin with a UUID"))?;
        Ok(Entry { at_us, id })
    };
    read::<Scored>(value)?.into_iter().map(entry).collect()
}

fn ban_record(ban: &Value, strikes: &Value) -> Result<BanRecord, StoreError> {
    let (until_us, level, reason, episode_until_us): BanFields = read(ban)?;
    let reason = String::from_utf8_lossy(&reason.unwrap_or_default()).into_owned();
    let ban = (until_us.unwrap_or(0), level.unwrap_or(0), reason);
    let strikes = entries(strikes)?.into_iter().map(|strike| (strike.at_us, strike.id));
    Ok(BanRecord::from_redis(ban, episode_until_us.unwrap_or(0), strikes))
}
