//! [`SharedPolicies`]: policies that an operator changes on every server.

use std::fmt::Display;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::redis::cmd;
use axum::http::StatusCode;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::Mutex;
use tokio::time::sleep;
use tower_sliding_window::{RedisCommands, RedisScript, StoreError};

use crate::problem::Problem;

/// How often a server looks for a new version.
const LOOK: Duration = Duration::from_secs(1);
/// How long the policies outlive the last server.
const TTL_MS: u64 = 30 * 24 * 3600 * 1000;

/// The policies of one program.
pub trait PolicySet: Send + Sync + 'static {
    /// What an operator can change, all of it, as Redis keeps it in JSON.
    type Document: Clone + Serialize + DeserializeOwned + Send + Sync + 'static;
    /// Why a document can't be used.
    type Error: Display + Send;

    /// Tells whether [`PolicySet::apply`] would take a document. Changes nothing.
    fn check(&self, document: &Self::Document) -> Result<(), Self::Error>;

    /// Puts all policies of a document in force.
    fn apply(&self, document: &Self::Document) -> Result<(), Self::Error>;
}

/// A document of policies that all servers with a prefix share: the one in the Redis HASH
/// `PREFIX:policies`, which has a version. A server without Redis keeps its own.
///
/// Each server looks for a new one once a second. While Redis does not answer, and if a document can't be used, the
/// policies stay as they are. A Redis that has lost the document gets it back.
pub struct SharedPolicies<S: PolicySet> {
    set: S,
    redis: Option<Hash>,
    /// Locked by the look or the change that is under way.
    state: Mutex<Present<S::Document>>,
}

/// The document in force.
#[derive(Clone)]
pub struct Present<D> {
    /// The version that a change replaces, or 0 if no operator has changed anything. It is newer than the document if
    /// the one in Redis can't be used.
    pub version: u64,
    /// What is in force.
    pub document: D,
    version_of_document: u64,
    /// Whether an operator may have changed something that is not in force here: Redis could not be read at the last
    /// look, or the document there can't be used.
    pub is_stale: bool,
}

impl<S: PolicySet> SharedPolicies<S> {
    /// Begins with a document that is in force. It is shared by the servers with one Redis and one prefix, or lasts as
    /// long as this server. Call [`SharedPolicies::look`] before the first request, and spawn [`SharedPolicies::follow`].
    pub fn new(set: S, document: S::Document, redis: Option<(RedisCommands, &str)>) -> Self {
        let redis = redis.map(|(commands, prefix)| {
            let put = RedisScript::new(include_str!("put_document.lua"));
            // No log has this name: the names of logs have braces.
            Hash { commands, key: format!("{prefix}:policies"), put }
        });
        let state = Present { version: 0, document, version_of_document: 0, is_stale: false };
        Self { set, redis, state: Mutex::new(state) }
    }

    /// Returns the policies of the program.
    pub fn set(&self) -> &S {
        &self.set
    }

    /// Returns the document in force.
    pub async fn present(&self) -> Present<S::Document> {
        let mut present = self.state.lock().await.clone();
        present.is_stale |= present.version != present.version_of_document;
        present
    }

    /// Looks for a new version once a second, for ever. Returns at once without Redis.
    pub async fn follow(&self) {
        while self.redis.is_some() {
            sleep(LOOK).await;
            // That it fails is logged.
            let _ = self.look().await;
        }
    }

    /// Looks for a new version, and puts its policies in force. Logs when Redis can't be read, and when
    /// it can again.
    pub async fn look(&self) -> Result<(), StoreError> {
        let Some(redis) = &self.redis else { return Ok(()) };
        let mut state = self.state.lock().await;
        let looked = self.look_at(redis, &mut state).await;
        match (&looked, std::mem::replace(&mut state.is_stale, looked.is_err())) {
            (Ok(()), true) => tracing::info!("policies are read from Redis again"),
            (Err(error), false) => {
                tracing::warn!(%error, "policies can't be read from Redis: those known hold");
            }
            _ => {}
        }
        looked
    }

    async fn look_at(
        &self,
        redis: &Hash,
        state: &mut Present<S::Document>,
    ) -> Result<(), StoreError> {
        let (found, text) = redis.read().await?;
        // A Redis that can't write, such as one that can't save its data, is read all the same.
        let mut renew = cmd("PEXPIRE");
        let _ = redis.commands.query::<()>(renew.arg(&redis.key).arg(TTL_MS)).await;
        let version = state.version_of_document;
        if found < version {
            // Lost, or a server that had not seen the newest policies has put older ones there. If another server was
            // faster, the next look shows what it has put there.
            if redis.put(found, version, &state.document).await?.0 {
                tracing::warn!(version, "Redis had lost the policies: it has them again");
            }
        } else if found != state.version {
            state.version = found;
            match serde_json::from_slice(&text) {
                _ if found == 0 => {}
                Ok(document) => self.apply(found, document, state),
                Err(error) => not_usable(found, &error),
            }
        }
        Ok(())
    }

    /// Changes a part of the document, and keeps the rest. Fails if the operator has seen a `version` that is not the
    /// present one. `bad` makes the response if the document can't be used.
    pub async fn change(
        &self,
        version: Option<u64>,
        edit: impl FnOnce(S::Document) -> Result<S::Document, Problem>,
        bad: impl FnOnce(S::Error) -> Problem,
    ) -> Result<u64, Problem> {
        let unchanged = "Nothing was changed: Redis does not answer, or refuses it.";
        self.look().await.map_err(|error| Problem::from(error).detail(unchanged))?;
        let present = self.present().await;
        if present.is_stale {
            let title = "This server can't use the policies that are in Redis";
            return Err(Problem::new(StatusCode::CONFLICT, "policies-not-read", title).detail(
                "Nothing was changed. Change them at a newer server. If none runs, delete PREFIX:policies in Redis, or \
                 at sms-gateway replace all of them by PUT /policies.",
            ));
        }
        let document = edit(present.document)?;
        self.put(document, version.unwrap_or(present.version), bad).await
    }

    /// Replaces the document, whose version must be the `expected` one: here at once, and on the other
    /// servers within about a second. Returns the new version. `bad` makes the response if it can't be used.
    pub async fn put(
        &self,
        document: S::Document,
        expected: u64,
        bad: impl FnOnce(S::Error) -> Problem,
    ) -> Result<u64, Problem> {
        self.set.check(&document).map_err(bad)?;
        let mut state = self.state.lock().await;
        // One that no other document has had: after a failover Redis may forget some.
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let version = (time.as_millis() as u64).max(expected.saturating_add(1));
        let present = state.version;
        let (is_replaced, present) = match &self.redis {
            Some(redis) => {
                let put = redis.put(expected, version, &document).await;
                put.map_err(Problem::of_unconfirmed_change)?
            }
            None => (present == expected, present),
        };
        if !is_replaced {
            let title = "The policies have changed meanwhile";
            return Err(Problem::new(StatusCode::CONFLICT, "not-changed", title)
                .member("version", present)
                .detail("Nothing was changed. Look at the policies, and send the change again."));
        }
        state.version = version;
        self.apply(version, document, &mut state);
        Ok(version)
    }

    fn apply(&self, version: u64, document: S::Document, state: &mut Present<S::Document>) {
        if let Err(error) = self.set.apply(&document) {
            return not_usable(version, &error);
        }
        tracing::info!(version, "audit: the policies of an operator are in force");
        (state.version_of_document, state.document) = (version, document);
    }
}

fn not_usable(version: u64, error: &dyn Display) {
    let error = error.to_string();
    tracing::error!(version, ?error, "policies in Redis can't be used: the old ones stay");
}

/// The HASH with the document.
struct Hash {
    commands: RedisCommands,
    key: String,
    put: RedisScript,
}

impl Hash {
    /// Returns the version and the document. The version is 0 if there is none.
    async fn read(&self) -> Result<(u64, Vec<u8>), StoreError> {
        let mut read = cmd("HMGET");
        read.arg(&self.key).arg("version").arg("document");
        let (version, text): (Option<u64>, Option<Vec<u8>>) = self.commands.query(&read).await?;
        Ok((version.unwrap_or(0), text.unwrap_or_default()))
    }

    /// Returns whether the document was replaced, and the version that it has now.
    async fn put(
        &self,
        expected: u64,
        version: u64,
        document: &impl Serialize,
    ) -> Result<(bool, u64), StoreError> {
        let arguments = (expected, version, json!(document).to_string(), TTL_MS);
        self.commands.script(&self.put, &self.key, arguments).await
    }
}

#[cfg(test)]
mod tests {
    use test_support::{Redis, eventually};
    use tower_sliding_window::RedisStore;

    use super::*;
    use crate::lock;

    /// A policy that is a number, which may not be 0.
    struct Limit(std::sync::Mutex<u32>);

    impl PolicySet for Limit {
        type Document = u32;
        type Error = &'static str;

        fn check(&self, document: &u32) -> Result<(), &'static str> {
            if *document == 0 { Err("it would refuse everybody") } else { Ok(()) }
        }

        fn apply(&self, document: &u32) -> Result<(), &'static str> {
            self.check(document)?;
            *lock(&self.0) = *document;
            Ok(())
        }
    }

    fn bad(why: &str) -> Problem {
        Problem::plain(StatusCode::BAD_REQUEST).detail(why)
    }

    fn limit(server: &SharedPolicies<Limit>) -> u32 {
        *lock(&server.set().0)
    }

    /// Starts a server that has looked once, as before its first request.
    async fn server(redis: &Redis) -> SharedPolicies<Limit> {
        let store = RedisStore::builder().connect(redis.url()).await.unwrap();
        let server = SharedPolicies::new(Limit(5.into()), 5, Some((store.commands(), "shop")));
        server.look().await.unwrap();
        server
    }

    #[tokio::test]
    async fn what_cannot_be_used_is_kept_out() {
        let redis = Redis::start().await;
        let server = server(&redis).await;
        assert_eq!(server.put(0, 0, bad).await.unwrap_err().status(), StatusCode::BAD_REQUEST);
        assert!(!redis.run::<bool>(&["EXISTS", "shop:policies"]).await);
        let mut version = server.put(7, 0, bad).await.unwrap();
        for document in ["{", "-1", "0"] {
            // The clock of the other server is an hour ahead.
            let newer = version + 3_600_000;
            let text = newer.to_string();
            let hset = ["HSET", "shop:policies", "version", &text, "document", document];
            redis.run::<()>(&hset).await;
            server.look().await.unwrap();
            assert_eq!(limit(&server), 7, "{document}");
            assert!(server.present().await.is_stale, "{document}");
            let refused = server.change(None, Ok, bad).await.unwrap_err();
            assert_eq!(refused.status(), StatusCode::CONFLICT, "what it would keep is not known");
            // No operator was faster than the one who replaces it.
            version = server.put(7, server.present().await.version, bad).await.unwrap();
            assert!(version > newer);
            assert!(!server.present().await.is_stale);
        }
    }

    #[tokio::test]
    async fn a_look_renews_the_ttl_and_needs_no_right_to_write() {
        let redis = Redis::start().await;
        let one = server(&redis).await;
        one.put(7, 0, bad).await.unwrap();
        redis.run::<()>(&["PEXPIRE", "shop:policies", "60000"]).await;
        one.look().await.unwrap();
        assert!(redis.run::<u64>(&["PTTL", "shop:policies"]).await > 60_000);
        *lock(&one.set().0) = 8;
        one.look().await.unwrap();
        assert_eq!(limit(&one), 8, "nothing is new, and put in force again");
        redis.cannot_save().await;
        assert_eq!(limit(&server(&redis).await), 7);
    }

    #[tokio::test]
    async fn the_newest_policies_outlast_a_loss_whoever_looks_first() {
        let mut redis = Redis::start().await;
        let (one, two) = (server(&redis).await, server(&redis).await);
        let version = one.put(7, 0, bad).await.unwrap();
        two.look().await.unwrap();
        let newer = one.put(8, version, bad).await.unwrap();
        redis.restart().await;
        for server in [&two, &one, &two] {
            eventually("the server looks again", async || server.look().await.is_ok()).await;
        }
        assert_eq!((limit(&one), limit(&two)), (8, 8));
        assert_eq!(two.present().await.version, newer);
    }
}
