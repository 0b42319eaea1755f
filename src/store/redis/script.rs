//! The Lua scripts, called by hash.

use std::sync::LazyLock;

use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, ServerErrorKind, Value};

use super::reply;
use crate::error::StoreError;

/// Decides and records.
pub(super) static ADMIT: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../../lua/admit.lua")));
/// Takes a request back.
pub(super) static CANCEL: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../../lua/cancel.lua")));

/// A script and its hash.
pub(super) struct Script(redis::Script);

impl Script {
    pub(super) fn new(code: &str) -> Self {
        Self(redis::Script::new(code))
    }

    /// Begins a call; the keys, `keys` of them, and then the arguments follow.
    pub(super) fn command(&self, keys: usize) -> Cmd {
        // Unlike `redis::ScriptInvocation`, this keeps all arguments in one buffer.
        let mut command = Cmd::with_capacity(16, 256);
        command.arg("EVALSHA").arg(self.0.get_hash()).arg(keys);
        command
    }

    /// Makes the call. If, and only if, the server has no such script, nothing has run: then
    /// the script is loaded and the call made again.
    pub(super) async fn run(
        &self,
        command: &Cmd,
        connection: &mut impl ConnectionLike,
    ) -> Result<Value, StoreError> {
        const NO_SCRIPT: ErrorKind = ErrorKind::Server(ServerErrorKind::NoScript);
        match command.query_async(connection).await {
            Err(error) if error.kind() == NO_SCRIPT => {
                self.0.load_async(connection).await.map_err(reply::error)?;
                command.query_async(connection).await.map_err(reply::error)
            }
            reply => reply.map_err(reply::error),
        }
    }
}
