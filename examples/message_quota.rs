//! At most two messages to each receiver in ten minutes. The receiver is known only when sending.
//!
//! ```text
//! printf 'bob\t1\nbob\t2\nbob\t3\n' | cargo run --example message_quota -- --quota 2/5s --wait
//! ```

use std::io::{self, Write};
use std::time::Duration;

use clap::Parser;
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{JoinSet, yield_now};
use tokio::time::Instant;
use tower_sliding_window::{Limiter, MemoryStore, Policy, RedisStore, WaitError};

/// Reads lines RECEIVER<TAB>TEXT and sends each receiver at most so many in any window. Prints `sent
/// receiver=R text=T` or `held receiver=R retry_after=17s`, rounded up.
#[derive(Parser)]
struct Args {
    #[arg(long, default_value = "2/10m", help = "LIMIT/WINDOW; several quotas as 2/10m,20/1d")]
    quota: Policy,
    #[arg(long, help = "Holds messages and sends them later, in order for each receiver")]
    wait: bool,
    #[arg(long, help = "URL to share the quotas with other processes, as redis://127.0.0.1:6379")]
    redis: Option<String>,
}

const MOST_HELD: usize = 10_000;

type Error = Box<dyn std::error::Error>;

// One thread polls tasks in the order in which they were spawned.
#[tokio::main(flavor = "current_thread")]
async fn main() {
    let result = run(Args::parse()).await.inspect_err(|error| eprintln!("error: {error}"));
    // A return from here would wait for the next line of the input.
    std::process::exit(result.is_err().into());
}

async fn run(args: Args) -> Result<(), Error> {
    let policy = args.quota.named("receiver");
    let limiter = match args.redis {
        Some(url) => Limiter::new(policy, RedisStore::connect(url).await?),
        None => Limiter::new(policy, MemoryStore::new()),
    };
    send_all(&limiter, args.wait).await
}

async fn send_all(limiter: &Limiter, wait: bool) -> Result<(), Error> {
    let (mut int, mut term) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    eprintln!("reading messages from stdin, a line RECEIVER<TAB>TEXT each (Ctrl-D ends the input)");
    let mut lines = BufReader::new(stdin()).split(b'\n');
    let (mut held, mut last, mut open, mut result) = (JoinSet::new(), Instant::now(), true, Ok(()));
    while open || !held.is_empty() {
        tokio::select! {
            biased;
            _ = int.recv() => break,
            _ = term.recv() => break,
            Some(result) = held.join_next() => result??,
            line = lines.next_segment(), if open && held.len() < MOST_HELD => {
                let Some(line) = line.unwrap_or_else(|why| {
                    // What is held is sent all the same.
                    result = Err(format!("can't read the input: {why}").into());
                    None
                }) else {
                    open = false;
                    if !held.is_empty() {
                        let wait = last.saturating_duration_since(Instant::now()).as_secs_f64().ceil();
                        eprintln!("sending the {} messages that are held; the last in about {wait}s", held.len());
                    }
                    continue;
                };
                let Some(tab) = line.iter().position(|byte| *byte == b'\t') else {
                    eprintln!("a line is skipped: write RECEIVER<TAB>TEXT");
                    continue;
                };
                let (to, text) = (&line[..tab], &line[tab + 1..]);
                // A wait of no length, which does not overtake the messages that are held.
                match limiter.until_admitted_within(to, Duration::ZERO).await {
                    Ok(_) => send_now(to, text)?,
                    Err(error) => {
                        last = last.max(Instant::now() + print_held(to, &error)?);
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
    result
}

/// Sends a message as soon as its receiver may have it, after those that wait for the same receiver.
async fn send_later(limiter: Limiter, to: Vec<u8>, text: Vec<u8>) -> io::Result<()> {
    while let Err(error) = limiter.until_admitted(&*to).await {
        // Redis failed. The message goes to the end of the queue.
        tokio::time::sleep(print_held(&to, &error)?).await;
    }
    send_now(&to, &text)
}

fn send_now(receiver: &[u8], text: &[u8]) -> io::Result<()> {
    let [receiver, text] = [receiver, text].map(String::from_utf8_lossy);
    // Stands for the delivery. The quotes keep a text from forging a line.
    writeln!(io::stdout(), "sent receiver={receiver:?} text={text:?}")
}

fn print_held(receiver: &[u8], error: &WaitError) -> io::Result<Duration> {
    let pause = error.retry_after().unwrap_or(Duration::from_secs(1));
    let receiver = String::from_utf8_lossy(receiver);
    let seconds = pause.as_secs_f64().ceil();
    writeln!(io::stdout(), "held receiver={receiver:?} retry_after={seconds}s")?;
    Ok(pause)
}
