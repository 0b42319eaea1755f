//! [`Shared`]: the policies that were changed, kept in Redis for every server with the same prefix.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{RedisResult, Script};

use crate::common::connection::Connection;

/// How long the policies outlive the last server.
const TTL: Duration = Duration::from_secs(30 * 24 * 3600);
/// The field of the version. No level and no institution is called so.
const VERSION: &str = "version";

/// What has been changed since the servers were first started.
///
/// Of two, the one of the higher version holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) version: u64,
    /// Also what this server can't make sense of, for others may.
    pub(crate) policies: BTreeMap<String, String>,
}

/// Keeps the changes in one HASH, which outlives the servers by thirty days.
pub(crate) struct Shared {
    connection: Connection,
    key: String,
    put_policies: Arc<Script>,
}

impl Shared {
    pub(crate) fn new(connection: Connection, prefix: &str) -> Self {
        let put_policies = Arc::new(Script::new(include_str!("put_policies.lua")));
        // No window is named so: those have braces.
        Self { connection, key: format!("{prefix}:policies"), put_policies }
    }

    /// Reads the changes, and renews their time to live.
    pub(crate) async fn read(&self) -> RedisResult<Changes> {
        let ttl = i64::try_from(TTL.as_millis()).unwrap_or(i64::MAX);
        let (fields,): (BTreeMap<Vec<u8>, Vec<u8>>,) = redis::pipe()
            .pexpire(&self.key, ttl)
            .ignore()
            .hgetall(&self.key)
            .query_async(&mut self.connection.clone())
            .await?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let mut policies: BTreeMap<String, String> =
            fields.into_iter().map(|(field, policy)| (text(field), text(policy))).collect();
        let version = policies.remove(VERSION).and_then(|text| text.parse().ok()).unwrap_or(0);
        Ok(Changes { version, policies })
    }

    /// Replaces the changes by newer ones. Says whether those there were older.
    pub(crate) async fn put(&self, changes: &Changes) -> RedisResult<bool> {
        let mut call = self.put_policies.key(&self.key);
        call.arg(changes.version).arg(TTL.as_millis() as u64);
        for (target, policy) in &changes.policies {
            call.arg(target).arg(policy);
        }
        call.invoke_async(&mut self.connection.clone()).await
    }
}
