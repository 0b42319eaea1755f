//! Storms in Redis: implements [`StormStore`] for [`RedisStore`].

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use redis::Cmd;

use super::rule::StormRule;
use super::store::{Ended, Ongoing, Started, StormCheck, StormOutcome, StormStore};
use crate::RedisStore;
use crate::key::Key;
use crate::redis::{Client, Script, read};
use crate::store::StoreFuture;
use crate::time::micros;

/// No numbers, or one row of them.
type Rows<T> = Vec<T>;
/// The reply of `record.lua`.
type Reply = (
    u64,
    u32,
    bool,
    u64,
    Rows<(u64, u32)>,
    Rows<(u64, u32)>,
    Rows<(u64, u64, u32)>,
    Rows<(u64, u64, u32, u32)>,
);

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
        let StormCheck { call: id, rule, group, message, remind_every } = check;
        let client = self.client().clone();
        let script = &client.scripts().record;
        let mut command = group_command(&client, script, rule, group);
        command.arg(id.as_bytes());
        command.arg(if message.is_some() { "record" } else { "look" });
        command.arg(message.as_ref().map_or(&[][..], Key::as_bytes));
        command.arg(rule.window_us()).arg(rule.threshold().limit()).arg(rule.end_threshold());
        command.arg(rule.cap_per_group()).arg(micros(rule.cool_down_length()));
        command.arg(remind_every.map_or(0, micros));
        StoreFuture::later(async move {
            let reply = client.run_idempotent(script, &command).await?;
            let (now_us, count, is_repeated, recheck_us, storm, started, ended, ongoing): Reply =
                read(&reply)?;
            let us = Duration::from_micros;
            let mut outcome =
                StormOutcome::new(SystemTime::UNIX_EPOCH + us(now_us), count, is_repeated);
            outcome.recheck_after = (recheck_us > 0).then(|| us(recheck_us));
            outcome.storm = storm.first().map(|&(lasted_us, peak)| (us(lasted_us), peak));
            outcome.started =
                started.first().map(|&(ago_us, count)| Started { ago: us(ago_us), count });
            outcome.ended = ended.first().map(|&(ago_us, lasted_us, peak)| Ended {
                ago: us(ago_us),
                lasted: us(lasted_us),
                peak,
            });
            outcome.ongoing = ongoing.first().map(|&(ago_us, lasted_us, count, peak)| Ongoing {
                ago: us(ago_us),
                lasted: us(lasted_us),
                count,
                peak,
            });
            Ok(outcome)
        })
    }

    fn profile(&self, rule: &Arc<StormRule>, group: &Key, step: Duration) -> StoreFuture<Vec<u32>> {
        let client = self.client().clone();
        let script = &client.scripts().profile;
        let mut command = group_command(&client, script, rule, group);
        command.arg(rule.window_us()).arg(micros(step).max(1));
        StoreFuture::later(async move { read(&client.run_idempotent(script, &command).await?) })
    }
}
