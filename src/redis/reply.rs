//! Reads the replies and errors of Redis.

use std::vec;

use redis::{ErrorKind, FromRedisValue, RedisError, Value};

use crate::error::StoreError;

pub(crate) fn read<T: FromRedisValue>(reply: &Value) -> Result<T, StoreError> {
    T::from_redis_value_ref(reply)
        .map_err(|error| StoreError::Protocol { message: error.to_string() })
}

pub(crate) fn malformed(expected: impl Into<String>) -> StoreError {
    StoreError::Protocol { message: expected.into() }
}

/// The numbers of a reply, which a script has packed into one string.
///
/// The parser of the connection takes about 1,000 instructions for each value of an array.
pub(crate) struct Numbers<'a>(&'a [[u8; 8]]);

impl<'a> Numbers<'a> {
    pub(crate) fn of(reply: &'a Value) -> Result<Self, StoreError> {
        let Value::BulkString(bytes) = reply else { return Err(malformed("expected numbers")) };
        let (numbers, []) = bytes.as_chunks() else {
            return Err(malformed("expected numbers of 8 bytes"));
        };
        Ok(Self(numbers))
    }

    pub(crate) fn next(&mut self) -> Result<i64, StoreError> {
        let (first, rest) = self.0.split_first().ok_or_else(|| malformed("expected a number"))?;
        self.0 = rest;
        // Lua has no other numbers than doubles.
        Ok(f64::from_be_bytes(*first) as i64)
    }

    pub(crate) fn next_unsigned(&mut self) -> Result<u64, StoreError> {
        u64::try_from(self.next()?).map_err(|_| malformed("expected a number of 0 or more"))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The replies to the requests of one call: packed numbers, and, if Redis could not serve all requests, an
/// array with a text for each of those.
pub(crate) struct Replies<'a> {
    pub(crate) numbers: Numbers<'a>,
    errors: vec::IntoIter<StoreError>,
}

impl<'a> Replies<'a> {
    pub(super) fn of(reply: &'a Value) -> Result<Self, StoreError> {
        let (numbers, errors) = match reply {
            Value::Array(slots) => {
                slots.split_first().ok_or_else(|| malformed("expected a slot"))?
            }
            numbers => (numbers, &[][..]),
        };
        let errors: Vec<_> = errors.iter().map(refusal).collect::<Result<_, _>>()?;
        Ok(Self { numbers: Numbers::of(numbers)?, errors: errors.into_iter() })
    }

    /// Reads the reply to each request. `read` gets the first number of the reply, and those after
    /// it. If the first one is -1, there is an error instead.
    pub(crate) fn read_each<R, T>(
        mut self,
        requests: impl Iterator<Item = R>,
        read: impl Fn(R, i64, &mut Numbers<'_>) -> Result<T, StoreError>,
    ) -> Result<Vec<Result<T, StoreError>>, StoreError> {
        let mut replies = Vec::with_capacity(requests.size_hint().0);
        for request in requests {
            replies.push(match self.numbers.next()? {
                -1 => Err(self.errors.next().ok_or_else(|| malformed("expected an error"))?),
                first => Ok(read(request, first, &mut self.numbers)?),
            });
        }
        match self.numbers.is_empty() && self.errors.len() == 0 {
            true => Ok(replies),
            false => Err(malformed("expected no further reply")),
        }
    }

    /// Returns the error of a request that had to write to a server that is not the master.
    pub(super) fn not_the_master(mut self) -> Option<StoreError> {
        self.errors.find(is_not_the_master)
    }
}

/// Reads the error of a request.
fn refusal(text: &Value) -> Result<StoreError, StoreError> {
    let Value::BulkString(text) = text else {
        return Err(malformed("expected the text of an error"));
    };
    let message = String::from_utf8_lossy(text).into_owned();
    let code = message.split(' ').next().unwrap_or_default();
    let is_code = !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_uppercase());
    let code = if is_code { code.to_owned() } else { code_of("ERR", &message) };
    Ok(StoreError::Refused { code, message })
}

/// Returns whether a server is the master no longer, or has lost the replicas without which it is none.
pub(super) fn is_not_the_master(error: &StoreError) -> bool {
    matches!(error, StoreError::Refused { code, .. }
        if matches!(&**code, "READONLY" | "MASTERDOWN" | "NOREPLICAS"))
}

pub(super) fn error(error: RedisError) -> StoreError {
    let message = error.to_string();
    if error.is_io_error() || error.kind() == ErrorKind::Parse {
        // A reply that breaks off is one that can't be parsed.
        StoreError::Disconnected { message }
    } else {
        StoreError::Refused { code: code_of(error.code().unwrap_or_default(), &message), message }
    }
}

/// Returns the code of an error reply.
///
/// If a command in a script fails, Redis 6.2 replies with the code `ERR` and puts the code of the
/// command into the message: `Error running script (call to f_7a4e): @user_script:23: WRONGTYPE
/// Operation against ...`, or `@user_script: 23: -OOM command not allowed ...`.
pub(super) fn code_of(code: &str, message: &str) -> String {
    let of_command = || {
        let (_, after) = message.rsplit_once("@user_script:")?;
        let word = after.split_once(": ")?.1.split(' ').next()?.trim_start_matches('-');
        word.bytes().all(|byte| byte.is_ascii_uppercase()).then_some(word)
    };
    let inner = if code == "ERR" { of_command() } else { None };
    inner.unwrap_or(code).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Read = Result<Vec<Result<(i64, u64), StoreError>>, StoreError>;

    fn packed(numbers: &[f64]) -> Value {
        Value::BulkString(numbers.iter().flat_map(|number| number.to_be_bytes()).collect())
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    /// Reads replies of two numbers each.
    fn read(slots: Vec<Value>, requests: usize) -> Read {
        let reply = Value::Array(slots);
        let read = |_, first, numbers: &mut Numbers<'_>| Ok((first, numbers.next_unsigned()?));
        Replies::of(&reply)?.read_each(0..requests, read)
    }

    #[test]
    fn reply_of_another_form_is_an_error() {
        let cases = [
            vec![],
            vec![Value::Int(1)],
            vec![text("7 bytes")],
            vec![packed(&[])],
            vec![packed(&[1.0])],
            vec![packed(&[1.0, -4.0])],
            vec![packed(&[1.0, 4.0, 1.0])],
            vec![packed(&[-1.0])],
            vec![packed(&[1.0, 4.0]), text("ERR no request failed")],
        ];
        for slots in cases {
            let message = format!("{slots:?}");
            assert!(matches!(read(slots, 1), Err(StoreError::Protocol { .. })), "{message}");
        }
        assert!(Replies::of(&Value::Nil).is_err());
    }
}
