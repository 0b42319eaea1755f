//! [`Shared`]: the changed policies, kept in Redis for every server with the same prefix.

use std::collections::BTreeMap;
use std::time::Duration;

use tower_sliding_window::StoreError;
use tower_sliding_window::store::{RedisCommands, RedisScript};

use super::changes::{Changes, Versioned};

/// How long the policies outlive the last server.
const TTL: Duration = Duration::from_secs(30 * 24 * 3600);
const A_DAY: Duration = Duration::from_secs(24 * 3600);
/// The fields of [`Changes`] besides its entries. No target has one of these names.
const VERSION: &str = "version";
const JOINED: &str = "joined";
const FORGOTTEN: &str = "forgotten";

/// Keeps the changes in one HASH, which outlives the servers by thirty days.
pub struct Shared {
    commands: RedisCommands,
    key: String,
    put_policies: RedisScript,
}

impl Shared {
    /// Creates the place where the servers with a prefix keep their changes.
    pub fn new(commands: RedisCommands, prefix: &str) -> Self {
        let put_policies = RedisScript::new(include_str!("put_policies.lua"));
        // No log has this name: the names of logs have braces.
        Self { commands, key: format!("{prefix}:policies"), put_policies }
    }

    /// Reads the changes. Renews their time to live once a day.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if Redis does not reply.
    pub async fn read(&self) -> Result<Changes, StoreError> {
        let mut both = ::redis::pipe();
        both.pttl(&self.key).hgetall(&self.key);
        let (left_ms, fields): (i64, BTreeMap<Vec<u8>, Vec<u8>>) =
            self.commands.pipeline(&both).await?;
        // A server reads several times a second, and a read must not be a write each time.
        if left_ms < millis(TTL - A_DAY) && !fields.is_empty() {
            let mut renewal = ::redis::pipe();
            renewal.pexpire(&self.key, millis(TTL)).ignore();
            let () = self.commands.pipeline(&renewal).await?;
        }
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let mut texts: BTreeMap<String, String> =
            fields.into_iter().map(|(field, value)| (text(field), text(value))).collect();
        let [version, joined, forgotten] = [VERSION, JOINED, FORGOTTEN]
            .map(|field| texts.remove(field).and_then(|text| text.parse().ok()).unwrap_or(0));
        let versioned =
            |(target, text): (String, String)| (target, Versioned::read(&text, version));
        let entries = texts.into_iter().map(versioned).collect();
        Ok(Changes { version, joined, forgotten, entries })
    }

    /// Replaces the changes of the version `expected`. Returns whether Redis has that version.
    ///
    /// # Errors
    ///
    /// As for [`Shared::read`].
    pub async fn put(&self, changes: &Changes, expected: u64) -> Result<bool, StoreError> {
        let numbers = [(JOINED, changes.joined), (FORGOTTEN, changes.forgotten)];
        let numbers = numbers.map(|(field, number)| [field.to_owned(), number.to_string()]);
        let entries = changes.entries.iter();
        let entries = entries.map(|(target, entry)| [target.clone(), entry.to_string()]);
        let head = [expected, changes.version].map(|version| version.to_string());
        let mut arguments = [&head[..], &[TTL.as_millis().to_string()]].concat();
        arguments.extend(numbers.into_iter().chain(entries).flatten());
        self.commands.script(&self.put_policies, &self.key, &arguments).await
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
