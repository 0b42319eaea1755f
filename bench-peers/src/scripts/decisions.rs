//! What a decision costs Redis, in time and in memory, by our script and by the textbook's.

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower_sliding_window::Quota;
use uuid::Uuid;

use crate::programs::Program;
use crate::record::{self, Recording, Sending};
use crate::redis_server::RedisServer;
use crate::setup::{LIMIT, WINDOW};
use crate::table::{Table, median, number, ratio};
use crate::textbook;

pub(crate) const ADMIT: &str = include_str!("../../../lua/limit/admit.lua");
const KEYS: usize = 30_000;
/// In how many pieces the calls are sent.
const PIECES: usize = 20;
/// How often each key is checked again after its log is full.
const DENIED_PASSES: usize = 2;

/// A script with the calls that fill every log, and those that are denied afterwards.
struct Candidate {
    script: &'static str,
    fill: Recording,
    deny: Recording,
}

/// What one run of a candidate cost on a new server.
#[derive(Clone, Copy)]
struct Cost {
    admit_us: f64,
    deny_us: f64,
    bytes_per_key: f64,
}

/// The calls of each candidate: the textbook's, and ours with one and with many requests a call.
pub(crate) struct Candidates([Candidate; 3]);

impl Candidates {
    /// Records the calls.
    pub(crate) async fn record() -> Result<Self> {
        eprintln!("scripts: recording the calls of {KEYS} keys");
        let names: Vec<String> = (0..KEYS).map(|key| format!("user-{key:07}")).collect();
        let quota = Quota::new(LIMIT, WINDOW);
        let limit = LIMIT as usize;
        let ours = async |sending| {
            anyhow::Ok(Candidate {
                script: ADMIT,
                fill: record::checks(quota, &names, limit, sending).await?,
                deny: record::checks(quota, &names, DENIED_PASSES, sending).await?,
            })
        };
        let (alone, together) = (ours(Sending::Alone).await?, ours(Sending::Together).await?);
        let length = alone.fill.argument_length(3).context("no key in the recorded calls")?;
        let textbook = Candidate {
            script: textbook::SCRIPT,
            fill: textbook_recording(&names, limit, length),
            deny: textbook_recording(&names, DENIED_PASSES, length),
        };
        Ok(Self([textbook, alone, together]))
    }

    /// Measures all on servers of a program, turn by turn, and adds the rows of that program.
    /// Returns the bytes a key of ours beside the textbook's.
    pub(crate) async fn run(
        &self,
        program: &Program,
        rounds: usize,
        table: &mut Table,
    ) -> Result<f64> {
        let mut costs = [const { Vec::new() }; 3];
        for _ in 0..rounds {
            for (candidate, costs) in self.0.iter().zip(&mut costs) {
                costs.push(measure(program, candidate).await?);
            }
        }
        let mut row = |name: &str, of: fn(&Cost) -> f64| {
            let seen = costs.each_ref().map(|costs| median(costs.iter().map(of)));
            let [textbook, alone, together] = seen;
            table.row([
                format!("{}: {name}", program.name),
                number(textbook),
                number(alone),
                ratio(Some(alone / textbook)),
                number(together),
                ratio(Some(together / textbook)),
            ]);
            alone / textbook
        };
        row("admit", |cost| cost.admit_us);
        row("deny", |cost| cost.deny_us);
        Ok(row("bytes a key, 5 entries", |cost| cost.bytes_per_key))
    }
}

/// Returns calls of the textbook script. Its keys are as long as those of `admit.lua`, so that only
/// the logs differ.
fn textbook_recording(names: &[String], passes: usize, key_length: usize) -> Recording {
    let hash = redis::Script::new(textbook::SCRIPT).get_hash().to_owned();
    let (window, limit) = (WINDOW.as_millis().to_string(), LIMIT.to_string());
    let mut calls = Recording::default();
    for _ in 0..passes {
        for name in names {
            let key = format!("{name:->key_length$}");
            let (now, member) = (textbook::now_ms().to_string(), Uuid::new_v4().to_string());
            let arguments = ["EVALSHA", &hash, "1", &key, &now, &window, &limit, &member];
            calls.push(&arguments.map(str::as_bytes));
        }
    }
    calls
}

/// Sends a candidate's calls to a new server.
async fn measure(program: &Program, candidate: &Candidate) -> Result<Cost> {
    let server = RedisServer::start_with(&program.path, &[]).await?;
    server.load(candidate.script).await?;
    let empty = server.used_memory().await?;
    let admit_us = replay(&server, &candidate.fill).await?;
    let full = server.used_memory().await?;
    let deny_us = replay(&server, &candidate.deny).await?;
    let denied = server.used_memory().await?;
    // An entry would take at least 16 bytes.
    ensure!(denied < full + 8 * candidate.deny.decisions(), "a denial left a trace");
    Ok(Cost { admit_us, deny_us, bytes_per_key: (full - empty) as f64 / KEYS as f64 })
}

/// Sends all calls, in pieces of one pipeline each. Returns how many microseconds of Redis a decision
/// took in the median piece: the statistics also count the time in which another program had the core.
pub(crate) async fn replay(server: &RedisServer, calls: &Recording) -> Result<f64> {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).await?;
    let (mut start, mut costs) = (0, Vec::new());
    for piece in calls.commands.chunks(calls.commands.len().div_ceil(PIECES)) {
        let end = piece.last().map_or(start, |command| command.end);
        server.reset_stats().await?;
        pipeline(&mut stream, &calls.bytes[start..end]).await?;
        start = end;
        let stats = server.stats().await?.get("evalsha").copied().unwrap_or_default();
        let all_passed = stats.calls == piece.len() as u64 && stats.failed == 0;
        ensure!(all_passed, "{} of {} calls failed", stats.failed, piece.len());
        let decisions: u64 = piece.iter().map(|command| command.decisions).sum();
        costs.push(stats.usec as f64 / decisions as f64);
    }
    Ok(median(costs))
}

/// Sends commands, and reads until all have their replies.
async fn pipeline(stream: &mut TcpStream, bytes: &[u8]) -> Result<()> {
    let (mut replies, mut commands) = stream.split();
    let mut last = Recording::default();
    let token = Uuid::new_v4().to_string();
    last.push(&[b"ECHO", token.as_bytes()]);
    let ending = format!("{token}\r\n").into_bytes();
    let send = async {
        commands.write_all(bytes).await?;
        commands.write_all(&last.bytes).await?;
        Ok::<_, anyhow::Error>(())
    };
    let receive = async {
        let mut received = Vec::with_capacity(1 << 16);
        while !received.ends_with(&ending) {
            // Keep the last bytes: they may be the start of the ending.
            let seen = received.len().saturating_sub(ending.len());
            received.drain(..seen);
            ensure!(replies.read_buf(&mut received).await? > 0, "Redis closed the connection");
        }
        Ok(())
    };
    tokio::try_join!(send, receive)?;
    Ok(())
}
