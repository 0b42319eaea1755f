//! Tells when a group has too many messages: a storm starts, and a storm ends, each told once
//! however many processes count with.
//!
//! ```text
//! cargo run --example message_storm -- --simulate
//! cargo run --example message_storm -- --simulate --threshold 100/5s
//! printf 'lobby\tmessage-1\nlobby\tmessage-2\n' | cargo run --example message_storm -- --threshold 1/60s
//! ... | cargo run --example message_storm -- --redis redis://127.0.0.1:6379
//! cargo run --example message_storm -- --help
//! ```
//!
//! What to take from here for a service of your own is `message_storm/session.rs`.

#[path = "message_storm/alert.rs"]
mod alert;
#[path = "message_storm/args.rs"]
mod args;
#[path = "common/mod.rs"]
mod common;
#[path = "message_storm/line.rs"]
mod line;
#[path = "message_storm/session.rs"]
mod session;
#[path = "message_storm/simulation.rs"]
mod simulation;

use std::io::{BufReader, IsTerminal};
use std::process::ExitCode;

use tower_sliding_window::storm::{ProfileError, StormRuleError};
use tower_sliding_window::{MemoryStore, StormDetector};

use crate::args::Args;
use crate::common::lines::lines;
use crate::common::redis::OpenError;
use crate::common::server::log_to_stderr;
use crate::common::shutdown;
use crate::line::Message;
use crate::session::{Session, Summary};

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::read();
    log_to_stderr("warn");
    let problem = match run(args).await {
        Ok(summary) => problem_of(&summary),
        Err(error) => Some(error.to_string()),
    };
    match problem {
        None => ExitCode::SUCCESS,
        Some(problem) => {
            session::note(format_args!("error: {problem}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<Summary, RunError> {
    // Before anything is read, so that a signal is not missed.
    let stop = shutdown::signals().map_err(RunError::Signals)?;
    let detector = match args.redis.redis()? {
        Some(redis) => StormDetector::new(args.rule(), redis.windows(&args.prefix).await?)?,
        None => StormDetector::new(args.rule(), MemoryStore::new())?,
    };
    let profile = args.profile.map(|step| step.0);
    if let Some(step) = profile {
        // A step that can't be is told before the first storm.
        detector.profile("", step).await?;
    }
    let lines = if args.simulate {
        simulation::start(args.threshold)
    } else {
        if std::io::stdin().is_terminal() {
            session::note(format_args!(
                "reading lines GROUP<TAB>MESSAGE-ID; Ctrl-D ends the input, --simulate needs none"
            ));
        }
        lines(BufReader::new(std::io::stdin()), Message::parse)
    };
    let wait_for_ends = args.simulate || args.wait_end;
    let session = Session::new(detector, wait_for_ends, profile, std::io::stdout());
    session.run(lines, stop.asked()).await.map_err(RunError::Print)
}

/// Says what went wrong in a session, if anything did.
fn problem_of(summary: &Summary) -> Option<String> {
    let mut problems = Vec::new();
    if let Some((number, error)) = &summary.failed_first {
        problems.push(format!(
            "{} of the messages may not be counted, the first in line {number}: {error}\n\
             hint: see that Redis answers, or raise --response-timeout; to give a message again \
             is safe, for it counts once",
            summary.failed
        ));
    }
    if let Some(error) = &summary.unreadable {
        problems.push(error.to_string());
    }
    (!problems.is_empty()).then(|| problems.join("\nerror: "))
}

/// Why the program ends early, and what to do about it.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error(transparent)]
    Rule(#[from] StormRuleError),
    #[error(transparent)]
    Redis(#[from] OpenError),
    #[error("there can be no such profile: {0}\nhint: correct --profile")]
    Profile(#[from] ProfileError),
    #[error("can't listen for signals: {0}")]
    Signals(std::io::Error),
    #[error("can't print to stdout that there is a storm: {0}")]
    Print(std::io::Error),
}
