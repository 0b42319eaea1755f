//! Logs on stderr, from the start of a program to its exit code.

use std::error::Error;
use std::io::{self, Write};
use std::mem;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, Sender, SyncSender};
use std::thread;
use std::time::Duration;

use tokio::time::Instant;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::lock;

/// How often a [`Throttle`] lets a line pass.
const PERIOD: Duration = Duration::from_secs(1);
/// The lines that may wait to be written: about half a mebibyte.
const WAITING: usize = 4096;
/// How long the last of them may take at the end of a program.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Runs a program to its end, and returns its exit code. An error is printed to stderr.
///
/// Logs to stderr what `RUST_LOG` asks for, or else from `info` on. Texts of clients must be logged by
/// `?`, which escapes what could end a line or be obeyed by a terminal. If no one reads the lines, those
/// that do not fit are dropped and counted, and the program goes on.
pub async fn exit_code(program: impl Future<Output = Result<(), Box<dyn Error>>>) -> ExitCode {
    let wanted = std::env::var("RUST_LOG").ok().and_then(|text| text.parse().ok());
    let targets: Targets = wanted.unwrap_or_else(|| Targets::new().with_default(Level::INFO));
    let stderr = Lines::to_stderr();
    let writer = stderr.clone();
    let lines = tracing_subscriber::fmt::layer().with_ansi(false);
    let lines = lines.with_writer(move || writer.clone());
    tracing_subscriber::registry().with(lines).with(targets).init();
    let (code, last) = match program.await {
        Ok(()) => {
            tracing::info!("stopped");
            (ExitCode::SUCCESS, String::new())
        }
        Err(error) => (ExitCode::FAILURE, format!("error: {error}\n")),
    };
    stderr.end(last);
    code
}

/// Lines for a thread that writes them, each with what is dropped when it is written.
#[derive(Clone)]
struct Lines(SyncSender<(Vec<u8>, Option<Sender<()>>)>);

/// The lines that did not fit since the last one that did.
static DROPPED: AtomicU64 = AtomicU64::new(0);

impl Lines {
    fn to_stderr() -> Self {
        let (lines, queue) = mpsc::sync_channel::<(Vec<u8>, _)>(WAITING);
        thread::spawn(move || {
            for (line, _written) in queue {
                let dropped = DROPPED.swap(0, Relaxed);
                if dropped > 0 {
                    let _ = writeln!(
                        io::stderr(),
                        "{dropped} log lines were dropped: no one read them"
                    );
                }
                let _ = io::stderr().write_all(&line);
            }
        });
        Self(lines)
    }

    /// Waits until all lines are written, with one more.
    fn end(self, last: String) {
        let (written, end) = mpsc::channel();
        thread::spawn(move || self.0.send((last.into_bytes(), Some(written))));
        let _ = end.recv_timeout(LAST_LINES);
    }
}

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.0.try_send((line.to_vec(), None)).is_err() {
            DROPPED.fetch_add(1, Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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
            let times = mem::take(times);
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
