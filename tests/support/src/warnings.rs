//! A subscriber of warnings that tests can read.

use std::cell::RefCell;
use std::io;
use std::sync::{Arc, Mutex, Once};

type Bytes = Arc<Mutex<Vec<u8>>>;

thread_local! {
    static HEARD: RefCell<Option<Bytes>> = const { RefCell::new(None) };
}

/// What is warned of on this thread, until it is dropped.
pub struct Warnings(Bytes);

impl Drop for Warnings {
    fn drop(&mut self) {
        HEARD.with(|heard| heard.replace(None));
    }
}

impl Warnings {
    /// Returns what is warned of on this thread from now on.
    ///
    /// One subscriber serves all threads for good: where each thread sets one of its own, those that
    /// come and go beside it may switch a warning off for a moment.
    pub fn listen() -> Self {
        static SUBSCRIBED: Once = Once::new();
        SUBSCRIBED.call_once(|| {
            let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN);
            subscriber.with_ansi(false).with_writer(|| OfThread).init();
        });
        let bytes = Bytes::default();
        HEARD.with(|heard| heard.replace(Some(bytes.clone())));
        Self(bytes)
    }

    /// Returns the warnings so far, a line each.
    pub fn lines(&self) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

/// Writes to what listens on this thread.
struct OfThread;

impl io::Write for OfThread {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        HEARD.with(|heard| {
            if let Some(heard) = &*heard.borrow() {
                heard.lock().unwrap().extend_from_slice(bytes);
            }
        });
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
