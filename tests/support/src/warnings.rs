//! A subscriber of warnings that tests can read.

use std::cell::RefCell;
use std::fs::File;
use std::sync::Once;

use tempfile::NamedTempFile;
use tracing_subscriber::fmt::writer::OptionalWriter;

thread_local! {
    static HEARD: RefCell<Option<File>> = const { RefCell::new(None) };
}

/// What is warned of on this thread, until it is dropped.
pub struct Warnings(NamedTempFile);

impl Drop for Warnings {
    fn drop(&mut self) {
        HEARD.set(None);
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
            let of_thread = || HEARD.with_borrow(|file| Some(file.as_ref()?.try_clone().unwrap()));
            let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN);
            let subscriber = subscriber.with_writer(move || OptionalWriter::from(of_thread()));
            subscriber.with_ansi(false).init();
        });
        let file = NamedTempFile::new().unwrap();
        HEARD.set(Some(file.reopen().unwrap()));
        Self(file)
    }

    pub fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.0.path()).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}
