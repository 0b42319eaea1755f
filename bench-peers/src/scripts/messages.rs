//! What a message costs Redis: recorded by a storm detector, or checked by a speech monitor.

use std::time::Duration;

use anyhow::Result;
use message_storm::StormDetector;
use tower_sliding_window::moderation::{Message, Rule, SpeechMonitor};
use tower_sliding_window::{Quota, RedisStore};

use super::share;
use crate::cases::patient;
use crate::programs::Program;
use crate::redis_server::RedisServer;
use crate::table::{Table, number};

/// How many tasks send messages, and how many messages they send together.
const LOADS: [(usize, usize); 2] = [(1, 2_000), (64, 20_000)];
/// How many messages each sender and each group has.
const EACH: usize = 10;

/// What the messages are like.
#[derive(Clone, Copy)]
enum Kind {
    Calm,
    Storm,
    First,
    Different,
    Similar,
}

const KINDS: [(Kind, &str); 5] = [
    (Kind::Calm, "storm detector, calm group"),
    (Kind::Storm, "storm detector, group in a storm"),
    (Kind::First, "speech monitor, sender's first message"),
    (Kind::Different, "speech monitor, 10 different messages"),
    (Kind::Similar, "speech monitor, 10 similar messages"),
];

pub(crate) fn table() -> Table {
    Table::new(
        "Messages: µs of Redis a message",
        &["", "1 task", "calls a message", "64 tasks", "calls a message"],
    )
}

/// Adds the rows of a program.
pub(crate) async fn run(program: &Program, table: &mut Table) -> Result<()> {
    for (kind, name) in KINDS {
        let mut row = vec![format!("{}: {name}", program.name)];
        for (tasks, messages) in LOADS {
            let server = RedisServer::start_with(&program.path, &[]).await?;
            let store = patient().connect(server.url()).await?;
            send(kind, &store, 0..100, 1).await?;
            server.reset_stats().await?;
            send(kind, &store, 1_000_000..1_000_000 + messages, tasks).await?;
            let stats = server.stats().await?;
            let scripts = || stats.iter().filter(|(name, _)| name.starts_with("eval"));
            let usec: u64 = scripts().map(|(_, stats)| stats.usec).sum();
            let calls: u64 = scripts().map(|(_, stats)| stats.calls).sum();
            row.extend([usec, calls].map(|it| number(it as f64 / messages as f64)));
        }
        table.row(row);
    }
    Ok(())
}

/// Sends messages from several tasks. Their numbers decide their groups, senders and texts.
async fn send(
    kind: Kind,
    store: &RedisStore,
    numbers: std::ops::Range<usize>,
    tasks: usize,
) -> Result<()> {
    // A storm starts with the third message of a group, or never.
    let threshold = if matches!(kind, Kind::Storm) { 2 } else { 1_000 };
    let detector = StormDetector::on_redis(Quota::new(threshold, Duration::from_secs(60)), store);
    let monitor = SpeechMonitor::new(Rule::recommended(), store.clone());
    match kind {
        Kind::Calm | Kind::Storm => {
            share(numbers, tasks, move |number| {
                let detector = detector.clone();
                async move {
                    detector.record(group(number), format!("message-{number}")).await?;
                    Ok(())
                }
            })
            .await
        }
        Kind::First | Kind::Different | Kind::Similar => {
            share(numbers, tasks, move |number| {
                let monitor = monitor.clone();
                let message = match kind {
                    Kind::First => Message::from(format!("sender-{number}")).text(text(number)),
                    Kind::Different => Message::from(group(number)).text(text(number)),
                    _ => Message::from(group(number)).text(format!(
                        "{} {}",
                        text(number / EACH),
                        // A number would make it another text.
                        char::from(b'a' + (number % EACH) as u8)
                    )),
                };
                async move {
                    let _decision = monitor.check(&message).await?;
                    Ok(())
                }
            })
            .await
        }
    }
}

/// The group or the sender of a message.
fn group(number: usize) -> String {
    format!("group-{}", number / EACH)
}

/// A text of 40 letters, unlike those of other numbers.
fn text(number: usize) -> String {
    let mut random = fastrand::Rng::with_seed(number as u64);
    (0..40).map(|_| random.lowercase()).collect()
}
