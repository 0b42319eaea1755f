//! [`ScriptLabel`]: a script, as the label of the calls to Redis. [`Stopwatch`]: how long they take.

#[cfg(feature = "metrics")]
use std::time::Duration;

#[cfg(feature = "metrics")]
use metrics::{Histogram, histogram};
#[cfg(feature = "metrics")]
use tokio::time::Instant;

#[cfg(feature = "metrics")]
use super::describe;
#[cfg(feature = "metrics")]
use super::kept::Kept;

/// The name of a script, with the histograms that have it as a label.
pub(crate) struct ScriptLabel {
    #[cfg(feature = "metrics")]
    name: &'static str,
    #[cfg(feature = "metrics")]
    seconds: Kept<Histogram>,
    #[cfg(feature = "metrics")]
    batch_size: Kept<Histogram>,
}

/// Measures a time. Without metrics it reads no clock.
#[derive(Clone, Copy)]
pub(crate) struct Stopwatch(#[cfg(feature = "metrics")] Instant);

impl Stopwatch {
    pub(crate) fn start() -> Self {
        #[cfg(feature = "metrics")]
        return Self(Instant::now());
        #[cfg(not(feature = "metrics"))]
        Self()
    }

    #[cfg(feature = "metrics")]
    pub(super) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

impl ScriptLabel {
    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            #[cfg(feature = "metrics")]
            name,
            #[cfg(feature = "metrics")]
            seconds: Kept::new(),
            #[cfg(feature = "metrics")]
            batch_size: Kept::new(),
        }
    }

    /// Reports a call that has ended, in an error of some kind or with a reply.
    pub(crate) fn called(&self, start: Stopwatch, error: Option<&'static str>) {
        #[cfg(feature = "metrics")]
        {
            let (script, outcome) = (self.name, error.unwrap_or("ok"));
            let register = || {
                let name = "sliding_window_store_call_duration_seconds";
                histogram!(name, "script" => script, "outcome" => outcome)
            };
            let record = |histogram: &Histogram| histogram.record(start.elapsed());
            if error.is_none() {
                self.seconds.report(register, record);
            } else {
                describe::to_present();
                record(&register());
            }
        }
    }

    /// Reports how many requests share a call.
    pub(crate) fn shared_by(&self, requests: usize) {
        #[cfg(feature = "metrics")]
        {
            let script = self.name;
            let register = || histogram!("sliding_window_batch_size", "script" => script);
            self.batch_size.report(register, |histogram| histogram.record(requests as f64));
        }
    }
}
