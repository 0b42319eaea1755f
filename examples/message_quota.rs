//! At most so many messages to each receiver in any window, the receiver known only when sending.
//!
//! ```text
//! printf 'bob\tone\nbob\ttwo\nbob\tthree\n' | cargo run --example message_quota
//! ... | cargo run --example message_quota -- --quota 2/5s --wait
//! ... | cargo run --example message_quota -- --redis redis://127.0.0.1:6379
//! cargo run --example message_quota -- --help
//! ```
//!
//! What to take from here for a worker of your own is `message_quota/outbox.rs`.

#[path = "message_quota/args.rs"]
mod args;
#[path = "message_quota/line.rs"]
mod line;
#[path = "message_quota/outbox.rs"]
mod outbox;
#[path = "common/prefix.rs"]
mod prefix;
#[path = "message_quota/result.rs"]
mod result;
#[path = "message_quota/session.rs"]
mod session;
#[path = "common/shutdown.rs"]
#[allow(dead_code, reason = "a server also waits for its requests")]
mod shutdown;

use std::io::{BufReader, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use redis::{ConnectionAddr, IntoConnectionInfo, RedisError};
use tower_sliding_window::{Limiter, MemoryStore, RedisStore, StoreError};
use tracing_subscriber::EnvFilter;

use crate::args::Args;
use crate::session::{Session, Stopped, Summary};

/// How long Redis may take to answer. Nobody stands and waits for a message to be sent.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    // Stdout carries only what became of the messages.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .init();

    let problem = match run(args).await {
        Ok(summary) => problem_of(&summary),
        Err(error) => Some(error.to_string()),
    };
    match problem {
        None => ExitCode::SUCCESS,
        Some(problem) => {
            eprintln!("error: {problem}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<Summary, RunError> {
    // Before anything is sent, so that a signal is not missed.
    let stop = shutdown::signals().map_err(RunError::Signals)?;
    let limiter = limiter(&args).await?;
    let (out, input) = (std::io::stdout(), BufReader::new(std::io::stdin()));
    let session = Session::new(limiter, args.waiting_at_most(), args.show_text, out);
    session.run(line::lines(input), stop.asked()).await.map_err(RunError::Print)
}

async fn limiter(args: &Args) -> Result<Limiter, RunError> {
    let policy = args.quota.clone().named("receiver");
    let Some(url) = &args.redis else {
        return Ok(Limiter::new(policy, MemoryStore::new()).failure_policy(args.on_failure));
    };
    let target = url.as_str().into_connection_info().map_err(RunError::RedisUrl)?;
    let address = target.addr().clone();
    let store = RedisStore::builder()
        .prefix(&args.prefix.0)
        .response_timeout(RESPONSE_TIMEOUT)
        .connect(target)
        .await
        .map_err(|source| RunError::Redis { address, source })?;
    Ok(Limiter::new(policy, store).failure_policy(args.on_failure))
}

/// Says what went wrong in a session, if anything did, and tells of a stop.
fn problem_of(summary: &Summary) -> Option<String> {
    let mut problems = Vec::new();
    if summary.dropped > 0 {
        problems.push(format!(
            "too many messages waited, and {} more had to be dropped\n\
             hint: raise --waiting-at-most",
            summary.dropped
        ));
    }
    if summary.failed > 0 {
        problems.push(format!(
            "nobody could decide, so that {} of the messages failed\n\
             hint: with --wait they are sent when Redis answers again, and with --on-failure local \
             this process decides alone",
            summary.failed
        ));
    }
    if let Some(error) = &summary.unreadable {
        problems.push(error.to_string());
    }
    if let Some(Stopped { after_line, not_sent }) = summary.stopped {
        let text = format!("stopped after line {after_line} of the input");
        if not_sent == 0 {
            eprintln!("{text}");
        } else {
            problems.push(format!("{text}; of the messages that waited, {not_sent} were not sent"));
        }
    }
    (!problems.is_empty()).then(|| problems.join("\nerror: "))
}

/// Why the program ends early, and what to do about it.
///
/// No message shows the Redis URL, which may hold a password.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error(
        "the value of --redis is not a Redis URL: {0}\n\
         hint: write redis://[:PASSWORD@]HOST[:PORT][/DB], such as redis://127.0.0.1:6379"
    )]
    RedisUrl(RedisError),
    #[error(
        "can't use the Redis at {address}: {source}\n\
         hint: start one with `redis-server`, correct --redis, or leave it out to keep the windows \
         in this process"
    )]
    Redis { address: ConnectionAddr, source: StoreError },
    #[error("can't listen for signals: {0}")]
    Signals(std::io::Error),
    #[error("can't print to stdout what became of a message: {0}")]
    Print(std::io::Error),
}
