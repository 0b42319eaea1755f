//! Logs on stderr, from the start of a program to its exit code.

use std::error::Error;
use std::io::{Write, stderr};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
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

    /// Counts an occurrence. Calls `log` with how many there are since the last line: at once, or a second after the
    /// last line, with all that come until then.
    pub fn log(&'static self, log: impl FnOnce(u64) + Send + 'static) {
        let mut counted = lock(&self.0);
        let (passed, times) = &mut *counted;
        *times += 1;
        let wait = passed.map_or(Duration::ZERO, |passed| PERIOD.saturating_sub(passed.elapsed()));
        if wait.is_zero() {
            *passed = Some(Instant::now());
            let times = std::mem::take(times);
            drop(counted);
            log(times);
        } else if *times == 1
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(async move {
                sleep(wait).await;
                let mut counted = lock(&self.0);
                let times = std::mem::take(&mut counted.1);
                // Another one may have been faster, and have counted them.
                if times > 0 {
                    counted.0 = Some(Instant::now());
                    drop(counted);
                    log(times);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_throttle_passes_one_line_a_second_and_counts_all() {
        static THROTTLE: Throttle = Throttle::new();
        static LINES: Mutex<Vec<u64>> = Mutex::new(Vec::new());
        let log = || THROTTLE.log(|times| lock(&LINES).push(times));
        (0..1000).for_each(|_| log());
        assert_eq!(*lock(&LINES), [1]);
        tokio::time::sleep(2 * PERIOD).await;
        assert_eq!(*lock(&LINES), [1, 999], "also if there are no more");
        log();
        assert_eq!(*lock(&LINES), [1, 999, 1]);
    }
}
