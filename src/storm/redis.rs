//! Storms in Redis: implements [`StormStore`] for [`RedisStore`].

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use redis::Cmd;

use super::rule::StormRule;
use super::store::{Ended, Started, StormCheck, StormOutcome, StormStore};
use crate::error::StoreError;
use crate::key::Key;
use crate::redis::{Client, Script, malformed, read};
use crate::store::{RedisStore, StoreFuture};
use crate::time::micros;

/// Starts a command that runs a script on the keys of a group.
fn group_command(client: &Client, script: &Script, rule: &StormRule, group: &Key) -> Cmd {
    let mut command = script.command(2);
    let name = rule.log_name();
    for part in ["log", "state"] {
        command.arg(client.name(group, &format!("{name}:storm:{part}")));
    }
    command
}

impl StormStore for RedisStore {
    fn check(&self, check: &StormCheck) -> StoreFuture<StormOutcome> {
        let StormCheck { call: id, rule, group, message } = check;
        let client = self.client().clone();
        let script = &client.scripts().record;
        let mut command = group_command(&client, script, rule, group);
        command.arg(id.as_bytes());
        command.arg(if message.is_some() { "record" } else { "look" });
        command.arg(message.as_ref().map_or(&[][..], Key::as_bytes));
        command.arg(rule.window_us()).arg(rule.threshold().limit()).arg(rule.end_threshold());
        command.arg(rule.cap_per_group()).arg(micros(rule.cool_down_length()));
        StoreFuture::later(async move {
            type Reply = (u64, u32, bool, u64, Vec<u64>, Vec<u64>, Vec<u64>);
            let reply = client.run_idempotent(script, &command).await?;
            let (now_us, count, is_repeated, recheck_us, storm, started, ended): Reply =
                read(&reply)?;
            let at = SystemTime::UNIX_EPOCH + Duration::from_micros(now_us);
            let mut outcome = StormOutcome::new(at, count, is_repeated);
            outcome.recheck_after = (recheck_us > 0).then(|| Duration::from_micros(recheck_us));
            outcome.storm = numbers(&storm)?
                .map(|[lasted_us, peak]| (Duration::from_micros(lasted_us), narrow(peak)));
            outcome.started = numbers(&started)?.map(|[ago_us, count]| Started {
                ago: Duration::from_micros(ago_us),
                count: narrow(count),
            });
            outcome.ended = numbers(&ended)?.map(|[ago_us, lasted_us, peak]| Ended {
                ago: Duration::from_micros(ago_us),
                lasted: Duration::from_micros(lasted_us),
                peak: narrow(peak),
            });
            Ok(outcome)
        })
    }

    fn profile(&self, rule: &Arc<StormRule>, group: &Key, step: Duration) -> StoreFuture<Vec<u32>> {
        let client = self.client().clone();
        let script = &client.scripts().profile;
        let mut command = group_command(&client, script, rule, group);
        let step_us = micros(step);
        command.arg(rule.window_us()).arg(step_us.max(1));
        StoreFuture::later(async move { read(&client.run_idempotent(script, &command).await?) })
    }
}

/// Reads `N` numbers, or none if the list is empty.
fn numbers<const N: usize>(numbers: &[u64]) -> Result<Option<[u64; N]>, StoreError> {
    match numbers {
        [] => Ok(None),
        numbers => {
            let error = |_| malformed(format!("expected {N} numbers from record.lua"));
            numbers.try_into().map(Some).map_err(error)
        }
    }
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
