//! Checks in process, of a store and through a limiter.

use std::sync::Arc;

use tower_sliding_window::store::{Check, LogId, Store};
use tower_sliding_window::{Limiter, MemoryStore, Policy, TopOffenders};

use super::{LIMIT, five_a_minute, keys, now};

/// A store with one policy, whose checks are made as a limiter makes them.
struct Checks<S> {
    store: S,
    policy: Arc<Policy>,
}

impl<S: Store> Checks<S> {
    fn new(store: S) -> Self {
        Self { store, policy: Arc::new(five_a_minute().into()) }
    }

    fn is_admitted(&self, key: &str) -> bool {
        let check = Check::new([LogId::new(self.policy.clone(), key)]);
        now(self.store.admit(&check)).expect("an outcome").admitted
    }
}

fn limiter() -> impl Fn(&str) -> bool {
    let limiter = Limiter::new(five_a_minute(), MemoryStore::new());
    move |key| now(limiter.check(key)).expect("a decision").is_admitted()
}

/// Returns a limiter that counts the keys denied most, a hundred of them.
fn counting_limiter() -> impl Fn(&str) -> bool {
    let limiter = Limiter::new(five_a_minute(), MemoryStore::new());
    let limiter = limiter.top_offenders(&TopOffenders::new(100));
    move |key| now(limiter.check(key)).expect("a decision").is_admitted()
}

fn memory() -> impl Fn(&str) -> bool {
    let checks = Checks::new(MemoryStore::new());
    move |key| checks.is_admitted(key)
}

/// Admits the first request of each of many keys.
fn new_key(times: u32, is_admitted: impl Fn(&str) -> bool) {
    for key in keys().iter().take(times as usize) {
        assert!(is_admitted(key));
    }
}

/// Admits the second to fifth request of keys, so that the mean of their logs' lengths is measured.
fn hit(times: u32, is_admitted: impl Fn(&str) -> bool) {
    let keys = keys();
    assert!(keys.iter().all(|key| is_admitted(key)));
    let hits = LIMIT - 1;
    for time in 0..times {
        assert!(is_admitted(&keys[(time / hits) as usize]));
    }
}

/// Denies the requests of one key, as in a flood.
fn denial(times: u32, is_admitted: impl Fn(&str) -> bool) {
    for _ in 0..LIMIT {
        assert!(is_admitted("mallory"));
    }
    for _ in 0..times {
        assert!(!is_admitted("mallory"));
    }
}

pub(super) fn memory_new_key(times: u32, _: &str) {
    new_key(times, memory());
}

pub(super) fn memory_hit(times: u32, _: &str) {
    hit(times, memory());
}

pub(super) fn memory_denial(times: u32, _: &str) {
    denial(times, memory());
}

pub(super) fn limiter_new_key(times: u32, _: &str) {
    new_key(times, limiter());
}

pub(super) fn limiter_hit(times: u32, _: &str) {
    hit(times, limiter());
}

pub(super) fn limiter_denial(times: u32, _: &str) {
    denial(times, limiter());
}

pub(super) fn offenders_denial(times: u32, _: &str) {
    denial(times, counting_limiter());
}

/// Denies the first request of each of many keys above the limit, so that each takes another's place.
pub(super) fn offenders_new_key_denial(times: u32, _: &str) {
    let (keys, is_admitted) = (keys(), counting_limiter());
    for key in &keys {
        (0..LIMIT).for_each(|_| assert!(is_admitted(key)));
    }
    keys.iter().take(times as usize).for_each(|key| assert!(!is_admitted(key)));
}
