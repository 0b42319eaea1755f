//! Calls of a script as bytes. Those of `RedisStore` are recorded from a store that makes them.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tower_sliding_window::store::{Check, LogId, Store};
use tower_sliding_window::{FailurePolicy, Policy, Quota, RedisStore};

/// How a store sends the checks that are recorded.
#[derive(Clone, Copy)]
pub(crate) enum Sending {
    /// One after the other, so that each call has one.
    Alone,
    /// From 64 tasks, so that a call has as many as the store puts into one.
    Together,
}

impl Sending {
    fn tasks(self) -> usize {
        match self {
            Self::Alone => 1,
            Self::Together => 64,
        }
    }
}

/// Commands as bytes of the protocol.
#[derive(Default)]
pub(crate) struct Recording {
    pub(crate) bytes: Vec<u8>,
    pub(crate) commands: Vec<Command>,
}

/// One of these commands.
pub(crate) struct Command {
    /// Where it ends in the bytes.
    pub(crate) end: usize,
    /// How many decisions it asks for.
    pub(crate) decisions: u64,
}

impl Recording {
    pub(crate) fn push(&mut self, arguments: &[&[u8]]) {
        self.bytes.extend_from_slice(format!("*{}\r\n", arguments.len()).as_bytes());
        for argument in arguments {
            self.bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            self.bytes.extend_from_slice(argument);
            self.bytes.extend_from_slice(b"\r\n");
        }
        self.commands.push(Command { end: self.bytes.len(), decisions: 1 });
    }

    /// Returns how many decisions the commands ask for.
    pub(crate) fn decisions(&self) -> u64 {
        self.commands.iter().map(|command| command.decisions).sum()
    }

    /// Returns the length of one argument of the first command.
    pub(crate) fn argument_length(&self, index: usize) -> Option<usize> {
        let (_, mut at) = count(&self.bytes, 0, b'*').ok()??;
        for _ in 0..index {
            let (length, start) = count(&self.bytes, at, b'$').ok()??;
            at = start + length + 2;
        }
        Some(count(&self.bytes, at, b'$').ok()??.0)
    }
}

/// Lets a [`RedisStore`] check each key `passes` times, and returns what it sent.
pub(crate) async fn checks(
    quota: Quota,
    keys: &[String],
    passes: usize,
    sending: Sending,
) -> Result<Recording> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let port = listener.local_addr()?.port();
    let (stop, stopped) = oneshot::channel();
    let recorder = tokio::spawn(async move {
        let (stream, _) = listener.accept().await?;
        record(stream, stopped).await
    });
    let store = RedisStore::builder()
        .deny_cache(false)
        .response_timeout(Duration::from_secs(60))
        .connect(format!("redis://127.0.0.1:{port}"))
        .await?;
    let policy = Arc::new(Policy::from(quota));
    for _ in 0..passes {
        let mut tasks = JoinSet::new();
        for some in keys.chunks(keys.len().div_ceil(sending.tasks())) {
            let (some, store, policy) = (some.to_vec(), store.clone(), policy.clone());
            tasks.spawn(async move {
                for key in some {
                    // The same check as a layer's: no timestamp is wanted. The recorder replies with
                    // an error. `Closed` keeps the store from writing back the check later.
                    let mut check = Check::new([LogId::new(policy.clone(), key)]);
                    check.on_failure = FailurePolicy::Closed;
                    let _ = store.admit(&check).await;
                }
            });
        }
        tasks.join_all().await;
    }
    let _ = stop.send(());
    let calls = recorder.await??;
    let decisions = calls.decisions();
    anyhow::ensure!(decisions == (keys.len() * passes) as u64, "{decisions} decisions");
    Ok(calls)
}

/// Acts as a server that records the calls of scripts and replies with errors.
async fn record(mut stream: TcpStream, mut stopped: oneshot::Receiver<()>) -> Result<Recording> {
    let (mut calls, mut input, mut output) = (Recording::default(), Vec::new(), Vec::new());
    loop {
        let read = tokio::select! {
            read = stream.read_buf(&mut input) => read?,
            _ = &mut stopped => return Ok(calls),
        };
        if read == 0 {
            return Ok(calls);
        }
        let mut done = 0;
        while let Some((name, keys, length)) = command(&input[done..])? {
            if name == b"EVALSHA" {
                calls.bytes.extend_from_slice(&input[done..done + length]);
                // Each request of `admit.lua` has one key.
                let decisions = std::str::from_utf8(keys)?.parse()?;
                calls.commands.push(Command { end: calls.bytes.len(), decisions });
                output.extend_from_slice(b"-ERR recorded\r\n");
            } else {
                output.extend_from_slice(b"+OK\r\n");
            }
            done += length;
        }
        input.drain(..done);
        stream.write_all(&output).await?;
        output.clear();
    }
}

/// The name of a command, its second argument, and its length in bytes.
type Parsed<'a> = (&'a [u8], &'a [u8], usize);

/// Returns the first command, once it is complete.
fn command(input: &[u8]) -> Result<Option<Parsed<'_>>> {
    let Some((arguments, mut at)) = count(input, 0, b'*')? else { return Ok(None) };
    let mut words: [&[u8]; 3] = [b""; 3];
    for index in 0..arguments {
        let Some((length, start)) = count(input, at, b'$')? else { return Ok(None) };
        at = start + length + 2;
        if input.len() < at {
            return Ok(None);
        }
        if let Some(word) = words.get_mut(index) {
            *word = &input[start..start + length];
        }
    }
    Ok(Some((words[0], words[2], at)))
}

/// Reads a line of a sign and a number, and returns the number and where the next line begins.
fn count(input: &[u8], at: usize, sign: u8) -> Result<Option<(usize, usize)>> {
    let line = &input[at..];
    let Some(end) = line.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
    let digits = line[..end].strip_prefix(&[sign]).context("not a command")?;
    Ok(Some((std::str::from_utf8(digits)?.parse()?, at + end + 2)))
}
