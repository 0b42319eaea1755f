//! The bans of a [`MemoryStore`].

use std::sync::Arc;
use std::time::Duration;

use super::super::expiring::{Keep, Kept};
use super::{MemoryStore, standing_key};
use crate::bans::{Ban, BanCursor, BanPage};
use crate::error::StoreError;
use crate::key::Key;
use crate::penalty::{Penalty, Standing};
use crate::policy::Policy;
use crate::store::{BanStore, Partition, StoreFuture};
use crate::window::micros;

impl Kept for Standing {}

fn ban(standing: &Standing, now_us: u64, is_new: bool) -> Option<Ban> {
    let wait_us = standing.wait_us(now_us);
    let remaining = Duration::from_micros(wait_us);
    (wait_us > 0).then(|| Ban { remaining, reason: standing.reason.clone(), is_new })
}

/// Says for how long a standing is kept after it was changed by hand.
fn keep(standing: &Standing, now_us: u64, penalty: Option<&Penalty>) -> Keep {
    match penalty.map(|penalty| standing.over_us(penalty)) {
        _ if *standing == Standing::default() => Keep::Not,
        Some(over_us) if over_us > now_us => Keep::Until(over_us),
        Some(_) => Keep::Not,
        // A policy without a penalty can't tell for how long strikes and rungs matter.
        None => Keep::AtLeastUntil(standing.until_us),
    }
}

impl MemoryStore {
    pub(super) fn with_standing<T>(
        &self,
        partition: &Partition,
        change: impl FnOnce(&mut Standing, u64) -> T,
    ) -> Result<T, StoreError> {
        let key = standing_key(&partition.policy, partition.key.as_bytes());
        self.0.standings.update(&key, |standing, now_us| {
            let result = change(standing, now_us);
            (result, keep(standing, now_us, partition.policy.penalty_for_strikes()))
        })
    }

    /// Bans a key that was seen to be banned in another store, then on that store's clock.
    pub(in crate::store) fn impose_seen(
        &self,
        partition: &Partition,
        length: Duration,
        reason: &str,
        there_us: Option<u64>,
    ) -> Result<(), StoreError> {
        self.with_standing(partition, |standing, now_us| {
            let penalty = partition.policy.penalty_for_strikes();
            standing.impose(now_us, micros(length), reason, penalty);
            standing.seen_there_us = there_us;
        })
    }
}

impl BanStore for MemoryStore {
    fn ban(&self, partition: &Partition) -> StoreFuture<Option<Ban>> {
        let key = standing_key(&partition.policy, partition.key.as_bytes());
        let look = |standing: &Standing, now_us: u64| ban(standing, now_us, false);
        StoreFuture::ready(Ok(self.0.standings.look(&key, look).flatten()))
    }

    fn impose(&self, partition: &Partition, duration: Duration, reason: &str) -> StoreFuture<Ban> {
        let impose = |standing: &mut Standing, now_us: u64| {
            let penalty = partition.policy.penalty_for_strikes();
            let is_new = standing.impose(now_us, micros(duration), reason, penalty);
            let none = Ban { remaining: Duration::ZERO, reason: String::new(), is_new };
            ban(standing, now_us, is_new).unwrap_or(none)
        };
        StoreFuture::ready(self.with_standing(partition, impose))
    }

    fn lift(&self, partition: &Partition) -> StoreFuture<bool> {
        let lift =
            |standing: &mut Standing, _: u64| std::mem::take(standing) != Standing::default();
        StoreFuture::ready(self.with_standing(partition, lift))
    }

    fn page(&self, policy: &Arc<Policy>, cursor: BanCursor, count: usize) -> StoreFuture<BanPage> {
        let prefix = standing_key(policy, b"");
        let look = |key: &[u8], standing: &Standing, now_us: u64| {
            let key = key.strip_prefix(&prefix[..])?;
            Some((Key::kept(key), ban(standing, now_us, false)?))
        };
        let place = usize::try_from(cursor.place()).unwrap_or(usize::MAX);
        let (bans, next) = self.0.standings.page(place, count, look);
        StoreFuture::ready(Ok(BanPage::new(bans, next.map(|place| BanCursor::new(place as u64)))))
    }
}
