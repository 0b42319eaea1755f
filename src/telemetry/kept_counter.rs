//! [`KeptCounter`]: a counter that is not looked up in the recorder for each report.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use metrics::{Counter, Recorder};
use tokio::time::Instant;

/// A handle is kept no longer than this. A recorder may drop a counter that has been idle for a
/// while (`idle_timeout` of `metrics-exporter-prometheus`), and then a handle counts for nothing. A
/// handle that is younger than that while has not been idle for as long.
const LONGEST: Duration = Duration::from_secs(1);

/// Keeps the handle of a counter.
///
/// The handle belongs to the recorder that made it. Before a recorder is installed, that is one
/// that counts nothing. So each report compares the recorder with the present one, and a recorder
/// that is installed late or only for a thread gets all reports from then on.
#[derive(Default)]
pub(super) struct KeptCounter(ArcSwapOption<Handle>);

struct Handle {
    counter: Counter,
    recorder: RecorderId,
    until: Instant,
}

/// Tells recorders apart: the address and the size. The one that counts nothing has no size.
#[derive(Clone, Copy, PartialEq)]
struct RecorderId(usize, usize);

impl RecorderId {
    fn present() -> Self {
        metrics::with_recorder(|recorder| {
            let address = std::ptr::from_ref::<dyn Recorder>(recorder).addr();
            Self(address, size_of_val(recorder))
        })
    }
}

impl KeptCounter {
    /// Increments the counter by 1. `register` requests its handle from the present recorder.
    #[inline]
    pub(super) fn increment(&self, register: impl FnOnce() -> Counter) {
        let (recorder, now) = (RecorderId::present(), Instant::now());
        match &*self.0.load() {
            Some(kept) if kept.recorder == recorder && now < kept.until => {
                kept.counter.increment(1)
            }
            _ => self.keep(register(), recorder, now + LONGEST),
        }
    }

    #[cold]
    fn keep(&self, counter: Counter, recorder: RecorderId, until: Instant) {
        counter.increment(1);
        self.0.store(Some(Arc::new(Handle { counter, recorder, until })));
    }
}
