//! The Lua scripts, called by hash.

use std::sync::LazyLock;

use redis::aio::ConnectionLike;
use redis::{Arg, Cmd, ErrorKind, ServerErrorKind, Value};

use super::reply;
use crate::error::StoreError;

/// Decides and records.
pub(super) static ADMIT: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../../lua/admit.lua")));
/// Takes a request back.
pub(super) static CANCEL: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../../lua/cancel.lua")));

/// A script's text and its hash.
pub(super) struct Script {
    code: String,
    hash: String,
}

impl Script {
    pub(super) fn new(code: &str) -> Self {
        let hash = redis::Script::new(code).get_hash().to_owned();
        Self { code: code.to_owned(), hash }
    }

    /// Begins a call; the keys, `keys` of them, and then the arguments follow.
    pub(super) fn command(&self, keys: usize) -> Cmd {
        // Unlike `redis::ScriptInvocation`, this keeps all arguments in one buffer.
        let mut command = Cmd::with_capacity(16, 256);
        command.arg("EVALSHA").arg(&self.hash).arg(keys);
        command
    }

    /// Makes the call. If, and only if, the server has no such script, nothing has run: then the
    /// call is made again with the script's text, which also loads it.
    pub(super) async fn run(
        &self,
        command: &Cmd,
        connection: &mut impl ConnectionLike,
    ) -> Result<Value, StoreError> {
        const NO_SCRIPT: ErrorKind = ErrorKind::Server(ServerErrorKind::NoScript);
        match command.query_async(connection).await {
            Err(error) if error.kind() == NO_SCRIPT => {
                // Not SCRIPT LOAD and EVALSHA again: the scripts may be flushed in between.
                let mut whole = Cmd::new();
                whole.arg("EVAL").arg(&self.code);
                for argument in command.args_iter().skip(2) {
                    if let Arg::Simple(argument) = argument {
                        whole.arg(argument);
                    }
                }
                whole.query_async(connection).await.map_err(reply::error)
            }
            reply => reply.map_err(reply::error),
        }
    }
}
