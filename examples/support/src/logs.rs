//! Logs on stderr, from the start of a program to its exit code.

use std::error::Error;
use std::io::{Write, stderr};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::lock;

/// How often a [`Throttle`] lets a line pass.
const PERIOD: Duration = Duration::from_secs(1);

/// Runs a program to its end, and returns its exit code. An error is printed to stderr.
///
/// Logs to stderr what `RUST_LOG` asks for, or else from `info` on. Texts of clients must be logged by
/// `?`, which escapes what could end a line or be obeyed by a terminal.
pub async fn exit_code(program: impl Future<Output = Result<(), Box<dyn Error>>>) -> ExitCode {
    let wanted = std::env::var("RUST_LOG").ok().and_then(|text| text.parse().ok());
    let targets: Targets = wanted.unwrap_or_else(|| Targets::new().with_default(Level::INFO));
    // A line that can't be written is left out: stderr may be closed.
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).log_internal_errors(false);
    tracing_subscriber::registry().with(lines.with_writer(stderr)).with(targets).init();
    match program.await {
        Ok(()) => {
            tracing::info!("stopped");
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = writeln!(stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Lets one log line pass in a second, so that a flood of requests is not a flood of lines.
#[derive(Debug, Default)]
pub struct Throttle(Mutex<(Option<Instant>, u64)>);

impl Throttle {
    /// Creates a throttle, for a `static`.
    pub const fn new() -> Self {
        Self(Mutex::new((None, 0)))
    }

    /// Counts an occurrence. Calls `log` with how many there are since the last line, unless that was
    /// less than a second ago.
    pub fn log(&self, log: impl FnOnce(u64)) {
        let mut counted = lock(&self.0);
        let (passed, times) = &mut *counted;
        *times += 1;
        if passed.is_none_or(|passed| passed.elapsed() >= PERIOD) {
            *passed = Some(Instant::now());
            let times = std::mem::take(times);
            drop(counted);
            log(times);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_throttle_passes_one_line_a_second() {
        let (throttle, mut lines) = (Throttle::new(), Vec::new());
        (0..1000).for_each(|_| throttle.log(|times| lines.push(times)));
        tokio::time::sleep(PERIOD).await;
        throttle.log(|times| lines.push(times));
        assert_eq!(lines, [1, 1000]);
    }
}
