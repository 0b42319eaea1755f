//! The contract test: what every [`Store`] must pass.
//!
//! For the tests of a store of one's own. Add the crate to the dev-dependencies with the feature
//! `contract`, and call [`holds`] with the store and a function that moves the store's clock.
//!
//! ```
//! use tower_sliding_window::{MemoryStore, store::contract};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(async {
//! // In a test with `#[tokio::test(start_paused = true)]`:
//! let store = MemoryStore::new(); // or a store of one's own
//! contract::holds(&store, tokio::time::advance).await;
//! # });
//! ```
//!
//! The test plays a fixed number of pseudo-random histories, the same in every run, and compares
//! each outcome with the exact algorithm: checks of several logs and costs, repeats, peeks, cancels,
//! resets, restores, changed limits, strikes and bans. Each history has keys of its own, new in every
//! run, so that one store serves all histories and a database needs no cleaning in between.
//!
//! The test does not cover concurrency: it waits for each outcome before the next step. It is for
//! the store itself, without a [`DenyCache`](super::DenyCache) in front of it.
//!
//! # The clock
//!
//! The store's clock must stand still except when the test moves it, for the outcomes are compared
//! to the microsecond. An in-process store that reads [`tokio::time::Instant`] is tested under
//! paused time, with `tokio::time::advance` (tokio's feature `test-util`). A store that reads a
//! database's clock needs a way to replace it in tests.
//!
//! # Penalties
//!
//! A store that supports [`Penalty`](crate::Penalty) counts strikes and enforces bans in the same
//! atomic step as the logs, as described at [`Store`]. A store without this support must refuse a
//! check with a penalty by [`StoreError::Unsupported`]: else bans
//! would be configured and never enforced. [`holds_without_penalties`] tests such a store.

mod generate;
mod model;
mod player;
#[cfg(all(test, feature = "redis"))]
mod random;
mod step;
#[cfg(all(test, feature = "memory"))]
mod tests;

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use uuid::Uuid;

use super::{Check, LogId, Store};
use crate::error::StoreError;
use crate::key::Key;
use crate::policy::Policy;
use crate::quota::Quota;
use crate::time::micros;
pub(in crate::store) use player::Player;
pub(in crate::store) use step::LONGEST_WINDOW_US;
#[cfg(all(test, feature = "redis"))]
pub(in crate::store) use step::Step;

/// How many histories are played.
const HISTORIES: u64 = 200;
/// How many steps a history has.
const STEPS: usize = 60;

/// Tests that a store decides exactly as the algorithm does, penalties included.
///
/// `advance` moves the store's clock on by a length of time. Under paused tokio time it is
/// `tokio::time::advance`; a store with a clock of its own takes a closure such as
/// `async |time| clock.advance(time)`.
///
/// See the [module's documentation](self) for an example.
///
/// # Panics
///
/// If an outcome differs from the algorithm's, or if the store fails. The message says which step
/// it was, what was expected and what the store answered.
#[track_caller]
pub fn holds(store: &impl Store, advance: impl AsyncFnMut(Duration)) -> impl Future<Output = ()> {
    let caller = Location::caller();
    async move { report(play(store, advance, true).await, caller) }
}

/// Tests that a store without support for penalties decides exactly as the algorithm does, and
/// refuses a check with a penalty by [`StoreError::Unsupported`].
///
/// The parameters are those of [`holds`].
///
/// # Panics
///
/// If an outcome differs from the algorithm's, if the store fails, or if it answers a check with a
/// penalty.
#[track_caller]
pub fn holds_without_penalties(
    store: &impl Store,
    advance: impl AsyncFnMut(Duration),
) -> impl Future<Output = ()> {
    let caller = Location::caller();
    async move {
        report(play(store, advance, false).await, caller);
        report(refuses_penalties(store).await, caller);
    }
}

fn report(played: Result<(), String>, caller: &Location<'_>) {
    if let Err(difference) = played {
        panic!("the store does not hold its contract, tested at {caller}: {difference}");
    }
}

async fn play(
    store: &dyn Store,
    mut advance: impl AsyncFnMut(Duration),
    penalties: bool,
) -> Result<(), String> {
    let run = Uuid::new_v4();
    let mut clock_us = now_us(store, run).await?;
    for history in 0..HISTORIES {
        let steps = generate::history(&mut Rng::with_seed(history), STEPS);
        // The second has bytes that a text format would have to escape.
        let keys = [format!("{run}-{history}-alice"), format!("{run}-{history}-b}}o\0b%{{")];
        let mut player = Player::new(store, keys.map(Key::from), clock_us);
        if !penalties {
            player = player.without_penalties();
        }
        let mut move_clock = async |now_us: u64| {
            if now_us > clock_us {
                advance(Duration::from_micros(now_us - clock_us)).await;
                clock_us = now_us;
            }
        };
        let played = player.play(&steps, &mut move_clock).await;
        played.map_err(|difference| format!("history {history}, {difference}"))?;
    }
    Ok(())
}

/// Returns what the store's clock shows.
async fn now_us(store: &dyn Store, run: Uuid) -> Result<u64, String> {
    let policy = Policy::new("user").quota(Quota::new(1, Duration::from_micros(LONGEST_WINDOW_US)));
    let mut check = Check::new([LogId::new(Arc::new(policy), format!("{run}-clock"))]);
    check.wants_timestamp = true;
    let outcome = store.peek(&Arc::new(check)).await;
    let outcome = outcome.map_err(|error| format!("the first peek failed: {error}"))?;
    let timestamp = outcome.timestamp.map(micros);
    timestamp.ok_or_else(|| "the first peek asked for the time, and got none".to_owned())
}

async fn refuses_penalties(store: &dyn Store) -> Result<(), String> {
    let quota = Quota::new(1, Duration::from_micros(LONGEST_WINDOW_US));
    let policy = Policy::new("user").quota(quota).penalty(player::penalty());
    let log = LogId::new(Arc::new(policy), format!("{}-banned", Uuid::new_v4()));
    match store.admit(&Arc::new(Check::new([log]))).await {
        Err(StoreError::Unsupported { .. }) => Ok(()),
        other => Err(format!("a check with a penalty: expected `Unsupported`, got {other:?}")),
    }
}
