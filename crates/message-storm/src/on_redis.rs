//! [`OnRedis`]: groups that a fleet shares through Redis.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tower_sliding_window::{Key, RedisCommands, RedisScript, StoreError};

use crate::check::{Check, Outcome};
use crate::rule::StormRule;

/// The messages and storms of groups in Redis.
pub(crate) struct OnRedis {
    rule: Arc<StormRule>,
    commands: RedisCommands,
    record: RedisScript,
}

/// The reply of `record.lua`. A list has no row of numbers, or one.
type Reply = (u64, u32, u64, Vec<(u64, u32)>, Vec<(u64, u32)>, Vec<(u64, u64, u32)>);

impl OnRedis {
    /// Takes the connection of a store. `edit` changes the text of the script, for tests.
    pub(crate) fn new(
        rule: Arc<StormRule>,
        commands: RedisCommands,
        edit: impl Fn(&str) -> String,
    ) -> Self {
        let record = RedisScript::new(&edit(include_str!("../lua/record.lua")));
        Self { rule, commands, record }
    }

    /// Does what the check says in one atomic step. A call that is repeated gets the same events again.
    pub(crate) async fn check(&self, check: &Check) -> Result<Outcome, StoreError> {
        let (rule, name) = (&*self.rule, self.rule.log_name());
        let keys = ["log", "state"]
            .map(|it| self.commands.key_name(&check.group, &format!("{name}:storm:{it}")));
        let counts = (rule.threshold.limit(), rule.ends_below, rule.cap);
        let message = check.message.as_ref().map(Key::as_bytes);
        let arguments = (&check.call.as_bytes()[..], rule.window_us(), counts, message);
        let (now_us, count, recheck_us, storm, started, ended): Reply =
            self.commands.script(&self.record, &keys[..], arguments).await?;
        let at = SystemTime::UNIX_EPOCH + Duration::from_micros(now_us);
        let (storm, started) = (storm.first().copied(), started.first().copied());
        let ended = ended.first().copied();
        Ok(Outcome { at, count, recheck_us, storm, started, ended })
    }
}
