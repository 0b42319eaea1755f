//! The contract test: what every [`Store`] must pass.
//!
//! It is for authors of a store. Add this crate to the dev-dependencies with the feature `contract`, and
//! call [`holds`] with the store and a function that advances the store's clock.
//!
//! ```
//! use tower_sliding_window::{MemoryStore, store::contract};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(async {
//! // In a test with `#[tokio::test(start_paused = true)]`:
//! let store = MemoryStore::new(); // or your own store
//! contract::holds(&store, tokio::time::advance).await;
//! # });
//! ```
//!
//! The test plays a fixed number of pseudo-random histories and compares each outcome with the exact
//! algorithm. The histories have checks of several logs and costs, peeks, explanations,
//! settlements, cancellations, resets, policies of one name with different quotas, strikes and bans.
//! They are the same in every run. Their keys are new in every run and differ between histories, so one
//! store can play all histories, and a database needs no cleaning.
//!
//! A store need not explain its logs, nor support penalties: explanations that are [`StoreError::Unsupported`] are not
//! compared, and if a check with a [`Penalty`](crate::Penalty) is, the histories have none.
//!
//! The test does not cover concurrency: it waits for each result before the next step. A store that
//! repeats denials from memory has to be tested without that memory.
//!
//! # The clock
//!
//! Outcomes are compared to the microsecond. So only the test may advance the store's clock. Test an
//! in-process store that reads [`tokio::time::Instant`] under paused time, with `tokio::time::advance`
//! (tokio's feature `test-util`). A store that reads the clock of a database needs a way to replace
//! that clock in tests.

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
use step::LONGEST_WINDOW_US;
#[cfg(all(test, feature = "redis"))]
pub(in crate::store) use step::{Step, history};

const HISTORIES: u64 = 200;
const STEPS: usize = 60;

/// Tests that a store decides exactly as the algorithm.
///
/// `advance` advances the store's clock by a length of time. Under paused tokio time it is
/// `tokio::time::advance`. For a store with its own clock it is a closure such as
/// `async |time| clock.advance(time)`.
///
/// See the [module documentation](self) for an example.
///
/// # Panics
///
/// If an outcome differs from that of the algorithm, or if the store fails. The message names the
/// step, the expected result and the store's result.
#[track_caller]
pub fn holds(store: &impl Store, advance: impl AsyncFnMut(Duration)) -> impl Future<Output = ()> {
    let caller = Location::caller();
    async move {
        if let Err(difference) = play(store, advance).await {
            panic!("the store breaks its contract, tested at {caller}: {difference}");
        }
    }
}

async fn play(store: &dyn Store, mut advance: impl AsyncFnMut(Duration)) -> Result<(), String> {
    let run = Uuid::new_v4();
    let quota = Quota::new(1, Duration::from_micros(LONGEST_WINDOW_US));
    let check = |policy| Check::new([LogId::new(Arc::new(policy), format!("{run}-first"))]);
    let policy = Policy::new("user").quota(quota);
    let outcome = store.peek(&check(policy.clone())).await;
    let outcome = outcome.map_err(|error| format!("the first peek failed: {error}"))?;
    let timestamp = outcome.timestamp.ok_or("the outcome of the first peek has no timestamp")?;
    let mut clock_us = micros(timestamp);
    let penalized = store.admit(&check(policy.penalty(player::penalty(0)))).await;
    let penalties = !matches!(penalized, Err(StoreError::Unsupported { .. }));
    for history in 0..HISTORIES {
        let steps = step::history(&mut Rng::with_seed(history), STEPS, false);
        // The second key has bytes that a text format has to escape.
        let keys = [format!("{run}-{history}-alice"), format!("{run}-{history}-b}}o\0b%{{")];
        let mut player = Player::new(store, keys.map(Key::from), clock_us, penalties);
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
