//! What the example servers share.

pub mod admin;
pub mod flags;
pub mod logs;
pub mod policies;
pub mod problem;
pub mod redis;
pub mod server;
#[cfg(feature = "webhook")]
pub mod webhook;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a value, also after a panic under the lock: no server here leaves a value half changed.
pub fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}
