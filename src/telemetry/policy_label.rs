//! [`PolicyLabel`]: the name of a policy, as the label of its counters.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
#[cfg(feature = "metrics")]
use std::sync::OnceLock;
#[cfg(feature = "metrics")]
use std::time::Duration;

#[cfg(feature = "metrics")]
use super::kept::Kept;
#[cfg(feature = "metrics")]
use metrics::{Counter, Histogram};

/// How many candidates of one policy, and how many reasons, have counters of their own here.
#[cfg(feature = "metrics")]
const MOST: usize = 4;

/// The name of a policy, with the counters that have it as a label.
///
/// They are one value, so that a policy that gets another name gets other counters.
pub(crate) struct PolicyLabel {
    name: Box<str>,
    // A trait object, because clippy's `mutable_key_type` would otherwise warn an application that has
    // a map by `LogId`.
    #[cfg(feature = "metrics")]
    pub(super) counters: Box<dyn Count>,
}

/// Returns the counters of a policy, or `None` where a counter has no place here.
#[cfg(feature = "metrics")]
pub(super) trait Count: Send + Sync {
    fn decision(&self, index: usize) -> Option<&Kept<Counter>>;
    fn strike(&self) -> Option<&Kept<Counter>>;
    fn missing_key(&self, reason: &'static str) -> Option<&Kept<Counter>>;
    fn candidate(&self, limit: u32, window: Duration) -> Option<&Kept<Counter>>;
    fn waits(&self) -> &Kept<Histogram>;
}

/// The counters of what most requests of a flood can cause.
#[cfg(feature = "metrics")]
#[derive(Default)]
struct Counters {
    decisions: [Kept<Counter>; 3],
    strikes: Kept<Counter>,
    missing_keys: CountersBy<&'static str>,
    candidates: CountersBy<(u32, Duration)>,
    waits: Kept<Histogram>,
}

/// The counters of the first few values of a label.
#[cfg(feature = "metrics")]
type CountersBy<T> = [(OnceLock<T>, Kept<Counter>); MOST];

#[cfg(feature = "metrics")]
impl Count for Counters {
    fn decision(&self, index: usize) -> Option<&Kept<Counter>> {
        self.decisions.get(index)
    }

    fn strike(&self) -> Option<&Kept<Counter>> {
        Some(&self.strikes)
    }

    fn missing_key(&self, reason: &'static str) -> Option<&Kept<Counter>> {
        find(&self.missing_keys, reason)
    }

    fn candidate(&self, limit: u32, window: Duration) -> Option<&Kept<Counter>> {
        find(&self.candidates, (limit, window))
    }

    fn waits(&self) -> &Kept<Histogram> {
        &self.waits
    }
}

/// Returns the counter of a value, or `None` if it is not among the first few.
#[cfg(feature = "metrics")]
fn find<T: Copy + PartialEq>(counters: &CountersBy<T>, value: T) -> Option<&Kept<Counter>> {
    let mut counters = counters.iter();
    let found = counters.find(|(of, _)| *of.get_or_init(|| value) == value);
    found.map(|(_, counter)| counter)
}

impl From<&str> for PolicyLabel {
    fn from(name: &str) -> Self {
        Self {
            name: name.into(),
            #[cfg(feature = "metrics")]
            counters: Box::new(Counters::default()),
        }
    }
}

impl Deref for PolicyLabel {
    type Target = str;

    fn deref(&self) -> &str {
        &self.name
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
