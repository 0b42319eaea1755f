//! The laws of behaviour, on every store.

mod cancel;
mod contract;
mod costs;
mod counting;
mod fleet;
mod reload;
mod waits;
mod wrong_designs;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use test_support::*;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, advance, sleep, sleep_until, timeout};
use tokio_test::{assert_pending, task};
use tower::{Layer, ServiceExt, service_fn};
use tower_sliding_window::store::{Check, Store, StoreFuture};
use tower_sliding_window::*;

/// Returns how many places alice has left.
async fn left(limiter: &Limiter) -> u32 {
    limiter.peek("alice").await.unwrap().remaining()
}

/// Returns a limiter that is closed when the store fails: local logs would decide in its place.
fn limiter(policy: impl Into<PolicyHandle>, store: impl Store) -> Limiter {
    Limiter::new(policy, store).failure_policy(FailurePolicy::Closed)
}
