//! Counts the messages of groups, refuses none, and prints when a storm starts and ends.
//!
//! ```text
//! cargo run -p message-storm --example message_storm -- --simulate
//! printf 'lobby\t1\nlobby\t2\nlobby\t3\n' |
//!   cargo run -p message-storm --example message_storm -- --threshold 2/3s
//! ```

use std::io::{Write, stderr, stdout};
use std::time::Duration;

use clap::Parser;
use message_storm::{StormDetector, StormEvent};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::time;
use tower_sliding_window::{Quota, RedisStore};

/// Reads lines GROUP<TAB>MESSAGE-ID and prints when a storm starts and ends. A message id that
/// comes twice counts once. At the end of the input it waits for the end of the storms, but no longer than
/// the window and twenty seconds.
#[derive(Parser)]
struct Args {
    #[arg(long, default_value = "100/60s", help = "A storm starts above LIMIT/WINDOW")]
    threshold: Quota,
    #[arg(long, help = "Needs no input: 50 messages of one group, 150 of another")]
    simulate: bool,
    #[arg(long, help = "URL to count with other processes, as redis://127.0.0.1:6379")]
    redis: Option<String>,
}

const LINE: &str = "GROUP<TAB>MESSAGE-ID";
/// How long the end of a storm may take to be found.
const PATIENCE: Duration = Duration::from_secs(20);
type Error = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() {
    tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(stderr).init();
    let result = run(Args::parse()).await.inspect_err(|error| eprintln!("error: {error}"));
    // A return from here would wait for the next line of the input.
    std::process::exit(result.is_err().into());
}

async fn run(args: Args) -> Result<(), Error> {
    let detector = match args.redis {
        Some(url) => StormDetector::on_redis(args.threshold, &RedisStore::connect(url).await?)?,
        None => StormDetector::in_process(args.threshold)?,
    };
    let detector = detector.on_event(tell);
    if !args.simulate {
        eprintln!("reading messages from stdin, a line {LINE} each (Ctrl-D ends the input)");
    }
    let (mut input, mut numbers) = (BufReader::new(stdin()).split(b'\n'), 0..200);
    let mut uncounted = 0_u64;
    while let Some(line) = match args.simulate {
        true => simulate(numbers.next()).await,
        false => input.next_segment().await?,
    } {
        let Some(tab) = line.iter().position(|byte| *byte == b'\t') else {
            eprintln!("a line is skipped: write {LINE}");
            continue;
        };
        let (group, id) = (&line[..tab], line[tab + 1..].trim_ascii_end());
        // While the store does not answer, the group goes on: nothing is refused.
        if let Err(error) = detector.record(group, id).await {
            uncounted += 1;
            // No line for each of a flood.
            if uncounted.is_power_of_two() {
                eprintln!("{uncounted} messages may not be counted: {error}");
            }
        }
    }
    let (left, most) = (detector.watched(), args.threshold.window() + PATIENCE);
    eprintln!("waiting for the end of {left} storms, up to {most:?} (Ctrl-C stops)");
    // Redis may be gone, or another process keep a storm going.
    let settled = time::timeout(most, detector.settled()).await;
    settled.map_err(|_| "the end of some storms is not known")?;
    match uncounted {
        0 => Ok(()),
        _ => Err(format!("messages that may not be counted: {uncounted}").into()),
    }
}

async fn simulate(number: Option<u64>) -> Option<Vec<u8>> {
    time::sleep(Duration::from_millis(5)).await;
    let group = if number? % 4 == 0 { "calm" } else { "stormy" };
    Some(format!("{group}\t{}-{}", std::process::id(), number?).into_bytes())
}

fn tell(event: &StormEvent) {
    // Quotes keep the name of a group from forging a line.
    let group = format!("{:?}", String::from_utf8_lossy(event.group().as_bytes()));
    let line = match event {
        StormEvent::Started { count, .. } => format!("start group={group} count={count}"),
        StormEvent::Ended { peak, lasted, .. } => {
            format!("end group={group} peak={peak} lasted={lasted:.1?}")
        }
        _ => return,
    };
    if writeln!(stdout(), "storm {line}").is_err() {
        std::process::exit(1);
    }
}
