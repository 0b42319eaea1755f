//! The units of the metrics, and their texts of help.

use std::sync::atomic::{AtomicUsize, Ordering};

use metrics::{Recorder, Unit, describe_counter, describe_gauge, describe_histogram};

/// The address of the recorder that was described to last.
static DESCRIBED: AtomicUsize = AtomicUsize::new(0);

/// The address and the size of a recorder, which tell it apart. The one that counts nothing has no size.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct RecorderId {
    address: usize,
    size: usize,
}

impl RecorderId {
    pub(super) fn present() -> Self {
        metrics::with_recorder(|recorder| {
            let address = std::ptr::from_ref::<dyn Recorder>(recorder).addr();
            Self { address, size: size_of_val(recorder) }
        })
    }
}

/// Describes all metrics to the present recorder, unless it was the last one to get the descriptions.
///
/// It is called before a report, so that a recorder can be installed at any time.
pub(super) fn to_present() {
    to(RecorderId::present());
}

/// Describes all metrics to this recorder, which is the present one, in the same way.
pub(super) fn to(RecorderId { address, size }: RecorderId) {
    if size > 0 && DESCRIBED.load(Ordering::Relaxed) != address {
        DESCRIBED.store(address, Ordering::Relaxed);
        all();
    }
}

fn all() {
    for (name, help) in COUNTERS {
        describe_counter!(*name, Unit::Count, *help);
    }
    for (name, help) in GAUGES {
        describe_gauge!(*name, Unit::Count, *help);
    }
    for (name, unit, help) in HISTOGRAMS {
        describe_histogram!(*name, *unit, *help);
    }
}

const COUNTERS: &[(&str, &str)] = &[
    ("sliding_window_decisions_total", "Decisions, once for each log that admits or denies."),
    ("sliding_window_strikes_total", "Strikes: denials that count toward a ban."),
    ("sliding_window_bans_total", "Bans imposed because of strikes."),
    ("sliding_window_missing_keys_total", "Requests without the key of a rule, by its policy."),
    (
        "sliding_window_strikes_lost_total",
        "Strikes that were not counted, because the in-process table of ban records was full.",
    ),
    ("sliding_window_store_errors_total", "Checks that the store did not decide."),
    ("sliding_window_impossible_requests_total", "Requests that no store could admit."),
    ("sliding_window_fallback_decisions_total", "Decisions made without the store."),
    ("sliding_window_memory_full_total", "Requests that did not fit into an in-process store."),
    (
        "sliding_window_written_back_total",
        "Requests of which Redis was told after an outage or a loss of data.",
    ),
    (
        "sliding_window_write_back_lost_total",
        "Requests of an outage that expired before they could be written back to Redis.",
    ),
];

const GAUGES: &[(&str, &str)] = &[
    (
        "sliding_window_store_available",
        "1 while connected to Redis, 0 during an outage, also of one node of a Cluster or of one of several stores.",
    ),
    ("sliding_window_memory_logs", "Logs that the in-process stores hold, expired ones included."),
    (
        "sliding_window_memory_nearly_full",
        "In-process stores that have reached 80 % of their capacity and not fallen below 70 % since.",
    ),
    (
        "sliding_window_journal_changes",
        "Decisions of an outage that are not yet written back to Redis, once for each log.",
    ),
    (
        "sliding_window_journal_nearly_full",
        "Journals that have reached 80 % of their capacity and not fallen below 70 % since.",
    ),
];

const HISTOGRAMS: &[(&str, Unit, &str)] = &[
    (
        "sliding_window_store_call_duration_seconds",
        Unit::Seconds,
        "Time from a script call to Redis until its reply.",
    ),
    ("sliding_window_batch_size", Unit::Count, "Requests that share a script call to Redis."),
    (
        "sliding_window_wait_duration_seconds",
        Unit::Seconds,
        "Time that a caller of Limiter::until_admitted or a request of a layer with max_wait has waited.",
    ),
];
