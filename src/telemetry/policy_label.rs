//! [`PolicyLabel`]: the name of a policy, with the counters of its decisions.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
#[cfg(feature = "metrics")]
use std::{
    array,
    panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe},
    time::Duration,
};

#[cfg(feature = "metrics")]
use arc_swap::ArcSwapOption;
#[cfg(feature = "metrics")]
use metrics::Counter;
#[cfg(feature = "metrics")]
use tokio::time::Instant;

use super::DecisionLabel;
#[cfg(feature = "metrics")]
use super::describe::{self, RecorderId};

/// The name of a policy, as a label of metrics.
///
/// It keeps the handles of the counters that each request reports to. To look them up in the recorder each time
/// takes 12 % more instructions of a request with two rules.
#[derive(Clone)]
pub(crate) struct PolicyLabel {
    name: Arc<str>,
    // A closure, because clippy's `mutable_key_type` would otherwise warn an application that has a map by
    // `LogId`.
    #[cfg(feature = "metrics")]
    count: Arc<dyn Fn(DecisionLabel) + Send + Sync + UnwindSafe + RefUnwindSafe>,
}

impl PolicyLabel {
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(super) fn count(&self, decision: DecisionLabel) {
        #[cfg(feature = "metrics")]
        (self.count)(decision);
    }
}

impl From<&str> for PolicyLabel {
    fn from(name: &str) -> Self {
        let name: Arc<str> = name.into();
        #[cfg(feature = "metrics")]
        let count = {
            let counters = array::from_fn::<_, 3, _>(|_| CachedCounter::default());
            let (name, counters) = (name.clone(), AssertUnwindSafe(counters));
            Arc::new(move |decision: DecisionLabel| {
                counters[decision as usize].increment(|| {
                    metrics::counter!(
                        "sliding_window_decisions_total",
                        "policy" => name.clone(), "outcome" => decision.as_str()
                    )
                });
            })
        };
        Self {
            name,
            #[cfg(feature = "metrics")]
            count,
        }
    }
}

impl PartialEq for PolicyLabel {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for PolicyLabel {}

impl Hash for PolicyLabel {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

/// A handle is kept no longer than this. A recorder may drop a metric that has been idle for a
/// while (`idle_timeout` of `metrics-exporter-prometheus`), and then a handle counts for nothing. A
/// handle that is younger than that while has not been idle for as long.
#[cfg(feature = "metrics")]
const LONGEST: Duration = Duration::from_secs(1);

/// A counter that is not looked up in the recorder for each report.
///
/// Its handle belongs to the recorder that made it. Before a recorder is installed, that is one
/// that counts nothing. So each report compares the recorder with the present one, and a recorder
/// that is installed late or only for a thread gets all reports from then on.
#[cfg(feature = "metrics")]
#[derive(Default)]
struct CachedCounter(ArcSwapOption<(Counter, RecorderId, Instant)>);

#[cfg(feature = "metrics")]
impl CachedCounter {
    fn increment(&self, register: impl FnOnce() -> Counter) {
        let (recorder, now) = (RecorderId::present(), Instant::now());
        match self.0.load().as_deref() {
            Some((counter, of, until)) if *of == recorder && now < *until => counter.increment(1),
            _ => {
                describe::to(recorder);
                let counter = register();
                counter.increment(1);
                self.0.store(Some(Arc::new((counter, recorder, now + LONGEST))));
            }
        }
    }
}
