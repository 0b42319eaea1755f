//! [`Client`]: calls scripts, and sends other commands, about keys of one prefix.

use redis::{Cmd, Pipeline, RedisResult, Value};

use super::circuit_breaker::CircuitBreaker;
use super::connection::Connection;
use super::keys::Keys;
use super::reply;
use super::scripts::{Script, Scripts};
use crate::error::StoreError;
use crate::key::Key;

/// Calls scripts, and sends other commands, through a circuit breaker. Clones share the connection.
#[derive(Clone)]
pub(crate) struct Client {
    breaker: CircuitBreaker,
    keys: Keys,
    scripts: &'static Scripts,
}

impl Client {
    pub(crate) fn new(breaker: CircuitBreaker, keys: Keys) -> Self {
        Self { breaker, keys, scripts: Scripts::shipped() }
    }

    /// Replaces the clock of all scripts, see [`Scripts::with_clock`].
    #[cfg(test)]
    pub(crate) fn with_clock(mut self, clock: &str) -> Self {
        self.scripts = Scripts::with_clock(clock);
        self
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }

    pub(crate) fn scripts(&self) -> &'static Scripts {
        self.scripts
    }

    /// Returns the name of what is kept for a key under a name: `PREFIX:{=KEY}:NAME`. All names of
    /// one key are in one cluster slot.
    #[cfg(any(feature = "storm", feature = "moderation"))]
    pub(crate) fn name(&self, key: &Key, name: &str) -> Vec<u8> {
        self.keys.name(key.as_bytes(), name)
    }

    /// Tells whether the keys are on several servers.
    pub(crate) fn is_cluster(&self) -> bool {
        self.breaker.is_cluster()
    }

    /// Calls a script, and waits for the reply no longer than the store's response timeout.
    ///
    /// The command begins with [`Script::command`].
    pub(crate) async fn run(&self, script: &Script, command: &Cmd) -> Result<Value, StoreError> {
        self.call(async |mut connection| script.run(command, &mut connection).await).await
    }

    /// Calls a script, and again if the reply is lost: for an idempotent script, which replies the
    /// same to a repeated call.
    #[cfg(any(feature = "storm", feature = "moderation"))]
    pub(crate) async fn run_idempotent(
        &self,
        script: &Script,
        command: &Cmd,
    ) -> Result<Value, StoreError> {
        match self.run(script, command).await {
            Err(error) if error.may_have_counted() => {
                self.run(script, command).await.map_err(|_| error)
            }
            reply => reply,
        }
    }

    /// Sends several commands at once, and returns the reply to each.
    pub(crate) async fn send_all(&self, commands: &Pipeline) -> Result<Vec<Value>, StoreError> {
        self.call(async |mut connection| commands.query_async(&mut connection).await).await
    }

    /// Sends any other command.
    pub(crate) async fn send(&self, command: &Cmd) -> Result<Value, StoreError> {
        self.call(async |mut connection| command.query_async(&mut connection).await).await
    }

    async fn call<T>(
        &self,
        request: impl AsyncFnOnce(Connection) -> RedisResult<T>,
    ) -> Result<T, StoreError> {
        self.breaker.call(async |connection| request(connection).await.map_err(reply::error)).await
    }
}
