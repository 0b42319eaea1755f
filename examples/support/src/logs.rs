//! Logs on stderr: one line an event, whatever text a client has sent.

use std::borrow::Cow;
use std::io::{self, Write};
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

/// Sends the events that `RUST_LOG` asks for to stderr, or else those from `info` on.
pub(crate) fn to_stderr() {
    let wanted = std::env::var("RUST_LOG").ok().and_then(|text| text.parse().ok());
    let targets: Targets = wanted.unwrap_or_else(|| Targets::new().with_default(Level::INFO));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| Escaped(io::stderr()))
        .with_ansi(false)
        // Without this, it panics when stderr has been closed, as in `2>&1 | head`.
        .log_internal_errors(false);
    tracing_subscriber::registry().with(lines).with(targets).init();
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

/// Lets one log line pass in a second, so that a flood of requests is not a flood of lines.
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

    /// Counts an occurrence. Returns how many there were since the last line, this one among them, if
    /// there was no line in the last second.
    pub fn pass(&self) -> Option<u64> {
        let mut waiting = lock(&self.0);
        waiting.times += 1;
        let now = Instant::now();
        if waiting.passed.is_some_and(|passed| now.duration_since(passed) < PERIOD) {
            return None;
        }
        waiting.passed = Some(now);
        Some(std::mem::take(&mut waiting.times))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

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
        let throttle = Throttle::new();
        assert_eq!(throttle.pass(), Some(1));
        for _ in 0..1000 {
            assert_eq!(throttle.pass(), None);
        }
        advance(PERIOD).await;
        assert_eq!(throttle.pass(), Some(1001));
        assert_eq!(throttle.pass(), None);
    }
}
