//! Counts the messages of groups, refuses none, and prints when a storm starts and ends.
//!
//! ```text
//! cargo run -p message-storm --example message_storm -- --simulate
//! printf 'lobby\t1\nlobby\t2\nlobby\t3\n' |
//!   cargo run -p message-storm --example message_storm -- --threshold 2/3s
//! ```

use std::hash::{BuildHasher, RandomState};
use std::io::{Write, stderr, stdout};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use clap::Parser;
use example_support::logs::Throttle;
use example_support::webhook::{Webhook, WebhookFlags, plain};
use message_storm::{StormDetector, StormEvent};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::signal::unix::{SignalKind, signal};
use tokio::{sync::mpsc, task::JoinSet, time};
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
    #[command(flatten)]
    webhook: WebhookFlags,
}

const LINE: &str = "GROUP<TAB>MESSAGE-ID";
/// How long the end of a storm may take to be found.
const PATIENCE: Duration = Duration::from_secs(20);
static FAILED: Throttle = Throttle::new();
/// The messages that are read and not counted.
static UNCOUNTED: AtomicUsize = AtomicUsize::new(0);
type Error = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() {
    tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(stderr).init();
    let result = run(Args::parse()).await.inspect_err(|error| eprintln!("error: {error}"));
    // A return from here would wait for the next line of the input.
    std::process::exit(result.is_err().into());
}

async fn run(args: Args) -> Result<(), Error> {
    let webhook = Webhook::new(&args.webhook)?;
    let detector = match args.redis {
        Some(url) => StormDetector::on_redis(args.threshold, &RedisStore::connect(url).await?)?,
        None => StormDetector::in_process(args.threshold)?,
    };
    let alerts = webhook.clone();
    let detector = detector.on_event(move |it| tell(it, &alerts));
    let (mut int, mut term) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let result = tokio::select! {
        result = record_all(&detector, args.threshold, args.simulate) => result,
        _ = int.recv() => Ok(()),
        _ = term.recv() => Ok(()),
    };
    webhook.flush().await;
    let messages = UNCOUNTED.load(Relaxed);
    if messages == 0 {
        return result;
    }
    if let Err(error) = result {
        eprintln!("error: {error}");
    }
    Err(format!("messages that may not be counted: {messages}").into())
}

/// Records up to 64 messages at a time, those of one group in their order.
async fn record_all(
    detector: &StormDetector,
    threshold: Quota,
    simulated: bool,
) -> Result<(), Error> {
    let (mut lanes, mut tasks, hasher) = (Vec::new(), JoinSet::new(), RandomState::new());
    for _ in 0..64 {
        let (lane, mut messages) = mpsc::channel::<(Vec<u8>, Vec<u8>)>(16);
        lanes.push(lane);
        let detector = detector.clone();
        tasks.spawn(async move {
            while let Some((group, id)) = messages.recv().await {
                match detector.record(group, id).await {
                    Ok(_) => _ = UNCOUNTED.fetch_sub(1, Relaxed),
                    // While the store does not answer, the group goes on: nothing is refused.
                    Err(error) => {
                        FAILED.log(|n| eprintln!("{n} messages may not be counted: {error}"))
                    }
                }
            }
        });
    }
    if !simulated {
        eprintln!("reading messages from stdin, a line {LINE} each (Ctrl-D ends the input)");
    }
    let (mut input, mut numbers) = (BufReader::new(stdin()).split(b'\n'), 0..200);
    while let Some(line) = match simulated {
        true => simulate(numbers.next()).await,
        false => input.next_segment().await?,
    } {
        let Some(tab) = line.iter().position(|byte| *byte == b'\t') else {
            eprintln!("a line is skipped: write {LINE}");
            continue;
        };
        let (group, id) = (line[..tab].to_vec(), line[tab + 1..].trim_ascii_end().to_vec());
        UNCOUNTED.fetch_add(1, Relaxed);
        lanes[hasher.hash_one(&group) as usize % 64].send((group, id)).await?;
    }
    drop(lanes);
    tasks.join_all().await;
    let (left, most) = (detector.watched(), threshold.window() + PATIENCE);
    eprintln!("waiting for the end of {left} storms, up to {most:?} (Ctrl-C stops)");
    // Redis may be gone, or another process keep a storm going.
    let settled = time::timeout(most, detector.settled()).await;
    settled.map_err(|_| "the end of some storms is not known".into())
}

async fn simulate(number: Option<u64>) -> Option<Vec<u8>> {
    time::sleep(Duration::from_millis(5)).await;
    let group = if number? % 4 == 0 { "calm" } else { "stormy" };
    Some(format!("{group}\t{}-{}", std::process::id(), number?).into_bytes())
}

fn tell(event: &StormEvent, webhook: &Webhook) {
    // Quotes keep the name of a group from forging a line.
    let group = format!("{:?}", String::from_utf8_lossy(event.group().as_bytes()));
    let line = match event {
        StormEvent::Started { count, .. } => format!("start group={group} count={count}"),
        StormEvent::Ended { peak, lasted, .. } => {
            format!("end group={group} peak={peak} lasted={lasted:.1?}")
        }
        _ => return,
    };
    webhook.send(&serde_json::json!({ "text": plain(&format!("storm {line}")) }));
    if writeln!(stdout(), "storm {line}").is_err() {
        std::process::exit(1);
    }
}
