//! [`Recorder`]: writes decisions in a thread of its own.

use std::fmt;
use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};
use tokio::time::Instant;
use uuid::Uuid;

use super::record::Record;
use crate::key::Key;
use crate::store::{LogSnapshot, Restored, Store, StoreFuture};
use crate::window::{Check, Explanation, LogId, Outcome};

/// How many decisions wait for the writer at most.
const MAX_WAITING: usize = 8_192;
/// The length of a hashed key: as of a UUID, no two keys share one.
const HASH_BYTES: usize = 16;

/// The form in which a recording has the keys. Defaults to [`KeyForm::hashed`].
///
/// A key often identifies a person, and hashes of user ids or addresses are found by trying all of them.
/// So keys are hashed together with a secret.
#[derive(Clone)]
pub struct KeyForm(Form);

#[derive(Clone)]
enum Form {
    Hashed([u8; 32]),
    Plain,
}

impl KeyForm {
    /// Hashes keys with a random secret that ends with the process. The keys can't be recovered
    /// afterwards, and another process writes other hashes.
    #[must_use]
    pub fn hashed() -> Self {
        // Random numbers of the generator that also makes the identities of requests.
        let secret = [Uuid::new_v4().into_bytes(), Uuid::new_v4().into_bytes()].concat();
        Self::hashed_with(secret)
    }

    /// Hashes keys with a secret. The processes of a fleet that have the same secret write the same hashes,
    /// and its owner finds a key with [`KeyForm::text`].
    #[must_use]
    pub fn hashed_with(secret: impl AsRef<[u8]>) -> Self {
        Self(Form::Hashed(Sha256::digest(secret).into()))
    }

    /// Writes the keys themselves, with bytes that are not printable ASCII escaped as in Rust. Keep such a
    /// recording as you keep the user data that it has.
    #[must_use]
    pub const fn plain() -> Self {
        Self(Form::Plain)
    }

    /// Returns the text that a recording has for a key.
    ///
    /// ```
    /// use tower_sliding_window::history::KeyForm;
    ///
    /// let keys = KeyForm::hashed_with("a secret of the fleet");
    /// assert_eq!(keys.text("alice"), keys.clone().text("alice"));
    /// assert_ne!(keys.text("alice"), KeyForm::hashed().text("alice"));
    /// assert_eq!(KeyForm::plain().text("alice\n"), "alice\\n");
    /// ```
    #[must_use]
    pub fn text(&self, key: impl Into<Key>) -> String {
        let key = key.into();
        match &self.0 {
            Form::Plain => key.as_bytes().escape_ascii().to_string(),
            Form::Hashed(secret) => {
                // A part of the digest: nothing can be appended to a key without the secret.
                let digest = Sha256::new().chain_update(secret).chain_update(key.as_bytes());
                let digest = digest.finalize();
                digest[..HASH_BYTES].iter().map(|byte| format!("{byte:02x}")).collect()
            }
        }
    }
}

impl Default for KeyForm {
    fn default() -> Self {
        Self::hashed()
    }
}

impl fmt::Debug for KeyForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Form::Hashed(_) => "KeyForm(hashed)",
            Form::Plain => "KeyForm(plain)",
        })
    }
}

/// Writes the decisions of stores as lines of JSON, without delaying the requests.
///
/// A cheap handle: clones share the thread that formats and writes the lines. At most 8,192 decisions wait
/// for it. If it can't keep up, or the output fails, further decisions are dropped and
/// [counted](Recorder::dropped). The thread ends after the last handle is dropped and all lines are
/// written.
///
/// Each check is a line for each of its logs. A request that waits is checked several times, and each check
/// of it is a request of its own in the recording.
///
/// A recording has no cancellations and no settlements, and no requests about which the store failed. The
/// times are those of this process when it gets the decision, on a clock that does not step back.
#[derive(Clone)]
pub struct Recorder {
    waiting: SyncSender<Message>,
    dropped: Arc<AtomicU64>,
    /// The same instant on both clocks.
    epoch: (Duration, Instant),
}

enum Message {
    Decided(Decided),
    /// Write everything, and then drop this.
    Flush(SyncSender<()>),
}

struct Decided {
    time: Duration,
    log: LogId,
    cost: u32,
    admitted: bool,
}

impl Recorder {
    /// Starts the thread that writes to `output`.
    ///
    /// # Errors
    ///
    /// If the operating system can't start a thread.
    pub fn new(output: impl Write + Send + 'static, keys: KeyForm) -> io::Result<Self> {
        let (waiting, messages) = sync_channel(MAX_WAITING);
        let dropped = Arc::new(AtomicU64::new(0));
        let lost = dropped.clone();
        let writer = thread::Builder::new().name("decision-recorder".to_owned());
        writer.spawn(move || write(output, &messages, &keys, &lost))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Self { waiting, dropped, epoch: (now, Instant::now()) })
    }

    /// Returns a store that decides as `store` does and records each decision, for a
    /// [`Limiter`](crate::Limiter) or a [`SlidingWindowLayer`](crate::SlidingWindowLayer).
    #[must_use]
    pub fn record<S>(&self, store: S) -> Recorded<S> {
        Recorded { store, recorder: self.clone() }
    }

    /// Returns how many decisions were dropped: the writer did not keep up, or the output failed.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until all earlier decisions are written or dropped, as before the end of the process. It blocks
    /// the thread.
    pub fn flush(&self) {
        let (done, is_done) = sync_channel(0);
        if self.waiting.send(Message::Flush(done)).is_ok() {
            // An error: the writer has dropped the other end.
            let _ = is_done.recv();
        }
    }

    fn add(&self, check: &Check, outcome: &Outcome) {
        let (wall, instant) = self.epoch;
        let time = wall + instant.elapsed();
        for (log, cost) in check.costs() {
            let (log, admitted) = (log.clone(), outcome.admitted);
            let message = Message::Decided(Decided { time, log, cost, admitted });
            if self.waiting.try_send(message).is_err() {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("dropped", &self.dropped()).finish_non_exhaustive()
    }
}

/// Writes what waits until all recorders are dropped. Whenever nothing waits, the output is flushed.
fn write(output: impl Write, messages: &Receiver<Message>, keys: &KeyForm, lost: &AtomicU64) {
    let mut output = BufWriter::new(output);
    while let Ok(message) = messages.recv() {
        let mut next = Some(message);
        while let Some(message) = next {
            match message {
                Message::Decided(decided) => {
                    // A buffered writer takes a line whole or not at all.
                    if output.write_all(&line(decided, keys)).is_err() {
                        lost.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Message::Flush(done) => {
                    let _ = output.flush();
                    drop(done);
                }
            }
            next = messages.try_recv().ok();
        }
        // What can't be written stays in the buffer.
        let _ = output.flush();
    }
}

fn line(decided: Decided, keys: &KeyForm) -> Vec<u8> {
    let Decided { time, log, cost, admitted } = decided;
    let mut record = Record::new(time, keys.text(log.key), admitted);
    (record.policy, record.cost) = (Some(log.policy.name().to_owned()), cost);
    // A record is numbers and texts, which can be written.
    let mut line = serde_json::to_vec(&record).unwrap_or_default();
    line.push(b'\n');
    line
}

/// A store whose decisions are recorded, from [`Recorder::record`].
#[derive(Clone, Debug)]
pub struct Recorded<S> {
    store: S,
    recorder: Recorder,
}

impl<S: Store> Store for Recorded<S> {
    fn admit(&self, check: &Check) -> StoreFuture<Outcome> {
        let (recorder, sent) = (self.recorder.clone(), check.clone());
        self.store.admit(check).inspect(move |outcome| recorder.add(&sent, outcome))
    }

    fn peek(&self, check: &Check) -> StoreFuture<Outcome> {
        self.store.peek(check)
    }

    fn explain(&self, check: &Check) -> StoreFuture<Vec<Explanation>> {
        self.store.explain(check)
    }

    fn settle(&self, check: &Check, cost: u32) -> StoreFuture<bool> {
        self.store.settle(check, cost)
    }

    fn restore(&self, log: &LogId, snapshot: &LogSnapshot) -> StoreFuture<Restored> {
        self.store.restore(log, snapshot)
    }

    fn reset(&self, logs: &[LogId]) -> StoreFuture<()> {
        self.store.reset(logs)
    }
}
