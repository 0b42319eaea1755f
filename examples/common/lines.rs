//! [`lines`]: the lines of an input, each with what it means or what is wrong with it.

use std::io::{BufRead, Read};

use tokio::sync::mpsc;

/// The longest line, in bytes.
const LONGEST_LINE: usize = 64 * 1024;
/// How many lines are read ahead.
const AHEAD: usize = 16;

/// Why a line could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unread {
    #[error("it is longer than {LONGEST_LINE} bytes")]
    TooLong,
    #[error("the input can't be read any further: {0}")]
    Input(std::io::Error),
}

/// Reads lines from a thread of its own, which does not keep the process from ending, and parses
/// each, numbered from 1 and without its line ending.
///
/// tokio's stdin would: a program that has been asked to stop would wait for one more line.
pub(crate) fn lines<M, E>(
    mut input: impl BufRead + Send + 'static,
    parse: fn(u64, &[u8]) -> Result<M, E>,
) -> mpsc::Receiver<(u64, Result<M, E>)>
where
    M: Send + 'static,
    E: From<Unread> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(AHEAD);
    std::thread::spawn(move || {
        for number in 1.. {
            let Some(line) = next(&mut input).transpose() else { return };
            let over = matches!(line, Err(Unread::Input(_)));
            let parsed = line.map_err(E::from).and_then(|line| parse(number, &line));
            if sender.blocking_send((number, parsed)).is_err() || over {
                return;
            }
        }
    });
    receiver
}

/// Reads the next line, or nothing at the end.
fn next(input: &mut impl BufRead) -> Result<Option<Vec<u8>>, Unread> {
    let mut bytes = Vec::new();
    // Room for the line ending.
    let most = LONGEST_LINE as u64 + 2;
    input.take(most).read_until(b'\n', &mut bytes).map_err(Unread::Input)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    if bytes.len() as u64 == most && !bytes.ends_with(b"\n") {
        input.skip_until(b'\n').map_err(Unread::Input)?;
        return Err(Unread::TooLong);
    }
    let ending = if bytes.ends_with(b"\r\n") { 2 } else { usize::from(bytes.ends_with(b"\n")) };
    bytes.truncate(bytes.len() - ending);
    Ok(Some(bytes))
}
