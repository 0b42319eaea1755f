//! Counts the messages of groups, refuses none, and prints one line when a storm starts and one when
//! it ends, however many processes count.
//!
//! ```text
//! cargo run --example message_storm -- --simulate
//! printf 'lobby\t1\nlobby\t2\nlobby\t3\n' | cargo run --example message_storm -- --threshold 2/3s
//! ```

use std::io::Write;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::signal::unix::{SignalKind, signal};
use tower_sliding_window::{MemoryStore, Quota, RedisStore, StormDetector, StormEvent};

const HELP: &str = r"Reads lines GROUP<TAB>MESSAGE-ID and prints when a storm starts and when it ends.
  --threshold LIMIT/WINDOW   default 100/60s; it ends below half of it
  --simulate                 needs no input: 50 messages of one group, 150 of another
  --redis URL                counts together with other processes, as redis://127.0.0.1:6379
Prints `storm start group=G count=N` and `storm end group=G peak=N lasted=T`. A message id that comes
twice counts once. After the end of the input it waits for the end of the storms; Ctrl-C stops it.
";

type Error = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() {
    let result = run().await.inspect_err(|error| eprintln!("error: {error}"));
    // A return from here would wait for the next line of the input.
    std::process::exit(result.is_err().into());
}

async fn run() -> Result<(), Error> {
    let (mut threshold, mut simulated, mut redis) = ("100/60s".to_owned(), false, None);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--simulate" => simulated = true,
            "--threshold" => threshold = args.next().ok_or("--threshold needs LIMIT/WINDOW")?,
            "--redis" => redis = Some(args.next().ok_or("--redis needs a URL")?),
            "-h" | "--help" => {
                print!("{HELP}");
                return Ok(());
            }
            _ => return Err(format!("unknown option {arg}; see --help").into()),
        }
    }
    let rule: Quota = threshold.parse().map_err(|why| format!("--threshold {threshold}: {why}"))?;
    let detector = match redis {
        Some(url) => StormDetector::new(rule, RedisStore::connect(url).await?),
        None => StormDetector::new(rule, MemoryStore::new()),
    };
    let detector = detector.on_event(print_event);
    let (mut int, mut term) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let result = tokio::select! {
        result = record_all(&detector, simulated) => result,
        _ = int.recv() => Ok(()),
        _ = term.recv() => Ok(()),
    };
    detector.flush().await;
    result
}

/// Records all messages, and waits until all storms are over that this process knows of.
async fn record_all(detector: &StormDetector, simulated: bool) -> Result<(), Error> {
    if simulated {
        let (calm, stormy) =
            (simulate(detector, "calm", 50, 100), simulate(detector, "stormy", 150, 10));
        tokio::try_join!(calm, stormy)?;
    } else {
        read(detector).await?;
    }
    eprintln!("all messages are recorded; waiting for the end of the storms (Ctrl-C stops)");
    detector.settled().await;
    Ok(())
}

async fn read(detector: &StormDetector) -> Result<(), Error> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let (mut number, mut failed) = (0, None);
    while let Some(line) = lines.next_line().await? {
        number += 1;
        match line.split_once('\t') {
            // While the store does not answer, the group goes on: nothing is refused.
            Some((group, id)) => failed = detector.record(group, id).await.err().or(failed),
            None => eprintln!("line {number} is skipped: write GROUP<TAB>MESSAGE-ID"),
        }
    }
    failed.map_or(Ok(()), |error| Err(format!("some messages may not be counted: {error}").into()))
}

async fn simulate(detector: &StormDetector, group: &str, count: u32, ms: u64) -> Result<(), Error> {
    eprintln!("{group} gets {count} messages, one every {ms} ms");
    for number in 0..count {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        detector.record(group, format!("{}-{number}", std::process::id())).await?;
    }
    Ok(())
}

fn print_event(event: &StormEvent) {
    // Quotes keep the name of a group from forging a line.
    let group = format!("{:?}", String::from_utf8_lossy(event.group().as_bytes()));
    let line = match event {
        StormEvent::Started { count, .. } => format!("storm start group={group} count={count}"),
        StormEvent::Ended { peak, lasted, .. } => {
            format!("storm end group={group} peak={peak} lasted={lasted:.1?}")
        }
        _ => return,
    };
    if let Err(error) = writeln!(std::io::stdout(), "{line}") {
        eprintln!("error: can't print that there is a storm: {error}");
        std::process::exit(1);
    }
}
