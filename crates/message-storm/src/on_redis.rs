//! [`OnRedis`]: groups that a fleet shares through Redis.

use std::time::{Duration, SystemTime};

use tower_sliding_window::store::{RedisCommands, RedisScript};
use tower_sliding_window::{Key, StoreError};

use crate::detector::Check;
use crate::event::Outcome;
use crate::rule::{StormRule, micros};

/// The messages and storms of groups in Redis.
pub(crate) struct OnRedis {
    commands: RedisCommands,
    record: RedisScript,
    profile: RedisScript,
}

/// No numbers, or one row of them.
type Row<T> = Vec<T>;
type Pair = (u64, u32);
/// The reply of `record.lua`.
type Reply =
    (u64, u32, bool, u64, Row<Pair>, Row<Pair>, Row<(u64, u64, u32)>, Row<(u64, u64, u32, u32)>);

impl OnRedis {
    /// Takes the connection of a store. `edit` changes the text of a script, for tests.
    pub(crate) fn new(commands: RedisCommands, edit: impl Fn(&str) -> String) -> Self {
        let record = RedisScript::new(&edit(include_str!("../lua/record.lua")));
        let profile = RedisScript::new(&edit(include_str!("../lua/profile.lua")));
        Self { commands, record, profile }
    }

    /// Does what the check says in one atomic step. A call that is repeated gets the same events again.
    pub(crate) async fn check(&self, check: &Check) -> Result<Outcome, StoreError> {
        let Check { call, rule, message, .. } = check;
        let keys = self.keys(rule, &check.group);
        let mode = if message.is_some() { "record" } else { "look" };
        let message = message.as_ref().map_or(&[][..], Key::as_bytes);
        let threshold = (rule.window_us(), rule.threshold().limit());
        let rest = (rule.ends_below, rule.cap, micros(rule.cool_down), check.remind_us);
        let arguments = (&call.as_bytes()[..], mode, message, threshold, rest);
        let send = || self.commands.script::<Reply>(&self.record, &keys[..], arguments);
        let (now_us, count, is_repeated, recheck_us, storm, started, ended, ongoing) =
            repeated_once(send).await?;
        let at = SystemTime::UNIX_EPOCH + Duration::from_micros(now_us);
        let (storm, started) = (storm.first().copied(), started.first().copied());
        let (ended, ongoing) = (ended.first().copied(), ongoing.first().copied());
        Ok(Outcome { at, count, is_repeated, recheck_us, storm, started, ended, ongoing })
    }

    /// Counts the messages of a group in each step of the window, the oldest first.
    pub(crate) async fn profile(
        &self,
        rule: &StormRule,
        group: &Key,
        step_us: u64,
    ) -> Result<Vec<u32>, StoreError> {
        let (keys, arguments) = (self.keys(rule, group), (rule.window_us(), step_us));
        repeated_once(|| self.commands.script(&self.profile, &keys[..], arguments)).await
    }

    fn keys(&self, rule: &StormRule, group: &Key) -> [Vec<u8>; 2] {
        let name = rule.log_name();
        ["log", "state"].map(|it| self.commands.key_name(group, &format!("{name}:storm:{it}")))
    }
}

/// Sends a call, and once more if its reply is lost.
async fn repeated_once<T, F>(send: impl Fn() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    match send().await {
        // The first error says that the call may have counted.
        Err(error) if error.may_have_counted() => send().await.map_err(|_| error),
        reply => reply,
    }
}
