//! The Lua scripts, called by hash.

use std::sync::LazyLock;

use redis::aio::ConnectionLike;
use redis::{Arg, Cmd, ErrorKind, ServerErrorKind, Value};

use super::reply;
use crate::error::StoreError;

/// Decides on the commonest request and records it.
pub(super) static ADMIT: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../../lua/limit/admit.lua")));
/// Decides on any request and records it.
pub(super) static ADMIT_ALL: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../../lua/limit/admit_all.lua")));
/// Takes a request back.
pub(super) static CANCEL: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../../lua/limit/cancel.lua")));
/// Records what a process knows of a log.
pub(super) static RESTORE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../../lua/limit/restore.lua")));
/// Empties logs, and keeps other processes from writing back what was in them.
pub(super) static RESET: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../../lua/limit/reset.lua")));
/// Imposes a ban, or looks at the one that stands.
pub(super) static BAN: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../../lua/ban/ban.lua")));
/// Lifts a ban, and keeps other processes from imposing it again.
pub(super) static LIFT: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../../lua/ban/lift.lua")));

/// Loads the scripts, so that the first rush does not find them missing a thousand times.
///
/// Whether that works does not matter: a call brings its script along where it is missing.
pub(super) async fn load_all(connection: &mut impl ConnectionLike) {
    for script in [&ADMIT, &ADMIT_ALL, &CANCEL, &RESTORE] {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(&script.code);
        let _ = load.exec_async(connection).await;
    }
}

/// A script's text and its hash.
pub(crate) struct Script {
    code: String,
    hash: String,
}

impl Script {
    pub(crate) fn new(code: &str) -> Self {
        let hash = redis::Script::new(code).get_hash().to_owned();
        Self { code: code.to_owned(), hash }
    }

    /// Creates a script that reads the hash `clock` (fields `s` and `us`) where the shipped one asks
    /// for `TIME`, and is the shipped one otherwise.
    #[cfg(test)]
    pub(crate) fn with_clock(shipped: &str, clock: &str) -> &'static Self {
        let asks = "call('TIME')";
        assert_eq!(shipped.matches(asks).count(), 1, "TIME is called once");
        let code = shipped.replace(asks, &format!("call('HMGET', '{clock}', 's', 'us')"));
        Box::leak(Box::new(Self::new(&code)))
    }

    /// Begins a call; the keys, `keys` of them, and then the arguments follow.
    pub(crate) fn command(&self, keys: usize) -> Cmd {
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
            // Boxed, so that calls do not carry room for what happens once.
            Err(error) if error.kind() == NO_SCRIPT => {
                Box::pin(self.run_and_load(command, connection)).await
            }
            reply => reply.map_err(reply::error),
        }
    }

    async fn run_and_load(
        &self,
        command: &Cmd,
        connection: &mut impl ConnectionLike,
    ) -> Result<Value, StoreError> {
        // Not SCRIPT LOAD and EVALSHA again: the scripts may be flushed in between.
        let named = with_argument(command, 0, b"EVAL");
        let whole = with_argument(&named, 1, self.code.as_bytes());
        whole.query_async(connection).await.map_err(reply::error)
    }
}

/// Returns the same command with one argument replaced.
pub(super) fn with_argument(command: &Cmd, index: usize, argument: &[u8]) -> Cmd {
    let mut changed = Cmd::new();
    for (at, old) in command.args_iter().enumerate() {
        match old {
            _ if at == index => changed.arg(argument),
            Arg::Simple(old) => changed.arg(old),
            // Only SCAN and its kin have others.
            _ => continue,
        };
    }
    changed
}
