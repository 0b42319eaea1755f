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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::{advance, sleep};

    use super::*;

    const AGE: Duration = Duration::from_millis(100);

    /// A slow Redis that counts the reads.
    #[derive(Clone, Default)]
    struct Reads(Arc<AtomicUsize>);

    impl Reads {
        async fn level(&self, slot: &Arc<Slot>, level: LevelResult) -> LevelResult {
            let Self(count) = self.clone();
            let read = async move {
                count.fetch_add(1, Ordering::SeqCst);
                sleep(Duration::from_millis(500)).await;
                level
            };
            slot.level(AGE, AGE, read).await
        }

        fn count(&self) -> usize {
            self.0.load(Ordering::SeqCst)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_leaves_causes_no_second_read() {
        let (slot, reads) = (Arc::<Slot>::default(), Reads::default());
        for _ in 0..10 {
            let left = tokio::time::timeout(AGE / 10, reads.level(&slot, Ok(None)));
            assert!(left.await.is_err());
        }
        assert_eq!(reads.level(&slot, Ok(None)).await.unwrap(), None);
        assert_eq!(reads.count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_read_is_shared_and_not_kept() {
        let (slot, reads) = (Arc::<Slot>::default(), Reads::default());
        let level = Level { stock: 2, sold: 1 };
        let failed = || Err(StockError::from(StoreError::Timeout).into());
        let (first, second) =
            tokio::join!(reads.level(&slot, failed()), reads.level(&slot, Ok(Some(level))),);
        assert!(first.is_err() && second.is_err());
        assert_eq!(reads.count(), 1);
        advance(FAILED_AGE).await;
        assert_eq!(reads.level(&slot, Ok(Some(level))).await.unwrap(), Some(level));
        assert!(slot.is_on_sale());
    }
}
