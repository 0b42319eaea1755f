//! A session of the message_quota example under paused time: lines in at certain times, lines out
//! with the time they came.
#![allow(unreachable_pub, reason = "a part of one test")]

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tower_sliding_window::{Limiter, MemoryStore, Policy};

use crate::line::{Line, Message};
use crate::session::{Session, Summary};

/// What is printed and flushed, line by line, and when.
#[derive(Clone)]
pub struct Printed {
    start: Instant,
    unflushed: String,
    lines: Arc<Mutex<Vec<(Duration, String)>>>,
}

impl Printed {
    pub fn new() -> Self {
        Self { start: Instant::now(), unflushed: String::new(), lines: Arc::default() }
    }

    pub fn take(&self) -> Vec<(Duration, String)> {
        std::mem::take(&mut *self.lines.lock().unwrap())
    }
}

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.unflushed.push_str(std::str::from_utf8(bytes).unwrap());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let line = self.unflushed.strip_suffix('\n').expect("it is flushed after a line");
        assert!(!line.contains('\n'), "each line is flushed");
        self.lines.lock().unwrap().push((self.start.elapsed(), line.to_owned()));
        self.unflushed.clear();
        Ok(())
    }
}

/// A session that is fed lines at certain times.
pub struct Replay {
    limiter: Limiter,
    waiting_at_most: Option<usize>,
    stop_after: Duration,
}

impl Replay {
    pub fn new(quota: &str) -> Self {
        let policy: Policy = quota.parse().unwrap();
        Self::on(Limiter::new(policy, MemoryStore::new()))
    }

    pub fn on(limiter: Limiter) -> Self {
        // Paused time goes by at once, so this is never.
        Self { limiter, waiting_at_most: None, stop_after: Duration::from_secs(u32::MAX.into()) }
    }

    pub fn waiting_at_most(self, most: usize) -> Self {
        Self { waiting_at_most: Some(most), ..self }
    }

    pub fn stopped_after(self, stop_after: Duration) -> Self {
        Self { stop_after, ..self }
    }

    /// Gives each line when it is due, and returns what is printed and when, and the summary.
    pub async fn run(self, given: &[(Duration, &str)]) -> (Vec<(Duration, String)>, Summary) {
        let printed = Printed::new();
        let (sender, lines) = mpsc::channel::<Line>(1);
        let session = Session::new(self.limiter, self.waiting_at_most, true, printed.clone());
        let stop = sleep_until(printed.start + self.stop_after);
        let feed = async {
            let sender = sender;
            for (number, (at, text)) in (1..).zip(given) {
                sleep_until(printed.start + *at).await;
                let line = Message::parse(number, text.as_bytes());
                if sender.send((number, line)).await.is_err() {
                    return;
                }
            }
        };
        let (summary, ()) = tokio::join!(session.run(lines, stop), feed);
        (printed.take(), summary.unwrap())
    }
}
