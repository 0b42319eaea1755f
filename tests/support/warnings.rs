//! A subscriber of warnings that tests can read.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

use std::io;
use std::sync::{Arc, Mutex};

use tracing_subscriber::fmt::MakeWriter;

/// What was warned of on this thread.
#[derive(Clone, Default)]
pub struct Warnings(Arc<Mutex<Vec<u8>>>);

impl Warnings {
    pub fn listen(&self) -> tracing::subscriber::DefaultGuard {
        let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN);
        let subscriber = subscriber.with_ansi(false).with_writer(self.clone()).finish();
        tracing::subscriber::set_default(subscriber)
    }

    pub fn lines(&self) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

impl io::Write for Warnings {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Warnings {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
