//! [`Shared`]: the changed policies, kept in Redis for every server with the same prefix.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tower_sliding_window::StoreError;
use tower_sliding_window::store::{RedisCommands, RedisScript};

use super::changes::{Changes, Versioned};
use crate::lock;

/// How often a server reads the changes of the others.
pub const LOOK_EVERY: Duration = Duration::from_millis(250);
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
    is_stale: AtomicBool,
    compared: Mutex<Compared>,
}

/// How the policies are configured here, and where that was last seen to differ.
#[derive(Default)]
struct Compared {
    here: String,
    elsewhere: Option<String>,
}

impl Shared {
    /// Creates the place where the servers with a prefix keep their changes.
    pub fn new(commands: RedisCommands, prefix: &str) -> Self {
        let put_policies = RedisScript::new(include_str!("put_policies.lua"));
        // No log has this name: the names of logs have braces.
        let key = format!("{prefix}:policies");
        let (is_stale, compared) = (AtomicBool::new(false), Mutex::default());
        Self { commands, key, put_policies, is_stale, compared }
    }

    /// Returns whether Redis can't be read, so that other servers may have changed something.
    pub fn is_stale(&self) -> bool {
        self.is_stale.load(Ordering::Relaxed)
    }

    /// Looks for the changes of other servers again and again. Logs when it fails, and when it works
    /// again.
    pub async fn follow<F>(&self, look: impl Fn() -> F)
    where
        F: Future<Output = Result<(), StoreError>>,
    {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let looked = look().await;
            let was_stale = self.is_stale.swap(looked.is_err(), Ordering::Relaxed);
            match looked {
                Ok(()) if was_stale => tracing::info!("policies are read from Redis again"),
                Err(error) if !was_stale => {
                    tracing::warn!(%error, "policies can't be read from Redis: those known hold");
                }
                Ok(()) | Err(_) => {}
            }
        }
    }

    /// Returns the changes of all servers, or `None` if they are the `known` ones.
    ///
    /// Redis gets back what it has lost.
    ///
    /// # Errors
    ///
    /// As for [`Shared::read`].
    pub async fn take_over(&self, known: &Changes) -> Result<Option<Changes>, StoreError> {
        let found = self.read().await?;
        if found == *known {
            return Ok(None);
        }
        let mut changes = known.join(&found);
        if changes != found {
            // Redis has lost its memory, or a replica that was behind has taken its place.
            changes.version = changes.next_version();
            changes.joined = changes.version;
            if !self.put(&changes, found.version).await? {
                // Another server was faster: what it has changed is joined at the next look.
                return Ok(None);
            }
            tracing::warn!(version = changes.version, "Redis had lost policies: it has them again");
            warn_of_replaced(&found, &changes);
        }
        if changes.joined > known.version {
            warn_of_replaced(known, &changes);
        }
        tracing::info!(version = changes.version, "policies are taken over from Redis");
        Ok(Some(changes))
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

    /// Warns if the flags or the file of another server say something else than those of this one.
    /// Redis keeps the text of the server that was started, or has read its file, last.
    ///
    /// # Errors
    ///
    /// As for [`Shared::read`].
    pub async fn compare(&self, configured: &str) -> Result<(), StoreError> {
        let is_new = lock(&self.compared).here != configured;
        let key = format!("{}:configured", self.key);
        let found: Option<String> = self.commands.query(::redis::cmd("GET").arg(&key)).await?;
        if is_new || found.is_none() {
            let mut set = ::redis::cmd("SET");
            set.arg(&key).arg(configured).arg("PX").arg(millis(TTL));
            let () = self.commands.query(&set).await?;
        }
        let elsewhere = found.filter(|found| found != configured);
        let mut compared = lock(&self.compared);
        if let Some(elsewhere) = &elsewhere
            && (is_new || compared.elsewhere.as_ref() != Some(elsewhere))
        {
            tracing::warn!(
                here = configured,
                %elsewhere,
                "two servers have different policies: each enforces its own, so that users get more \
                 than the lower quota"
            );
        }
        *compared = Compared { here: configured.to_owned(), elsewhere };
        Ok(())
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

/// Warns of changes that were answered, and hold no longer because of a later change by a server that
/// may not have known of them.
fn warn_of_replaced(before: &Changes, after: &Changes) {
    for (target, old, new) in before.replaced_by(after) {
        tracing::warn!(
            ?target,
            ?old,
            new = ?new.unwrap_or("forgotten"),
            "a policy is replaced: servers have changed it that did not know of each other"
        );
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
