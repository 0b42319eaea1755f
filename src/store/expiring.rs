//! [`Expiring`]: values in this process, by key, until they are over.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ahash::RandomState;
use hashbrown::HashTable;
use slab::Slab;
use tokio::time::Instant;

use crate::error::StoreError;
use crate::key::Key;
use crate::time::micros;

/// How many values that are over one update drops at the most.
const DROPPED_PER_UPDATE: usize = 2;
/// With less room than this, all values that are over are dropped.
const LITTLE_ROOM: usize = 1 << 20;
/// How many values a page looks at.
const MOST_A_PAGE: usize = 100_000;

/// Values by key, each with an instant at which it is over and as good as absent.
///
/// The number of values is capped, and their bytes are counted against a budget. At the cap those that
/// are over are dropped first; one that is not over never is: a new key then gets
/// [`StoreError::Full`]. What is refused when the budget is spent is for the user of the map to say.
pub(crate) struct Expiring<V> {
    values: Mutex<Values<V>>,
    hasher: RandomState,
    epoch: Instant,
    capacity: usize,
    /// How many bytes the values may take.
    budget: AtomicUsize,
}

/// What can be kept in an [`Expiring`].
pub(crate) trait Kept: Default {
    /// Returns how many bytes the value takes beside its own size.
    fn heap_bytes(&self) -> usize {
        0
    }

    /// Drops what is over at the instant until which the value was kept, and says for how long the
    /// rest is kept.
    fn expire(&mut self, _now_us: u64) -> Keep {
        Keep::Not
    }
}

/// Returns how many bytes a key takes beside its own size.
pub(crate) fn heap_bytes_of(key: &Key) -> usize {
    // Up to so many bytes are in the key itself.
    let inline = size_of::<Key>() - size_of::<usize>();
    Some(key.as_bytes().len()).filter(|length| *length > inline).unwrap_or(0)
}

struct Values<V> {
    by_hash: HashTable<u32>,
    slots: Slab<Slot<V>>,
    /// When values may be over. An entry is moved when it comes due, not when its value is used; it is
    /// stale if its number is no longer that of the slot.
    due: BinaryHeap<Reverse<(u64, u32, u32)>>,
    next_number: u32,
    bytes: usize,
}

struct Slot<V> {
    key: Box<[u8]>,
    number: u32,
    over_us: u64,
    /// As they are counted in the sum.
    bytes: usize,
    value: V,
}

/// What becomes of a value that was looked at.
pub(crate) enum Keep {
    /// It is over at this instant, in microseconds of the map's own clock.
    Until(u64),
    /// It is over at this instant, or when it was to be before if that is later.
    AtLeastUntil(u64),
    /// It is dropped, or was never made.
    Not,
}

impl<V: Kept> Expiring<V> {
    /// Creates a map for so many values, without a budget of bytes.
    pub(crate) fn new(capacity: usize) -> Self {
        let values = Values {
            by_hash: HashTable::new(),
            slots: Slab::new(),
            due: BinaryHeap::new(),
            next_number: 0,
            bytes: 0,
        };
        Self {
            values: Mutex::new(values),
            hasher: RandomState::new(),
            epoch: Instant::now(),
            capacity: capacity.min(u32::MAX as usize),
            budget: AtomicUsize::new(usize::MAX),
        }
    }

    /// Sets how many bytes the values may take.
    pub(crate) fn set_budget(&self, bytes: usize) {
        self.budget.store(bytes, Ordering::Relaxed);
    }

    /// Returns the error of a change for which there are not enough bytes.
    pub(crate) fn too_many_bytes(&self) -> StoreError {
        StoreError::TooManyBytes { budget: self.budget.load(Ordering::Relaxed) }
    }

    /// Returns how many bytes the values take, some of which may be over.
    pub(crate) fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// Shows `change` the value of a key, a new one if there is none, and the present instant in
    /// microseconds, and keeps the value as `change` says.
    ///
    /// # Errors
    ///
    /// [`StoreError::Full`] if a new value is to be kept and there is no room. What `change` did is
    /// forgotten then.
    pub(crate) fn update<R>(
        &self,
        key: &[u8],
        change: impl FnOnce(&mut V, u64) -> (R, Keep),
    ) -> Result<R, StoreError> {
        self.update_within(key, |value, now_us, _| change(value, now_us))
    }

    /// As [`Expiring::update`], and shows `change` by how many bytes the values may grow.
    pub(crate) fn update_within<R>(
        &self,
        key: &[u8],
        change: impl FnOnce(&mut V, u64, usize) -> (R, Keep),
    ) -> Result<R, StoreError> {
        let hash = self.hasher.hash_one(key);
        let mut values = self.lock();
        // Read under the lock, so that the timestamps of one value never run backwards.
        let now_us = self.now_us();
        values.drop_over(now_us, DROPPED_PER_UPDATE, &self.hasher);
        if self.room(&values) < LITTLE_ROOM {
            values.drop_over(now_us, usize::MAX, &self.hasher);
        }
        if let Some(slot) = values.find(hash, key) {
            values.expire(slot, now_us);
            let room = self.room(&values);
            let known = &mut values.slots[slot as usize];
            let (result, keep) = change(&mut known.value, now_us, room);
            match keep {
                Keep::Until(over_us) => known.over_us = over_us,
                Keep::AtLeastUntil(over_us) => known.over_us = known.over_us.max(over_us),
                Keep::Not => values.remove(hash, slot),
            }
            values.count_bytes(slot);
            return Ok(result);
        }
        let mut value = V::default();
        let room = self.room(&values).saturating_sub(Slot::<V>::fixed_bytes(key));
        let (result, keep) = change(&mut value, now_us, room);
        let over_us = match keep {
            Keep::Until(over_us) | Keep::AtLeastUntil(over_us) if over_us > now_us => over_us,
            _ => return Ok(result),
        };
        if values.slots.len() >= self.capacity {
            values.drop_over(now_us, usize::MAX, &self.hasher);
        }
        if values.slots.len() >= self.capacity {
            return Err(StoreError::Full { capacity: self.capacity });
        }
        values.insert(hash, key, value, over_us, &self.hasher);
        Ok(result)
    }

    /// Returns what `look` makes of the value of a key and the present instant, and changes nothing.
    pub(crate) fn look<R>(&self, key: &[u8], look: impl FnOnce(&V, u64) -> R) -> Option<R> {
        let values = self.lock();
        let now_us = self.now_us();
        let slot = values.find(self.hasher.hash_one(key), key)?;
        let known = Some(&values.slots[slot as usize]).filter(|known| known.over_us > now_us)?;
        Some(look(&known.value, now_us))
    }

    /// Returns what `look` makes of up to `count` values that are not over, from a place on, and the
    /// place to go on from, if there may be more.
    ///
    /// A value that is there all the while is met once: it keeps its place.
    pub(crate) fn page<R>(
        &self,
        place: usize,
        count: usize,
        mut look: impl FnMut(&[u8], &V, u64) -> Option<R>,
    ) -> (Vec<R>, Option<usize>) {
        let values = self.lock();
        let now_us = self.now_us();
        let (end, mut found) = (values.slots.capacity(), Vec::new());
        for place in place..end.min(place.saturating_add(MOST_A_PAGE)) {
            if found.len() >= count.max(1) {
                return (found, Some(place));
            }
            let known = values.slots.get(place).filter(|known| known.over_us > now_us);
            found.extend(known.and_then(|known| look(&known.key, &known.value, now_us)));
        }
        let next = place.saturating_add(MOST_A_PAGE);
        (found, (next < end).then_some(next))
    }

    /// Returns how many values there are, some of which may be over.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.lock().slots.len()
    }

    fn lock(&self) -> MutexGuard<'_, Values<V>> {
        // No code under the lock leaves the maps half changed, so a poisoned one is still whole.
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn room(&self, values: &Values<V>) -> usize {
        self.budget.load(Ordering::Relaxed).saturating_sub(values.bytes)
    }

    fn now_us(&self) -> u64 {
        micros(self.epoch.elapsed())
    }
}

impl<V> Slot<V> {
    /// Returns how many bytes a value takes beside what it has on the heap: its slot, its key, and
    /// its entries in the table and among the due ones.
    fn fixed_bytes(key: &[u8]) -> usize {
        size_of::<Self>() + key.len() + 2 * size_of::<u32>() + size_of::<(u64, u32, u32)>()
    }
}

impl<V: Kept> Values<V> {
    fn find(&self, hash: u64, key: &[u8]) -> Option<u32> {
        self.by_hash.find(hash, |slot| *self.slots[*slot as usize].key == *key).copied()
    }

    fn insert(&mut self, hash: u64, key: &[u8], value: V, over_us: u64, hasher: &RandomState) {
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        let slot = self.slots.insert(Slot { key: key.into(), number, over_us, bytes: 0, value });
        // The capacity fits.
        let slot = slot as u32;
        let Self { by_hash, slots, .. } = self;
        by_hash.insert_unique(hash, slot, |slot| hasher.hash_one(&*slots[*slot as usize].key));
        self.due.push(Reverse((over_us, slot, number)));
        self.count_bytes(slot);
    }

    fn remove(&mut self, hash: u64, slot: u32) {
        if let Ok(entry) = self.by_hash.find_entry(hash, |other| *other == slot) {
            entry.remove();
        }
        self.bytes -= self.slots.remove(slot as usize).bytes;
        // Its entry among the due ones is stale now. These must not pile up.
        if self.due.len() > 2 * self.slots.len() + 64 {
            let slots = &self.slots;
            self.due.retain(|Reverse((_, slot, number))| {
                slots.get(*slot as usize).is_some_and(|known| known.number == *number)
            });
        }
    }

    /// Counts the bytes of a value that may have changed.
    fn count_bytes(&mut self, slot: u32) {
        if let Some(known) = self.slots.get_mut(slot as usize) {
            let bytes = Slot::<V>::fixed_bytes(&known.key) + known.value.heap_bytes();
            self.bytes = self.bytes - known.bytes + bytes;
            known.bytes = bytes;
        }
    }

    /// Drops what is over of a value; says whether anything is left.
    fn expire(&mut self, slot: u32, now_us: u64) -> bool {
        let known = &mut self.slots[slot as usize];
        if known.over_us > now_us {
            return true;
        }
        match known.value.expire(now_us) {
            Keep::Until(over_us) | Keep::AtLeastUntil(over_us) => known.over_us = over_us,
            Keep::Not => known.value = V::default(),
        }
        let is_left = known.over_us > now_us;
        self.count_bytes(slot);
        is_left
    }

    /// Drops up to `most` values that are over.
    fn drop_over(&mut self, now_us: u64, most: usize, hasher: &RandomState) {
        let mut dropped = 0;
        while dropped < most
            && let Some(Reverse((due_us, slot, number))) = self.due.peek().copied()
            && due_us <= now_us
        {
            self.due.pop();
            if self.slots.get(slot as usize).is_none_or(|known| known.number != number) {
                continue;
            }
            if self.expire(slot, now_us) {
                self.due.push(Reverse((self.slots[slot as usize].over_us, slot, number)));
            } else {
                let hash = hasher.hash_one(&*self.slots[slot as usize].key);
                self.remove(hash, slot);
                dropped += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    impl Kept for u32 {}

    fn keep_for(us: u64) -> impl FnOnce(&mut u32, u64) -> (u32, Keep) {
        move |value, now_us| {
            *value += 1;
            (*value, Keep::Until(now_us + us))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_value_that_is_over_is_as_good_as_absent() {
        let map = Expiring::new(10);
        assert_eq!(map.update(b"a", keep_for(100)).unwrap(), 1);
        tokio::time::advance(Duration::from_micros(99)).await;
        assert_eq!(map.update(b"a", keep_for(100)).unwrap(), 2);
        tokio::time::advance(Duration::from_micros(100)).await;
        assert_eq!(map.update(b"a", keep_for(100)).unwrap(), 1);
        assert_eq!(map.update(b"a", |_, _| ((), Keep::Not)).map(|()| map.len()).unwrap(), 0);
        map.update(b"a", |_, _| ((), Keep::AtLeastUntil(0))).unwrap();
        assert_eq!(map.len(), 0, "what is over already is not made");
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_cap_only_what_is_over_makes_room() {
        let map = Expiring::new(2);
        map.update(b"a", keep_for(100)).unwrap();
        map.update(b"b", keep_for(200)).unwrap();
        assert!(matches!(map.update(b"c", keep_for(1)), Err(StoreError::Full { capacity: 2 })));
        assert_eq!(map.update(b"b", keep_for(200)).unwrap(), 2, "a known key needs no room");
        tokio::time::advance(Duration::from_micros(100)).await;
        map.update(b"c", keep_for(1)).unwrap();
        assert_eq!(map.page(0, 9, |key, _, _| Some(key.to_vec())).0.len(), 2);
        assert_eq!(map.update(b"b", keep_for(1)).unwrap(), 3, "what is live was not dropped");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_piles_up() {
        let map = Expiring::new(1_000);
        for number in 0..10_000_u32 {
            map.update(&number.to_be_bytes(), keep_for(10)).unwrap();
            tokio::time::advance(Duration::from_micros(1)).await;
        }
        assert!(map.len() < 50, "{} values are left", map.len());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_dropped_early_does_not_pile_up() {
        let map = Expiring::new(1_000);
        for _ in 0..10_000 {
            map.update(b"a", keep_for(1_000_000)).unwrap();
            map.update(b"a", |_, _| ((), Keep::Not)).unwrap();
        }
        let due = map.lock().due.len();
        assert!(due < 200, "{due} entries are left");
    }

    #[tokio::test(start_paused = true)]
    async fn pages_meet_what_stays_once() {
        let map = Expiring::new(1_000);
        let key = |number: u32| number.to_be_bytes();
        for number in 0..100 {
            map.update(&key(number), keep_for(1_000)).unwrap();
        }
        let (mut place, mut met) = (Some(0), Vec::new());
        while let Some(from) = place {
            let (found, next) = map.page(from, 7, |key, _, _| Some(key.to_vec()));
            met.extend(found);
            place = next;
            // Meanwhile some go and others come.
            let gone = met.len() as u32;
            map.update(&key(gone), |_, _| ((), Keep::Not)).unwrap();
            map.update(&key(1_000 + gone), keep_for(1_000)).unwrap();
        }
        for number in (0..100).filter(|number| number % 7 != 0) {
            let times = met.iter().filter(|it| **it == key(number)).count();
            assert!(times <= 1, "{number} was met {times} times");
        }
        let stayed = (0..100).filter(|number| met.contains(&key(*number).to_vec())).count();
        assert!(stayed >= 85, "{stayed} of those that stay were met");
    }

    /// A value that takes as many bytes as it says.
    #[derive(Default)]
    struct Heavy(usize);

    impl Kept for Heavy {
        fn heap_bytes(&self) -> usize {
            self.0
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_sum_of_bytes_follows_the_values() {
        let map = Expiring::<Heavy>::new(10);
        map.set_budget(10_000);
        let put = |key: &[u8], bytes, us| {
            let change = |value: &mut Heavy, now_us, room| {
                value.0 = bytes;
                (room, Keep::Until(now_us + us))
            };
            map.update_within(key, change).unwrap()
        };
        let fixed = Slot::<Heavy>::fixed_bytes(b"a");
        assert_eq!(put(b"a", 1_000, 10), 10_000 - fixed);
        assert_eq!(put(b"a", 500, 10), 9_000 - fixed, "its own bytes count");
        assert_eq!(put(b"b", 2_000, 20), 9_500 - 2 * fixed);
        assert_eq!(map.bytes(), 2_500 + 2 * fixed);
        tokio::time::advance(Duration::from_micros(10)).await;
        assert_eq!(put(b"b", 7, 10), 8_000 - fixed, "what is over makes room");
        map.update(b"b", |_, _| ((), Keep::Not)).unwrap();
        assert_eq!(map.bytes(), 0);
    }
}
