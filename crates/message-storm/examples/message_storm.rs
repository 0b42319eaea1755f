//! Counts the messages of groups, refuses none, and prints when a storm starts and ends.
//!
//! ```text
//! cargo run -p message-storm --example message_storm -- --simulate
//! printf 'lobby\t1\nlobby\t2\nlobby\t3\n' |
//!   cargo run -p message-storm --example message_storm -- --threshold 2/3s
//! ```

use std::io::{Write, stdout};
use std::time::Duration;

use clap::Parser;
use message_storm::{StormDetector, StormEvent};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::time::sleep;
use tower_sliding_window::{Quota, RedisStore};

/// Reads lines GROUP<TAB>MESSAGE-ID and prints when a storm starts and ends. A message id that
/// comes twice counts once. At the end of the input it waits for the end of the storms.
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
type Error = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() {
    if let Err(error) = run(Args::parse()).await {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

async fn run(args: Args) -> Result<(), Error> {
    let detector = match args.redis {
        Some(url) => StormDetector::on_redis(args.threshold, &RedisStore::connect(url).await?)?,
        None => StormDetector::in_process(args.threshold)?,
    };
    let detector = detector.on_event(tell);
    if args.simulate {
        for number in 0..200 {
            let group = if number % 4 == 0 { "calm" } else { "stormy" };
            record(&detector, group.as_bytes(), &number.to_string().into_bytes()).await;
            sleep(Duration::from_millis(5)).await;
        }
    } else {
        eprintln!("reading messages from stdin, a line {LINE} each (Ctrl-D ends the input)");
        let mut lines = BufReader::new(stdin()).split(b'\n');
        while let Some(line) = lines.next_segment().await? {
            match line.iter().position(|byte| *byte == b'\t') {
                Some(tab) => {
                    record(&detector, &line[..tab], line[tab + 1..].trim_ascii_end()).await
                }
                None => eprintln!("a line is skipped: write {LINE}"),
            }
        }
    }
    eprintln!("waiting for the end of {} storms (Ctrl-C stops)", detector.watched());
    detector.settled().await;
    Ok(())
}

async fn record(detector: &StormDetector, group: &[u8], id: &[u8]) {
    // While the store does not answer, the group goes on: nothing is refused.
    if let Err(error) = detector.record(group, id).await {
        eprintln!("a message may not be counted: {error}");
    }
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
