//! Logs on stderr: one line an event, whatever text a client has sent, and no wait for whoever reads them.

use std::io::{self, Write};
use std::mem;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::lock;

/// How often a [`Throttle`] lets a line pass.
const PERIOD: Duration = Duration::from_secs(1);
/// The lines that wait to be written.
const ROOM: usize = 8192;
/// How long the last lines may take.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Sends the events that `RUST_LOG` asks for to stderr, or else those from `info` on.
pub(crate) fn to_stderr() -> io::Result<Logs> {
    // A file of its own: who waits for it holds no lock that someone else needs.
    let stderr = io::stderr().as_fd().try_clone_to_owned()?;
    let logs = Logs::new(std::fs::File::from(stderr))?;
    let wanted = std::env::var("RUST_LOG").ok().and_then(|text| text.parse().ok());
    let targets: Targets = wanted.unwrap_or_else(|| Targets::new().with_default(Level::INFO));
    let writer = logs.clone();
    let lines =
        tracing_subscriber::fmt::layer().with_writer(move || writer.clone()).with_ansi(false);
    tracing_subscriber::registry().with(lines).with(targets).init();
    Ok(logs)
}

/// What a thread writes. If no one reads it and too many lines wait, the rest is dropped and counted.
#[derive(Clone)]
pub(crate) struct Logs {
    lines: SyncSender<Job>,
    dropped: Arc<AtomicU64>,
}

enum Job {
    Write(String),
    /// Is dropped when everything before it has been written.
    Flush(#[expect(dead_code, reason = "only dropped")] mpsc::Sender<()>),
}

impl Logs {
    fn new(mut to: impl Write + Send + 'static) -> io::Result<Self> {
        let (lines, jobs) = mpsc::sync_channel(ROOM);
        let dropped = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&dropped);
        std::thread::Builder::new().name("logs".to_owned()).spawn(move || {
            for job in jobs {
                // An error means that there is no reader, as in `2>&1 | head`.
                if let Job::Write(line) = job {
                    let _ = to.write_all(line.as_bytes());
                }
                match count.swap(0, Ordering::Relaxed) {
                    0 => {}
                    lines => {
                        let _ = writeln!(to, "{lines} log lines were dropped: stderr was not read");
                    }
                }
            }
        })?;
        Ok(Self { lines, dropped })
    }

    pub(crate) fn push(&mut self, line: String) {
        if self.lines.try_send(Job::Write(line)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until all is written, or it takes too long. What is left then is lost.
    pub(crate) fn flush_all(&self) {
        let (done, wait) = mpsc::channel();
        if self.lines.try_send(Job::Flush(done)).is_ok() {
            let _ = wait.recv_timeout(LAST_LINES);
        }
    }
}

impl Write for Logs {
    /// Takes one event, whole, as the subscriber writes it.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        self.push(escaped(text.strip_suffix('\n').unwrap_or(&text)));
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns a line that a terminal shows as it is: without characters that end it, move the cursor, or
/// turn the direction of the text.
fn escaped(line: &str) -> String {
    let mut text = String::with_capacity(line.len() + 16);
    for it in line.chars() {
        match it {
            '\'' | '"' | '\\' => text.push(it),
            it => text.extend(it.escape_debug()),
        }
    }
    text.push('\n');
    text
}

/// Lets one log line pass in a second, so that a flood of requests is not a flood of lines. Each
/// occurrence is in the `times` of a line.
#[derive(Debug, Default)]
pub struct Throttle(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    passed: Option<Instant>,
    times: u64,
}

impl Throttle {
    /// Creates a throttle, for a `static`.
    pub const fn new() -> Self {
        Self(Mutex::new(Waiting { passed: None, times: 0 }))
    }

    /// Counts an occurrence, and calls `log` with how many there are: at once, or, if there was a line
    /// in the last second, when that is over, for the first occurrence since.
    ///
    /// # Panics
    ///
    /// If it is called outside of a Tokio runtime.
    pub fn log(&'static self, log: impl FnOnce(u64) + Send + 'static) {
        let mut waiting = lock(&self.0);
        waiting.times += 1;
        let now = Instant::now();
        match waiting.passed.map(|passed| passed + PERIOD).filter(|until| *until > now) {
            None => {
                let times = waiting.pass(now);
                drop(waiting);
                log(times);
            }
            Some(until) if waiting.times == 1 => {
                tokio::spawn(async move {
                    sleep_until(until).await;
                    let times = lock(&self.0).pass(until);
                    // None if a line came first.
                    if times > 0 {
                        log(times);
                    }
                });
            }
            Some(_) => {}
        }
    }
}

impl Waiting {
    fn pass(&mut self, now: Instant) -> u64 {
        self.passed = Some(now);
        mem::take(&mut self.times)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[test]
    fn an_event_is_one_harmless_line() {
        for (event, line) in [
            ("a\u{1b}[31mb\u{9b}2Jc", "a\\u{1b}[31mb\\u{9b}2Jc\n"),
            ("one\ntwo\u{2028}three\r", "one\\ntwo\\u{2028}three\\r\n"),
            ("\u{202e}gnp.exe\u{2066}", "\\u{202e}gnp.exe\\u{2066}\n"),
            (
                "user=\"it's\" C:\\ Gr\u{fc}\u{df}e \u{4f60}",
                "user=\"it's\" C:\\ Gr\u{fc}\u{df}e \u{4f60}\n",
            ),
        ] {
            assert_eq!(escaped(event), line);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_throttle_passes_one_line_a_second() {
        static THROTTLE: Throttle = Throttle::new();
        let (sender, lines) = mpsc::channel();
        let occur = || {
            let lines = sender.clone();
            THROTTLE.log(move |times| lines.send(times).unwrap());
        };
        let lines = async || {
            sleep(PERIOD / 2).await;
            lines.try_iter().collect::<Vec<_>>()
        };
        (0..1000).for_each(|_| occur());
        assert_eq!(lines().await, [1]);
        occur();
        assert_eq!(lines().await, [] as [u64; 0]);
        assert_eq!(lines().await, [1000], "without another occurrence");
    }

    #[test]
    fn lines_that_no_one_reads_are_dropped_and_counted() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut logs = Logs::new(writer).unwrap();
        let line = [&[b'a'; 1023][..], b"\n"].concat();
        let most = ROOM + 100;
        for _ in 0..most {
            logs.write_all(&line).unwrap();
        }
        drop(logs);
        let mut text = String::new();
        io::Read::read_to_string(&mut reader, &mut text).unwrap();
        let (lost, written): (Vec<_>, Vec<_>) = text.lines().partition(|it| it.contains("dropped"));
        let lost = lost.iter().map(|it| it.split(' ').next().unwrap().parse::<usize>().unwrap());
        let lost = lost.sum::<usize>();
        assert!(lost > 0 && lost + written.len() == most, "{lost} are lost");
    }
}
