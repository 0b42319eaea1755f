//! [`Request`]: what one call sends.

use redis::{Arg, Cmd, Pipeline, RedisError, Value};

use super::connection::Connection;
use super::reply::{self, Replies};
use super::scripts::Script;
use crate::error::StoreError;

/// What one call sends.
pub(super) enum Request {
    Command(Cmd),
    Pipeline(Pipeline),
    /// A script of the application, or one that serves one request.
    Script(Script, Cmd),
    /// A script that serves several requests, each with a reply of its own.
    Batch(Script, Cmd),
}

impl Request {
    /// Sends it, and waits for the reply. That to a pipeline is an array.
    pub(super) async fn send(&self, mut connection: Connection) -> Result<Value, StoreError> {
        let reply = match self {
            Self::Pipeline(commands) => {
                commands.query_async(&mut connection).await.map(Value::Array)
            }
            Self::Command(command) | Self::Script(_, command) | Self::Batch(_, command) => {
                command.query_async(&mut connection).await
            }
        };
        let reply = reply.map_err(|error| self.error(error))?;
        if matches!(self, Self::Batch(..))
            && let Some(error) = Replies::of(&reply)?.not_the_master()
        {
            // It concerns the connection.
            return Err(error);
        }
        Ok(reply)
    }

    fn error(&self, error: RedisError) -> StoreError {
        if let Self::Pipeline(commands) = self
            && let Some(errors) = error.clone().into_server_errors()
            && let Some((_, first)) = errors.first()
        {
            // `RedisError::code` has none of a pipeline that it does not know, such as NOREPLICAS.
            let message = first.to_string();
            let code = reply::code_of(first.code(), &message);
            let refused = StoreError::Refused { code, message };
            // These have no key, so that a node refuses them for no slot.
            let is_keyless = |it| matches!(argument(it, 0), Some(b"WAIT" | b"INFO"));
            let is_refused = |at| errors.iter().any(|(of, _)| *of == at);
            let mut numbered = commands.cmd_iter().enumerate();
            let are_all = commands.is_transaction()
                || numbered.all(|(at, command)| is_keyless(command) || is_refused(at));
            return match are_all || !is_redirection(first.code()) {
                true => refused,
                // Some were executed before the slot had moved.
                false => StoreError::Uncertain { error: Box::new(refused) },
            };
        }
        reply::error(error)
    }

    /// Returns what to send to a server that lacks the script. Nothing has run there.
    pub(super) fn with_text(&self) -> Option<Self> {
        match self {
            Self::Command(_) | Self::Pipeline(_) => None,
            Self::Script(it, command) => Some(Self::Script(it.clone(), it.with_text(command))),
            Self::Batch(it, command) => Some(Self::Batch(it.clone(), it.with_text(command))),
        }
    }

    /// Returns the first key, as it is in most commands. On a Cluster a node refuses the others, and names the right one.
    pub(super) fn key(&self) -> Option<&[u8]> {
        match self {
            Self::Command(command) => key_of(command),
            Self::Pipeline(commands) => commands.cmd_iter().find_map(key_of),
            // After EVALSHA, the hash and the number of keys.
            Self::Script(_, command) => argument(command, 3),
            // Keys in several slots are not declared, and follow their number.
            Self::Batch(_, command) => match argument(command, 2) {
                Some(b"0") => argument(command, 4),
                _ => argument(command, 3),
            },
        }
    }
}

/// Returns whether a node of a Cluster refuses a request with this code because its slot is elsewhere, or on its way.
pub(super) fn is_redirection(code: &str) -> bool {
    matches!(code, "MOVED" | "ASK" | "TRYAGAIN")
}

fn key_of(command: &Cmd) -> Option<&[u8]> {
    let name = argument(command, 0)?.to_ascii_uppercase();
    let is_script = name.starts_with(b"EVAL") || name.starts_with(b"FCALL");
    argument(command, if is_script { 3 } else { 1 })
}

fn argument(command: &Cmd, index: usize) -> Option<&[u8]> {
    match command.args_iter().nth(index)? {
        Arg::Simple(argument) => Some(argument),
        _ => None,
    }
}
