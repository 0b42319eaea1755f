//! At most two messages to each receiver in ten minutes. The receiver is known only when sending.
//!
//! ```text
//! printf 'bob\t1\nbob\t2\nbob\t3\n' | cargo run --example message_quota -- --quota 2/5s --wait
//! ```

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io::{self, Write};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep_until};
use tower_sliding_window::{Decision, Limiter, MemoryStore, Policy, RedisStore};

const HELP: &str = r"Reads lines RECEIVER<TAB>TEXT and sends each receiver at most so many in any window.
  --quota LIMIT/WINDOW   default 2/10m; several quotas as 2/10m,20/1d
  --wait                 holds messages and sends them later, in order for each receiver
  --redis URL            shares the quotas with other processes, as redis://127.0.0.1:6379
Prints `sent receiver=R text=T` or `held receiver=R retry_after=17s`, rounded up.
";

type Error = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() {
    let result = run().await.inspect_err(|error| eprintln!("error: {error}"));
    // A return from here would wait for the next line of the input.
    std::process::exit(result.is_err().into());
}

async fn run() -> Result<(), Error> {
    if std::env::args().any(|arg| arg == "-h" || arg == "--help") {
        return Ok(io::stdout().write_all(HELP.as_bytes())?);
    }
    let (mut quota, mut wait, mut redis) = ("2/10m".to_owned(), false, None);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--wait" => wait = true,
            "--quota" => quota = args.next().ok_or("--quota needs LIMIT/WINDOW")?,
            "--redis" => redis = Some(args.next().ok_or("--redis needs a URL")?),
            _ => return Err(format!("unknown option {arg}; see --help").into()),
        }
    }
    let policy = quota.parse::<Policy>().map_err(|why| format!("--quota {quota}: {why}"))?;
    let limiter = match redis {
        Some(url) => Limiter::new(policy.named("receiver"), RedisStore::connect(url).await?),
        None => Limiter::new(policy.named("receiver"), MemoryStore::new()),
    };
    send_all(&limiter, wait).await
}

async fn send_all(limiter: &Limiter, wait: bool) -> Result<(), Error> {
    let (mut int, mut term) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    // The messages that wait for each receiver, and when to try the first of them.
    let mut waiting: HashMap<String, VecDeque<String>> = HashMap::new();
    let mut due: BTreeSet<(Instant, String)> = BTreeSet::new();
    let (mut held, mut number, mut open) = (0, 0, true);
    while open || held > 0 {
        let next = due.first().map_or_else(Instant::now, |(at, _)| *at);
        tokio::select! {
            biased;
            _ = int.recv() => break,
            _ = term.recv() => break,
            () = sleep_until(next), if held > 0 => {
                let Some((_, receiver)) = due.pop_first() else { continue };
                let Some(mut queue) = waiting.remove(&receiver) else { continue };
                let pause = try_to_send(limiter, &receiver, queue.front().map_or("", |it| it)).await?;
                if pause.is_zero() {
                    queue.pop_front();
                    held -= 1;
                }
                if !queue.is_empty() {
                    due.insert((Instant::now() + pause, receiver.clone()));
                    waiting.insert(receiver, queue);
                }
            }
            line = lines.next_line(), if open && held < 10_000 => {
                number += 1;
                let line = line.map_err(|why| format!("can't read line {number}: {why}"))?;
                let Some(line) = line else { open = false; continue };
                let Some((to, text)) = line.split_once('\t') else {
                    eprintln!("line {number} is skipped: write RECEIVER<TAB>TEXT");
                    continue;
                };
                if !waiting.contains_key(to) {
                    let pause = try_to_send(limiter, to, text).await?;
                    if pause.is_zero() || !wait {
                        continue;
                    }
                    due.insert((Instant::now() + pause, to.to_owned()));
                }
                waiting.entry(to.to_owned()).or_default().push_back(text.to_owned());
                held += 1;
            }
        }
    }
    if held > 0 {
        return Err(format!("stopped; messages that are not sent: {held}").into());
    }
    Ok(())
}

/// Sends a message, or returns how long to wait before the next try.
async fn try_to_send(limiter: &Limiter, receiver: &str, text: &str) -> io::Result<Duration> {
    let pause = match limiter.check(receiver).await {
        Ok(Decision::Admitted(_)) => {
            // Stands for the delivery. The quotes keep a text from forging a line.
            writeln!(io::stdout(), "sent receiver={receiver:?} text={text:?}")?;
            return Ok(Duration::ZERO);
        }
        Ok(Decision::Denied(denied)) => denied.retry_after(),
        Err(error) => error.retry_after().unwrap_or(Duration::from_secs(1)),
    };
    let seconds = pause.as_secs_f64().ceil();
    writeln!(io::stdout(), "held receiver={receiver:?} retry_after={seconds}s")?;
    Ok(pause)
}
