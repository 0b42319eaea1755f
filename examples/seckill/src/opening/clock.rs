//! [`FleetClock`]: the clock and the opening that all servers share.

use std::sync::Arc;
use std::time::Duration;

use tower_sliding_window::StoreError;
use tower_sliding_window::store::{RedisCommands, RedisScript};

/// For how long after the opening Redis keeps it: longer than a sale, so that a restart does not move
/// the opening.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// The time since 1970, and the opening that stands.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) now: Duration,
    /// In microseconds since 1970, if no other program has written there.
    pub(crate) held: Option<String>,
}

/// The clock by which all servers open, and where they agree on when.
pub(crate) trait FleetClock: Send + Sync + 'static {
    /// Returns the time and the opening that stands, which is the latest that was ever proposed.
    fn read(
        &self,
        proposed: Option<Duration>,
    ) -> impl Future<Output = Result<Reading, StoreError>> + Send;

    /// Returns the opening that stands.
    fn held(&self) -> impl Future<Output = Result<Option<String>, StoreError>> + Send;
}

/// The clock and the opening of the servers with one prefix.
pub(crate) struct RedisClock {
    commands: RedisCommands,
    /// On a Cluster, the key says which server's clock it is.
    key: String,
    script: Arc<RedisScript>,
}

impl RedisClock {
    pub(crate) fn new(commands: RedisCommands, prefix: &str) -> Self {
        let script = Arc::new(RedisScript::new(include_str!("../opening.lua")));
        Self { commands, key: format!("{prefix}:opening"), script }
    }
}

impl FleetClock for RedisClock {
    async fn read(&self, proposed: Option<Duration>) -> Result<Reading, StoreError> {
        let text = proposed.map(|it| it.as_micros().to_string()).unwrap_or_default();
        let until = proposed.map(|it| (it + KEPT).as_millis().to_string()).unwrap_or_default();
        let (now_us, held): (u64, String) =
            self.commands.script(&self.script, &[&self.key], &[text, until]).await?;
        let held = Some(held).filter(|held| !held.is_empty());
        Ok(Reading { now: Duration::from_micros(now_us), held })
    }

    async fn held(&self) -> Result<Option<String>, StoreError> {
        self.commands.query(redis::cmd("GET").arg(&self.key)).await
    }
}
