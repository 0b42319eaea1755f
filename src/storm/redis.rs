//! The messages of groups, and their storms, in Redis.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use redis::Cmd;

use super::rule::StormRule;
use super::store::{Ended, Sighted, Sighting, Started, StormStore};
use crate::error::StoreError;
use crate::key::Key;
use crate::store::redis::{Calls, Script, read};
use crate::store::{RedisStore, StoreFuture};
use crate::window::micros;

static RECORD: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../lua/storm/record.lua")));
static PROFILE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../lua/storm/profile.lua")));

impl StormStore for RedisStore {
    fn sight(&self, sighting: &Sighting) -> StoreFuture<Sighted> {
        Scripts::shipped(self).sight(sighting)
    }

    fn profile(&self, rule: &Arc<StormRule>, group: &Key, step: Duration) -> StoreFuture<Vec<u32>> {
        Scripts::shipped(self).profile(rule, group, step)
    }
}

/// The scripts, on a store's link.
#[derive(Clone)]
pub(super) struct Scripts {
    calls: Calls,
    record: &'static Script,
    profile: &'static Script,
}

impl Scripts {
    fn shipped(store: &RedisStore) -> Self {
        Self { calls: store.calls().clone(), record: &RECORD, profile: &PROFILE }
    }

    /// Uses scripts that read the hash `clock` where the shipped ones ask for `TIME`.
    #[cfg(test)]
    pub(super) fn with_clock(store: &RedisStore, clock: &str) -> Self {
        let record = Script::with_clock(include_str!("../../lua/storm/record.lua"), clock);
        let profile = Script::with_clock(include_str!("../../lua/storm/profile.lua"), clock);
        Self { calls: store.calls().clone(), record, profile }
    }

    /// Begins a call of a script about a group.
    fn call(&self, script: &Script, rule: &StormRule, group: &Key) -> Cmd {
        let mut command = script.command(2);
        let name = rule.kept_by();
        for part in ["log", "state"] {
            command.arg(self.calls.name(group, &format!("{name}:storm:{part}")));
        }
        command
    }
}

impl StormStore for Scripts {
    fn sight(&self, sighting: &Sighting) -> StoreFuture<Sighted> {
        let Sighting { call, rule, group, message } = sighting;
        let mut command = self.call(self.record, rule, group);
        command.arg(call.as_bytes());
        command.arg(if message.is_some() { "record" } else { "look" });
        command.arg(message.as_ref().map_or(&[][..], Key::as_bytes));
        command.arg(rule.window_us()).arg(rule.threshold().limit()).arg(rule.end_threshold());
        command.arg(rule.cap_per_group()).arg(rule.cool_down_us());
        let scripts = self.clone();
        StoreFuture::later(async move {
            type Reply = (u64, u32, bool, u64, Vec<u64>, Vec<u64>, Vec<u64>);
            let reply = scripts.calls.run_surely(scripts.record, &command).await?;
            let (now_us, count, is_repeated, look_us, storm, started, ended): Reply = read(&reply)?;
            let at = SystemTime::UNIX_EPOCH + Duration::from_micros(now_us);
            let mut sighted = Sighted::new(at, count, is_repeated);
            sighted.look_us = look_us;
            sighted.storm = numbers(&storm)?.map(|[lasted_us, peak]| (lasted_us, narrow(peak)));
            sighted.started =
                numbers(&started)?.map(|[ago_us, count]| Started { ago_us, count: narrow(count) });
            sighted.ended = numbers(&ended)?.map(|[ago_us, lasted_us, peak]| Ended {
                ago_us,
                lasted_us,
                peak: narrow(peak),
            });
            Ok(sighted)
        })
    }

    fn profile(&self, rule: &Arc<StormRule>, group: &Key, step: Duration) -> StoreFuture<Vec<u32>> {
        let mut command = self.call(self.profile, rule, group);
        let step_us = micros(step);
        command.arg(rule.window_us()).arg(step_us.max(1));
        let scripts = self.clone();
        StoreFuture::later(async move {
            read(&scripts.calls.run_surely(scripts.profile, &command).await?)
        })
    }
}

/// Reads so many numbers, or none.
fn numbers<const N: usize>(numbers: &[u64]) -> Result<Option<[u64; N]>, StoreError> {
    match numbers {
        [] => Ok(None),
        numbers => numbers.try_into().map(Some).map_err(|_| StoreError::Protocol {
            message: format!("expected {N} numbers from record.lua"),
        }),
    }
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
