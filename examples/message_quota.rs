//! At most two messages to each receiver in ten minutes. The receiver is known only when sending.
//!
//! ```text
//! printf 'bob\t1\nbob\t2\nbob\t3\n' | cargo run --example message_quota -- --quota 2/5s --wait
//! ```

use std::io::{self, Write};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{JoinSet, yield_now};
use tower_sliding_window::{Limiter, MemoryStore, Policy, RedisStore, WaitError};

const HELP: &str = r"Reads lines RECEIVER<TAB>TEXT and sends each receiver at most so many in any window.
  --quota LIMIT/WINDOW   default 2/10m; several quotas as 2/10m,20/1d
  --wait                 holds messages and sends them later, in order for each receiver
  --redis URL            shares the quotas with other processes, as redis://127.0.0.1:6379
Prints `sent receiver=R text=T` or `held receiver=R retry_after=17s`, rounded up.
";

const MOST_HELD: usize = 10_000;

type Error = Box<dyn std::error::Error>;

// One thread polls tasks in the order in which they were spawned.
#[tokio::main(flavor = "current_thread")]
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
    let (mut held, mut number, mut open) = (JoinSet::new(), 0, true);
    while open || !held.is_empty() {
        tokio::select! {
            biased;
            _ = int.recv() => break,
            _ = term.recv() => break,
            Some(result) = held.join_next() => result??,
            line = lines.next_line(), if open && held.len() < MOST_HELD => {
                number += 1;
                let line = line.map_err(|why| format!("can't read line {number}: {why}"))?;
                let Some(line) = line else { open = false; continue };
                let Some((to, text)) = line.split_once('\t') else {
                    eprintln!("line {number} is skipped: write RECEIVER<TAB>TEXT");
                    continue;
                };
                // A wait of no length, which does not overtake the messages that are held.
                match limiter.until_admitted_within(to, Duration::ZERO).await {
                    Ok(_) => send_now(to, text)?,
                    Err(error) => {
                        print_held(to, &error)?;
                        if wait {
                            held.spawn(send_later(limiter.clone(), to.to_owned(), text.to_owned()));
                            // It begins to wait before the next line is read.
                            yield_now().await;
                        }
                    }
                }
            }
        }
    }
    if !held.is_empty() {
        return Err(format!("stopped; messages that are not sent: {}", held.len()).into());
    }
    Ok(())
}

/// Sends a message as soon as its receiver may have it, after those that wait for the same receiver.
async fn send_later(limiter: Limiter, to: String, text: String) -> io::Result<()> {
    while let Err(error) = limiter.until_admitted(&*to).await {
        // Redis failed. The message goes to the end of the queue.
        tokio::time::sleep(print_held(&to, &error)?).await;
    }
    send_now(&to, &text)
}

fn send_now(receiver: &str, text: &str) -> io::Result<()> {
    // Stands for the delivery. The quotes keep a text from forging a line.
    writeln!(io::stdout(), "sent receiver={receiver:?} text={text:?}")
}

fn print_held(receiver: &str, error: &WaitError) -> io::Result<Duration> {
    let pause = error.retry_after().unwrap_or(Duration::from_secs(1));
    let seconds = pause.as_secs_f64().ceil();
    writeln!(io::stdout(), "held receiver={receiver:?} retry_after={seconds}s")?;
    Ok(pause)
}
