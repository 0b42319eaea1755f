//! [`Shared`]: the changed policies, kept in Redis for every server with the same prefix.

use std::collections::BTreeMap;
use std::time::Duration;

use tower_sliding_window::StoreError;
use tower_sliding_window::store::{RedisCommands, RedisScript};

/// How long the policies outlive the last server.
const TTL: Duration = Duration::from_secs(30 * 24 * 3600);
/// The field of the version. No level and no institution has this name.
const VERSION: &str = "version";

/// What has been changed since the servers were first started.
///
/// Of two, the one of the higher version holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) version: u64,
    /// Also those that this server does not understand, for another server may.
    pub(crate) policies: BTreeMap<String, String>,
}

/// Keeps the changes in one HASH, which outlives the servers by thirty days.
pub(crate) struct Shared {
    commands: RedisCommands,
    key: String,
    put_policies: RedisScript,
}

impl Shared {
    pub(crate) fn new(commands: RedisCommands, prefix: &str) -> Self {
        let put_policies = RedisScript::new(include_str!("put_policies.lua"));
        // No log has this name: the names of logs have braces.
        Self { commands, key: format!("{prefix}:policies"), put_policies }
    }

    /// Reads the changes, and renews their time to live.
    pub(crate) async fn read(&self) -> Result<Changes, StoreError> {
        let ttl = i64::try_from(TTL.as_millis()).unwrap_or(i64::MAX);
        let mut both = redis::pipe();
        both.pexpire(&self.key, ttl).ignore().hgetall(&self.key);
        let (fields,): (BTreeMap<Vec<u8>, Vec<u8>>,) = self.commands.pipeline(&both).await?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let mut policies: BTreeMap<String, String> =
            fields.into_iter().map(|(field, policy)| (text(field), text(policy))).collect();
        let version = policies.remove(VERSION).and_then(|text| text.parse().ok()).unwrap_or(0);
        Ok(Changes { version, policies })
    }

    /// Replaces the changes by newer ones. Returns whether those in Redis were older.
    pub(crate) async fn put(&self, changes: &Changes) -> Result<bool, StoreError> {
        let mut arguments = vec![changes.version.to_string(), TTL.as_millis().to_string()];
        for (target, policy) in &changes.policies {
            arguments.extend([target.clone(), policy.clone()]);
        }
        self.commands.script(&self.put_policies, &self.key, &arguments).await
    }
}
