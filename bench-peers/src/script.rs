//! What a call of each script costs Redis, in time and in memory.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower_sliding_window::Quota;
use uuid::Uuid;

use crate::record::{self, Recording};
use crate::redis_server::RedisServer;
use crate::table::{Table, median, number, ratio};
use crate::targets::Figure;
use crate::textbook;

const ADMIT: &str = include_str!("../../lua/limit/admit.lua");
const WINDOW: Duration = Duration::from_secs(60);
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

/// Measures both scripts, turn by turn.
pub(crate) async fn run(rounds: usize, figures: &mut Vec<Figure>) -> Result<Table> {
    let mut table =
        Table::new("A call of the script, without HTTP", &["", "textbook", "admit.lua", "ratio"]);
    let [textbook, ours] = compare("5/60s", 100_000, 5, rounds).await?;
    let mut row = |name: &str, of: fn(&Cost) -> f64, target: Option<f64>| {
        let (theirs, ours) = (median(textbook.iter().map(of)), median(ours.iter().map(of)));
        table.row([name.to_owned(), number(theirs), number(ours), ratio(Some(ours / theirs))]);
        if let Some(target) = target {
            figures.push(Figure::new(format!("{name}: ours / textbook"), ours / theirs, target));
        }
    };
    row("admit, µs of Redis (5/60s, 100,000 keys)", |cost| cost.admit_us, Some(1.15));
    row("deny, µs of Redis (5/60s, 100,000 keys)", |cost| cost.deny_us, Some(1.15));
    row("bytes of Redis a key, 5 entries", |cost| cost.bytes_per_key, Some(0.78));

    let [textbook, ours] = compare("100/60s", 2_000, 100, 1).await?;
    let mut row = |name: &str, of: fn(&Cost) -> f64| {
        let (theirs, ours) = (of(&textbook[0]), of(&ours[0]));
        table.row([name.to_owned(), number(theirs), number(ours), ratio(Some(ours / theirs))]);
    };
    row("admit, µs of Redis (100/60s, 2,000 keys)", |cost| cost.admit_us);
    row("deny, µs of Redis (100/60s, 2,000 keys)", |cost| cost.deny_us);
    row("bytes of Redis a key, 100 entries", |cost| cost.bytes_per_key);
    Ok(table)
}

async fn compare(quota: &str, keys: usize, limit: usize, rounds: usize) -> Result<[Vec<Cost>; 2]> {
    let names: Vec<String> = (0..keys).map(|key| format!("user-{key:07}")).collect();
    eprintln!("script: recording the calls of {quota} on {keys} keys");
    let parsed: Quota = quota.parse()?;
    let ours = Candidate {
        script: ADMIT,
        fill: record::checks(parsed, &names, limit).await?,
        deny: record::checks(parsed, &names, DENIED_PASSES).await?,
    };
    let window = ours.fill.argument_length(3).context("no key in the recorded calls")?;
    let theirs = Candidate {
        script: textbook::SCRIPT,
        fill: textbook_recording(&names, limit, limit, window),
        deny: textbook_recording(&names, limit, DENIED_PASSES, window),
    };
    let mut costs = [Vec::new(), Vec::new()];
    for round in 1..=rounds {
        for (candidate, costs) in [&theirs, &ours].into_iter().zip(&mut costs) {
            let cost = measure(candidate, keys).await?;
            eprintln!(
                "script: round {round} of {rounds}: admit {:.2} µs, deny {:.2} µs, {:.0} bytes",
                cost.admit_us, cost.deny_us, cost.bytes_per_key
            );
            costs.push(cost);
        }
    }
    Ok(costs)
}

/// Returns calls of the textbook script. Its keys are as long as those of `admit.lua`, so that only
/// the logs differ.
fn textbook_recording(
    names: &[String],
    limit: usize,
    passes: usize,
    key_length: usize,
) -> Recording {
    let hash = redis::Script::new(textbook::SCRIPT).get_hash().to_owned();
    let (window, limit) = (WINDOW.as_millis().to_string(), limit.to_string());
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
async fn measure(candidate: &Candidate, keys: usize) -> Result<Cost> {
    let server = RedisServer::start().await?;
    server.load(candidate.script).await?;
    let empty = server.used_memory().await?;
    let admit_us = replay(&server, &candidate.fill).await?;
    let full = server.used_memory().await?;
    let deny_us = replay(&server, &candidate.deny).await?;
    let denied = server.used_memory().await?;
    // An entry would take at least 16 bytes.
    ensure!(denied < full + 8 * candidate.deny.count, "a denial left a trace");
    Ok(Cost { admit_us, deny_us, bytes_per_key: (full - empty) as f64 / keys as f64 })
}

/// Sends all calls in one pipeline, and returns how many microseconds of Redis each took.
async fn replay(server: &RedisServer, calls: &Recording) -> Result<f64> {
    server.reset_stats().await?;
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).await?;
    let (mut replies, mut commands) = stream.split();
    let mut last = Recording::default();
    let token = Uuid::new_v4().to_string();
    last.push(&[b"ECHO", token.as_bytes()]);
    let ending = format!("{token}\r\n").into_bytes();
    let send = async {
        commands.write_all(&calls.bytes).await?;
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
    let stats = server.stats().await?.get("evalsha").copied().unwrap_or_default();
    ensure!(stats.calls == calls.count && stats.failed == 0, "{} calls failed", stats.failed);
    Ok(stats.usec as f64 / stats.calls as f64)
}
