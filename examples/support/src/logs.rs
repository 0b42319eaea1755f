//! Logs on stderr: one line an event, whatever text a client has sent, and no wait for whoever reads them.

use std::borrow::Cow;
use std::io::{self, Write};
use std::mem;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::lock;

/// How often a [`Throttle`] lets a line pass.
const PERIOD: Duration = Duration::from_secs(1);
/// The bytes of the lines that wait to be written.
const ROOM: usize = 1 << 20;
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
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(move || Escaped(writer.clone()))
        .with_ansi(false);
    tracing_subscriber::registry().with(lines).with(targets).init();
    Ok(logs)
}

/// What a thread writes. If no one reads it and too much waits, the rest is dropped and counted.
#[derive(Clone)]
pub(crate) struct Logs(Arc<(Mutex<Unwritten>, Condvar)>);

#[derive(Default)]
struct Unwritten {
    text: Vec<u8>,
    dropped: u64,
    /// What was here before is being written.
    is_writing: bool,
}

impl Logs {
    fn new(mut to: impl Write + Send + 'static) -> io::Result<Self> {
        let logs = Self(Arc::default());
        let unwritten = logs.0.clone();
        std::thread::Builder::new().name("logs".to_owned()).spawn(move || {
            let (unwritten, changed) = &*unwritten;
            let mut waiting = lock(unwritten);
            loop {
                let mut text = mem::take(&mut waiting.text);
                let dropped = mem::take(&mut waiting.dropped);
                waiting.is_writing = !text.is_empty();
                changed.notify_all();
                if text.is_empty() {
                    waiting = changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
                    continue;
                }
                drop(waiting);
                if dropped > 0 {
                    let note =
                        format!("{dropped} log lines were dropped here: stderr was not read\n");
                    text.extend_from_slice(note.as_bytes());
                }
                // An error means that there is no reader, as in `2>&1 | head`.
                let _ = to.write_all(&text);
                waiting = lock(unwritten);
            }
        })?;
        Ok(logs)
    }

    /// Waits until all is written, or it takes too long.
    pub(crate) fn flush(&self) {
        let (unwritten, changed) = &*self.0;
        let waiting = lock(unwritten);
        let is_left = |it: &mut Unwritten| it.is_writing || !it.text.is_empty();
        // What is left then is lost.
        drop(changed.wait_timeout_while(waiting, LAST_LINES, is_left));
    }
}

impl Write for Logs {
    /// Takes a line, or drops it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let (unwritten, changed) = &*self.0;
        let mut waiting = lock(unwritten);
        if waiting.text.len() + line.len() > ROOM {
            waiting.dropped += 1;
        } else {
            waiting.text.extend_from_slice(line);
            changed.notify_all();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes each event as one line that a terminal shows as it is.
struct Escaped<W>(W);

impl<W: Write> Write for Escaped<W> {
    /// Takes one event, whole, as the subscriber writes it.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = text.strip_suffix('\n').unwrap_or(&text);
        self.0.write_all(format!("{}\n", escaped(line)).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Escapes the characters that end a line, move the cursor, or turn the direction of the text.
fn escaped(line: &str) -> Cow<'_, str> {
    let is_plain = |it: char| matches!(it, '\'' | '"' | '\\') || it.escape_debug().len() == 1;
    if line.chars().all(is_plain) {
        return Cow::Borrowed(line);
    }
    let mut text = String::with_capacity(line.len() + 16);
    for it in line.chars() {
        if is_plain(it) { text.push(it) } else { text.extend(it.escape_debug()) }
    }
    Cow::Owned(text)
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
        let cases = [
            ("a\u{1b}[31mb\u{9b}2Jc\n", "a\\u{1b}[31mb\\u{9b}2Jc\n"),
            ("one\ntwo\u{2028}three\r\n", "one\\ntwo\\u{2028}three\\r\n"),
            ("\u{202e}gnp.exe\u{2066}\n", "\\u{202e}gnp.exe\\u{2066}\n"),
            (
                "user=\"it's\" C:\\ Gr\u{fc}\u{df}e \u{4f60}\n",
                "user=\"it's\" C:\\ Gr\u{fc}\u{df}e \u{4f60}\n",
            ),
        ];
        for (event, line) in cases {
            let mut written = Vec::new();
            Escaped(&mut written).write_all(event.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(written).unwrap(), line);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_throttle_passes_one_line_a_second() {
        static THROTTLE: Throttle = Throttle::new();
        let (sender, lines) = std::sync::mpsc::channel();
        let occur = || {
            let lines = sender.clone();
            THROTTLE.log(move |times| lines.send(times).unwrap());
        };
        let lines = async || {
            sleep(PERIOD / 2).await;
            lines.try_iter().collect::<Vec<_>>()
        };
        for _ in 0..1000 {
            occur();
        }
        assert_eq!(lines().await, [1]);
        occur();
        assert_eq!(lines().await, [] as [u64; 0]);
        // Without another occurrence.
        assert_eq!(lines().await, [1000]);
        occur();
        sleep(5 * PERIOD).await;
        occur();
        assert_eq!(lines().await, [1, 1]);
    }

    /// Takes what is written once it may.
    struct Reader {
        may_read: std::sync::mpsc::Receiver<()>,
        read: std::sync::mpsc::Sender<Vec<u8>>,
    }

    impl Write for Reader {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            // An error means that it always may.
            let _ = self.may_read.recv();
            self.read.send(text.to_vec()).unwrap();
            Ok(text.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_no_one_reads_are_dropped_and_counted() {
        let (go_on, may_read) = std::sync::mpsc::channel();
        let (read, text) = std::sync::mpsc::channel();
        let mut logs = Logs::new(Reader { may_read, read }).unwrap();
        let line = [&[b'a'; 1023][..], b"\n"].concat();
        logs.write_all(b"first\n").unwrap();
        while !lock(&logs.0.0).is_writing {
            std::thread::yield_now();
        }
        for _ in 0..ROOM / line.len() + 7 {
            logs.write_all(&line).unwrap();
        }
        drop(go_on);
        Logs::flush(&logs);
        let text: Vec<u8> = text.try_iter().flatten().collect();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 1 + ROOM / line.len() + 1);
        assert_eq!(lines[0], "first");
        assert!(lines[lines.len() - 1].starts_with("7 log lines were dropped"), "{text}");
    }
}
