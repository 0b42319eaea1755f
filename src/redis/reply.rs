//! Reads the replies and errors of Redis.

use redis::{FromRedisValue, RedisError, Value};

use crate::error::StoreError;

pub(crate) fn read<T: FromRedisValue>(reply: &Value) -> Result<T, StoreError> {
    T::from_redis_value_ref(reply)
        .map_err(|error| StoreError::Protocol { message: error.to_string() })
}

pub(crate) fn malformed(expected: impl Into<String>) -> StoreError {
    StoreError::Protocol { message: expected.into() }
}

/// Reads the reply to one of several requests in a call, unless it is the text of an error.
pub(super) fn one_of_many<T>(
    reply: &Value,
    read: fn(&Value) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let Value::BulkString(text) = reply else { return read(reply) };
    let message = String::from_utf8_lossy(text).into_owned();
    let code = message.split(' ').next().unwrap_or_default();
    let is_code = !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_uppercase());
    let code = if is_code { code.to_owned() } else { code_of("ERR", &message) };
    Err(StoreError::Refused { code, message })
}

pub(super) fn error(error: RedisError) -> StoreError {
    let message = error.to_string();
    if error.is_timeout() {
        StoreError::Timeout
    } else if error.is_connection_refusal() {
        StoreError::Unreachable { message }
    } else if error.is_io_error() || error.is_connection_dropped() {
        StoreError::Disconnected { message }
    } else {
        StoreError::Refused { code: code_of(error.code().unwrap_or_default(), &message), message }
    }
}

/// Returns the code of an error reply.
///
/// If a command in a script fails, Redis 6.2 replies with the code `ERR` and puts the code of the
/// command into the message: `Error running script (call to f_7a4e): @user_script:23: WRONGTYPE
/// Operation against ...`.
fn code_of(code: &str, message: &str) -> String {
    let of_command = || {
        let (_, after) = message.split_once("@user_script:")?;
        let word = after.split_once(": ")?.1.split(' ').next()?;
        word.bytes().all(|byte| byte.is_ascii_uppercase()).then_some(word)
    };
    let inner = if code == "ERR" { of_command() } else { None };
    inner.unwrap_or(code).to_owned()
}
