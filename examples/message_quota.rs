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
#[path = "common/mod.rs"]
mod common;
#[path = "message_quota/line.rs"]
mod line;
#[path = "message_quota/outbox.rs"]
mod outbox;
#[path = "message_quota/result.rs"]
mod result;
#[path = "message_quota/session.rs"]
mod session;

use std::io::BufReader;
use std::process::ExitCode;

use clap::Parser;
use tower_sliding_window::{Limiter, MemoryStore};

use crate::args::Args;
use crate::common::lines::lines;
use crate::common::redis::OpenError;
use crate::common::server::log_to_stderr;
use crate::common::shutdown;
use crate::line::Message;
use crate::session::{Session, Stopped, Summary};

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    log_to_stderr("warn");
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
    session.run(lines(input, Message::parse), stop.asked()).await.map_err(RunError::Print)
}

async fn limiter(args: &Args) -> Result<Limiter, OpenError> {
    let policy = args.quota.clone().named("receiver");
    let limiter = match args.redis.redis()? {
        Some(redis) => Limiter::new(policy, redis.windows(&args.prefix).await?),
        None => Limiter::new(policy, MemoryStore::new()),
    };
    Ok(limiter.failure_policy(args.on_failure))
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
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error(transparent)]
    Redis(#[from] OpenError),
    #[error("can't listen for signals: {0}")]
    Signals(std::io::Error),
    #[error("can't print to stdout what became of a message: {0}")]
    Print(std::io::Error),
}
