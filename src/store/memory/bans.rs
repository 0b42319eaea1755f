//! The ban records of a [`MemoryStore`]. Those of a key are in the shard of its logs.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::shard::{SHARDS, Shard};
use super::{Inner, MemoryStore, VISITED_AT_ONCE};
use crate::error::StoreError;
use crate::key::Key;
use crate::policy::{Penalty, Policy};
use crate::store::{Ban, BanPage};
use crate::window::{BanRecord, LogId};

/// How many slots a page of bans reads at most.
const SLOTS_PER_PAGE: usize = 100_000;

/// The ban record of a key under the policies of one name.
pub(super) struct StoredBan {
    policy: Arc<Policy>,
    key: SmallVec<[u8; 24]>,
    record: BanRecord,
    pub(super) expires_us: u64,
}

impl StoredBan {
    fn is(&self, log: &LogId) -> bool {
        self.key[..] == *log.key.as_bytes() && self.policy.base_name() == log.policy.base_name()
    }
}

impl Shard {
    /// Returns the ban record of a key, unless it has expired. `hash` is that of the key.
    pub(super) fn ban(&self, hash: u64, log: &LogId, now_us: u64) -> Option<&BanRecord> {
        let stored = &self.bans[self.bans.find(hash, |stored| stored.is(log))?];
        (stored.expires_us > now_us).then_some(&stored.record)
    }
}

pub(super) fn ban(record: &BanRecord, now_us: u64) -> Option<Ban> {
    let wait_us = record.wait_us(now_us);
    let remaining = Duration::from_micros(wait_us);
    (wait_us > 0).then(|| Ban { remaining, reason: record.reason.clone(), ..Ban::default() })
}

/// Returns until when to keep a record.
fn expires_us(record: &BanRecord, penalty: Option<&Penalty>) -> u64 {
    match *record == BanRecord::default() {
        true => 0,
        false => penalty.map_or(record.until_us, |penalty| record.expires_us(penalty)),
    }
}

impl Inner {
    /// Changes the ban record of a key, which is a default one if there is none. `hash` is that of the key.
    ///
    /// # Errors
    ///
    /// [`StoreError::Full`] if there is no room for the record. Nothing is kept then.
    pub(super) fn change_ban<T>(
        &self,
        shard: &mut Shard,
        hash: u64,
        log: &LogId,
        now_us: u64,
        change: impl FnOnce(&mut BanRecord) -> T,
    ) -> Result<T, StoreError> {
        let slot = shard.bans.find(hash, |stored| stored.is(log));
        let known = slot.map(|slot| &mut shard.bans[slot]).filter(|it| it.expires_us > now_us);
        let (mut record, kept_us) =
            known.map_or_else(Default::default, |it| (mem::take(&mut it.record), it.expires_us));
        let result = change(&mut record);
        // Never sooner than before, because another penalty may count its strikes for longer.
        let expires_us = expires_us(&record, log.policy.get_penalty()).max(kept_us);
        match slot {
            Some(slot) if record == BanRecord::default() => shard.bans.remove(slot),
            Some(slot) => {
                let stored = &mut shard.bans[slot];
                (stored.record, stored.expires_us) = (record, expires_us);
            }
            None if expires_us > now_us => {
                self.bans.reserve(1)?;
                let (policy, key) = (log.policy.clone(), SmallVec::from_slice(log.key.as_bytes()));
                let stored = StoredBan { policy, key, record, expires_us };
                shard.bans.insert(hash, stored, expires_us);
            }
            None => {}
        }
        Ok(result)
    }
}

impl MemoryStore {
    /// Changes the ban record of a log's key. If there is no room, expired records make some.
    pub(super) fn with_ban_record<T>(
        &self,
        log: &LogId,
        change: impl Fn(&mut BanRecord, u64) -> T,
    ) -> Result<T, StoreError> {
        let try_change = || {
            let (hash, mut shard) = self.0.lock_one(log);
            let now_us = self.0.now_us();
            let changed =
                self.0.change_ban(&mut shard, hash, log, now_us, |record| change(record, now_us));
            self.0.drop_expired(&mut shard, now_us, VISITED_AT_ONCE);
            changed
        };
        self.0.make_room_for(try_change)
    }

    /// Deletes the ban record of a log's key. Returns whether there was any.
    pub(in crate::store) fn lift_ban(&self, log: &LogId) -> bool {
        if self.0.bans.held() == 0 {
            return false;
        }
        let lift = |record: &mut BanRecord, _: u64| mem::take(record) != BanRecord::default();
        // There is always room for nothing.
        self.with_ban_record(log, lift).unwrap_or(false)
    }

    pub(super) fn page_of_bans(&self, policy: &Arc<Policy>, cursor: u64, count: usize) -> BanPage {
        // A position is the number of the shard, and in the low half that of the slot, which a record keeps.
        let first_shard = usize::try_from(cursor >> 32).unwrap_or(SHARDS);
        let mut first_slot = cursor as u32;
        let (mut found, mut visited) = (Vec::new(), 0);
        for number in first_shard..SHARDS {
            let shard = self.0.lock(number);
            let now_us = self.0.now_us();
            for slot in first_slot..shard.bans.end() {
                if found.len() >= count.max(1) || visited >= SLOTS_PER_PAGE {
                    let position = (number as u64) << 32 | u64::from(slot);
                    return BanPage::new(found, Some(position));
                }
                visited += 1;
                let is_it = |stored: &&StoredBan| stored.policy.base_name() == policy.base_name();
                let Some(stored) = shard.bans.get(slot).filter(is_it) else { continue };
                let live = ban(&stored.record, now_us);
                found.extend(live.map(|ban| (Key::from_stored(&stored.key), ban)));
            }
            first_slot = 0;
        }
        BanPage::new(found, None)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::store::Store;
    use crate::{Bans, Limiter, Quota};

    const SECOND: Duration = Duration::from_secs(1);

    fn policy() -> Policy {
        Policy::new("user").quota(Quota::per_hour(1)).penalty("1/10m:1m".parse().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn only_expired_records_make_room() {
        let store = MemoryStore::with_capacity(2);
        let bans = Bans::new(policy(), store.clone());
        bans.impose("a", SECOND, "").await.unwrap();
        bans.impose("b", 2 * SECOND, "").await.unwrap();
        let full = bans.impose("c", SECOND, "").await.unwrap_err();
        assert!(matches!(full, StoreError::Full { capacity: 2 }), "{full}");
        bans.impose("b", 3 * SECOND, "").await.unwrap();
        tokio::time::advance(SECOND).await;
        bans.impose("c", SECOND, "").await.unwrap();
        assert!(bans.get("b").await.unwrap().is_some(), "a live record is not dropped");
        assert_eq!((store.0.bans.held(), bans.list().await.unwrap().len()), (2, 2));
        assert!(bans.lift("b").await.unwrap() && bans.lift("c").await.unwrap());
        assert_eq!(store.0.bans.held(), 0);
    }

    /// A request waits for the room that it needs, and not until all that a flood has left is dropped.
    #[tokio::test(start_paused = true)]
    async fn room_is_made_bit_by_bit() {
        // Also where no new keys come any more.
        for next in [20_000, 0] {
            let store = MemoryStore::with_capacity(20_000);
            let limiter = Limiter::new(Quota::per_minute(1), store.clone());
            for user in 0..20_000_u32 {
                assert!(limiter.check(user).await.unwrap().is_admitted());
            }
            tokio::time::advance(60 * SECOND).await;
            assert!(limiter.check(next).await.unwrap().is_admitted());
            assert!((10_000..19_000).contains(&store.len()), "{}", store.len());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn page_returns_lasting_records_once() {
        let store = MemoryStore::new();
        let bans = Bans::new(policy(), store);
        for number in 0..100_u32 {
            bans.impose(number, SECOND, "").await.unwrap();
        }
        let (mut next, mut read) = (Some(0), Vec::new());
        while let Some(cursor) = next {
            assert!(read.len() < 1_000, "the last page is never read");
            let page = bans.page(cursor, 7).await.unwrap();
            read.extend(page.bans.into_iter().map(|(key, _)| key));
            next = page.next;
            // Some keys are removed and others inserted between the pages.
            let gone = read.len() as u32;
            bans.lift(gone).await.unwrap();
            bans.impose(1_000 + gone, SECOND, "").await.unwrap();
        }
        let lasting: Vec<Key> = (0..100_u32).filter(|it| it % 7 != 0).map(Key::from).collect();
        let distinct: BTreeSet<&Key> = read.iter().collect();
        let times = |key: &Key| read.iter().filter(|it| *it == key).count();
        assert!(lasting.iter().all(|key| times(key) <= 1));
        assert!(lasting.iter().filter(|key| distinct.contains(key)).count() >= 75);
    }

    #[tokio::test(start_paused = true)]
    async fn expired_records_are_dropped_without_an_admission() {
        let store = MemoryStore::new();
        let bans = Bans::new(policy(), store.clone());
        for number in 0..20_000_u32 {
            bans.impose(number, SECOND, "a reason").await.unwrap();
            tokio::time::advance(SECOND).await;
        }
        let held = store.0.bans.held();
        assert!(held < 1_000, "one ban stands, {held} records are held");
    }

    #[test]
    fn numbers_of_logs_and_bans_are_right_after_a_storm() {
        let policy: Arc<Policy> = Arc::new(
            Policy::new("user")
                .quota(Quota::new(1, Duration::from_millis(2)))
                .penalty("1/1s:1s".parse().unwrap()),
        );
        let manual =
            Arc::new(Policy::new("manual").quota(Quota::per_hour(1)).penalty(Penalty::manual()));
        for capacity in [3, 50, 1_000] {
            let store = MemoryStore::with_capacity(capacity);
            let act = |mut seed: u64| {
                for _ in 0..20_000 {
                    seed ^= seed << 13;
                    seed ^= seed >> 7;
                    seed ^= seed << 17;
                    let log = |key: u64| LogId::new(policy.clone(), key % 100);
                    let [one, two] = [log(seed >> 8), log(seed >> 24)];
                    match seed % 6 {
                        0 => {
                            let log = LogId { policy: manual.clone(), ..one };
                            drop(store.impose(&log, Duration::from_millis(1), "", false));
                        }
                        1 => drop(store.lift_ban(&one)),
                        2 => drop(store.page_of_bans(&policy, 0, 10)),
                        3 => [one, two].iter().for_each(|log| store.reset_here(log)),
                        _ => {
                            let _ = store.decide(&crate::window::Check::new([one, two]), true);
                            store.report();
                        }
                    }
                    assert!(store.len() <= capacity);
                    assert!(store.0.bans.held() <= capacity);
                }
            };
            std::thread::scope(|scope| (1..5).for_each(|it| drop(scope.spawn(move || act(it)))));
            let shards = || (0..SHARDS).map(|shard| store.0.lock(shard));
            let held: usize = shards().map(|shard| shard.logs.len()).sum();
            let bans: usize = shards().map(|shard| shard.bans.len()).sum();
            assert_eq!((store.len(), store.0.bans.held()), (held, bans));
        }
    }
}
