//! [`Kept`]: a metric that is not looked up in the recorder for each report.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::time::Instant;

use super::describe;
use super::recorder_id::RecorderId;

/// A handle is kept no longer than this. A recorder may drop a metric that has been idle for a
/// while (`idle_timeout` of `metrics-exporter-prometheus`), and then a handle counts for nothing. A
/// handle that is younger than that while has not been idle for as long.
const LONGEST: Duration = Duration::from_secs(1);

/// Keeps the handle of a counter, gauge or histogram.
///
/// The handle belongs to the recorder that made it. Before a recorder is installed, that is one
/// that counts nothing. So each report compares the recorder with the present one, and a recorder
/// that is installed late or only for a thread gets all reports from then on.
pub(super) struct Kept<H>(ArcSwapOption<Handle<H>>);

struct Handle<H> {
    metric: H,
    recorder: RecorderId,
    until: Instant,
}

impl<H> Default for Kept<H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H> Kept<H> {
    pub(super) const fn new() -> Self {
        Self(ArcSwapOption::const_empty())
    }

    /// Reports to the metric. `register` requests its handle from the present recorder.
    pub(super) fn report(&self, register: impl FnOnce() -> H, report: impl FnOnce(&H)) {
        let (recorder, now) = (RecorderId::present(), Instant::now());
        match &*self.0.load() {
            Some(kept) if kept.recorder == recorder && now < kept.until => report(&kept.metric),
            _ => self.keep(register, report, recorder, now + LONGEST),
        }
    }

    fn keep(
        &self,
        register: impl FnOnce() -> H,
        report: impl FnOnce(&H),
        recorder: RecorderId,
        until: Instant,
    ) {
        describe::to(recorder);
        let metric = register();
        report(&metric);
        self.0.store(Some(Arc::new(Handle { metric, recorder, until })));
    }
}
