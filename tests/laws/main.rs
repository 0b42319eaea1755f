//! The laws of behaviour, on every store.

mod cancel;
mod contract;
mod costs;
mod counting;
mod fleet;
mod reload;
mod waits;
mod wrong_designs;

use tower_sliding_window::store::Store;
use tower_sliding_window::{FailurePolicy, Limiter, PolicyHandle};

/// Returns a limiter that is closed when the store fails: local logs would decide in its place.
fn limiter(policy: impl Into<PolicyHandle>, store: impl Store) -> Limiter {
    Limiter::new(policy, store).failure_policy(FailurePolicy::Closed)
}
