//! [`Slot`]: the last level of one SKU, which concurrent requests read once.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use example_support::lock;
use tokio::time::Instant;
use tower_sliding_window::StoreError;

use super::LevelError;
use crate::stock::{Level, StockError};

/// How long a failed read stands, so that in an outage requests share the wait for the next one.
const FAILED_AGE: Duration = Duration::from_millis(100);

type LevelResult = Result<Option<Level>, LevelError>;

/// The last level that was read.
#[derive(Default)]
pub(super) struct Slot {
    last: Mutex<Option<Last>>,
    /// Held by the read that is under way.
    turn: Arc<tokio::sync::Mutex<()>>,
}

struct Last {
    /// When the read ended. Counted from its start, a slow read would be too old for those that
    /// waited for it.
    at: Instant,
    level: LevelResult,
}

impl Slot {
    /// Returns the last level if it is no older than `age`, or `unknown_age` if there was no such
    /// SKU. Else it reads, once for all that wait.
    pub(super) async fn level(
        self: &Arc<Self>,
        age: Duration,
        unknown_age: Duration,
        read: impl Future<Output = LevelResult> + Send + 'static,
    ) -> LevelResult {
        if let Some(level) = self.fresh(age, unknown_age) {
            return level;
        }
        let turn = Arc::clone(&self.turn).lock_owned().await;
        if let Some(level) = self.fresh(age, unknown_age) {
            return level;
        }
        let slot = Arc::clone(self);
        // A task of its own: else clients that leave during the read could cause one read each.
        let reading = tokio::spawn(async move {
            let level = read.await;
            *lock(&slot.last) = Some(Last { at: Instant::now(), level: level.clone() });
            drop(turn);
            level
        });
        reading.await.unwrap_or(Err(StockError::from(StoreError::Unavailable).into()))
    }

    fn fresh(&self, age: Duration, unknown_age: Duration) -> Option<LevelResult> {
        let last = lock(&self.last);
        let last = last.as_ref()?;
        let age = match last.level {
            Ok(Some(_)) => age,
            Ok(None) => unknown_age,
            Err(_) => FAILED_AGE,
        };
        (last.at.elapsed() < age).then(|| last.level.clone())
    }

    /// Tells whether the SKU was on sale when it was last read.
    pub(super) fn is_on_sale(&self) -> bool {
        matches!(&*lock(&self.last), Some(Last { level: Ok(Some(_)), .. }))
    }
}
