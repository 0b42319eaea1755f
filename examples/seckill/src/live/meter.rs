//! [`Meter`]: what came of the requests on the order route, and how long they took.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use hdrhistogram::Histogram;
use tower_sliding_window::{DecidedBy, Decision, TopOffenders};

use example_support::lock;

/// The longest time that is told from longer ones, in microseconds.
const LONGEST: u64 = 60_000_000;
/// The digits of a time that are kept.
const DIGITS: u8 = 2;

/// How many keys of each policy are told apart among those denied most.
const OFFENDERS: usize = 200;

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Ordered,
    AlreadyOrdered,
    SoldOut,
    TooMany,
    Banned,
    Unavailable,
    Other,
}

impl Class {
    pub(crate) const ALL: [Self; 7] = [
        Self::Ordered,
        Self::AlreadyOrdered,
        Self::SoldOut,
        Self::TooMany,
        Self::Banned,
        Self::Unavailable,
        Self::Other,
    ];

    fn of(response: &Response) -> Self {
        // What the limit says to a client of gRPC, always with status 200.
        if let Some(status) = response.headers().get("grpc-status") {
            return match status.as_bytes() {
                b"8" => Self::TooMany,
                b"7" => Self::Banned,
                b"13" | b"14" => Self::Unavailable,
                _ => Self::Other,
            };
        }
        match response.status() {
            StatusCode::CREATED => Self::Ordered,
            StatusCode::CONFLICT => Self::AlreadyOrdered,
            StatusCode::GONE => Self::SoldOut,
            StatusCode::TOO_MANY_REQUESTS => Self::TooMany,
            StatusCode::FORBIDDEN if response.extensions().get::<Passed>().is_none() => {
                Self::Banned
            }
            status if status.is_server_error() => Self::Unavailable,
            _ => Self::Other,
        }
    }
}

/// Marks the response to a request that the limit has let pass.
#[derive(Clone, Copy)]
struct Passed;

/// Counts since the start. Clones share them.
#[derive(Clone)]
pub(crate) struct Meter(Arc<Counters>);

struct Counters {
    classes: [AtomicU64; Class::ALL.len()],
    /// By the store, by the log of this process, and by the failure policy alone.
    decided_by: [AtomicU64; 3],
    policies: Vec<PolicyCounters>,
    offenders: TopOffenders,
    /// The times since they were taken last, in microseconds.
    took: Mutex<Histogram<u64>>,
}

/// What a policy has refused, and what its candidates would have refused besides.
struct PolicyCounters {
    name: String,
    refused: AtomicU64,
    would_refuse: AtomicU64,
}

impl Meter {
    /// Creates a meter for the policies of these names, or nothing if the histogram can't be made.
    pub(crate) fn new(policies: impl IntoIterator<Item = String>) -> Option<Self> {
        let counters = |name| PolicyCounters {
            name,
            refused: AtomicU64::new(0),
            would_refuse: AtomicU64::new(0),
        };
        Some(Self(Arc::new(Counters {
            classes: array::from_fn(|_| AtomicU64::new(0)),
            decided_by: array::from_fn(|_| AtomicU64::new(0)),
            policies: policies.into_iter().map(counters).collect(),
            offenders: TopOffenders::new(OFFENDERS),
            took: Mutex::new(no_times()?),
        })))
    }

    /// Returns what counts the keys that are denied.
    pub(crate) fn offenders(&self) -> &TopOffenders {
        &self.0.offenders
    }

    /// Counts a decision of the layer.
    pub(crate) fn decided(&self, decision: &Decision) {
        let by = match decision.decided_by() {
            DecidedBy::LocalLog => 1,
            DecidedBy::FailurePolicy => 2,
            // The rest is the store.
            _ => 0,
        };
        add(&self.0.decided_by[by]);
        let Decision::Denied(denied) = decision else {
            return self.count_candidates(decision);
        };
        for name in denied.violated() {
            if let Some(policy) = self.0.policies.iter().find(|policy| policy.name == name) {
                add(&policy.refused);
            }
        }
    }

    /// Counts an admitted request that a candidate would have refused, once for each policy.
    fn count_candidates(&self, decision: &Decision) {
        let mut last = None;
        for (policy, _, state) in decision.usage().candidates() {
            if !state.is_full() || last == Some(policy.name()) {
                continue;
            }
            last = Some(policy.name());
            if let Some(counters) = self.0.policies.iter().find(|it| it.name == policy.name()) {
                add(&counters.would_refuse);
            }
        }
    }

    fn finished(&self, class: Class, took: Duration) {
        add(&self.0.classes[class as usize]);
        let micros = u64::try_from(took.as_micros()).unwrap_or(LONGEST);
        lock(&self.0.took).saturating_record(micros);
    }

    /// Returns how many requests of each class there were.
    pub(super) fn classes(&self) -> [u64; Class::ALL.len()] {
        array::from_fn(|class| self.0.classes[class].load(Ordering::Relaxed))
    }

    /// Returns how many decisions the store, the log of this process and the failure policy made.
    pub(super) fn decided_by(&self) -> [u64; 3] {
        array::from_fn(|by| self.0.decided_by[by].load(Ordering::Relaxed))
    }

    /// Returns what a policy has refused, and what its candidates would have refused besides.
    pub(super) fn refusals(&self, name: &str) -> Refusals {
        let policy = self.0.policies.iter().find(|policy| policy.name == name);
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        policy.map_or_else(Refusals::default, |policy| Refusals {
            refused: load(&policy.refused),
            would_refuse: load(&policy.would_refuse),
        })
    }

    /// Returns the times since the last call.
    pub(super) fn take_times(&self) -> Option<Histogram<u64>> {
        Some(std::mem::replace(&mut *lock(&self.0.took), no_times()?))
    }
}

/// Counts of one policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Refusals {
    pub(super) refused: u64,
    pub(super) would_refuse: u64,
}

/// Returns an empty histogram. Its bounds are constants that are right.
pub(super) fn no_times() -> Option<Histogram<u64>> {
    Histogram::new_with_bounds(1, LONGEST, DIGITS).ok()
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Counts the requests of a route. It runs in front of the limit.
pub(crate) async fn count(State(meter): State<Meter>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let response = next.run(request).await;
    meter.finished(Class::of(&response), started.elapsed());
    response
}

/// Marks the responses of what is behind the limit: a 403 from there is no ban.
pub(crate) async fn mark_passed(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    response.extensions_mut().insert(Passed);
    response
}
