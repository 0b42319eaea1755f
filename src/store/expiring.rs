//! [`Expiring`]: values in this process, by key, until they are over.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::{Mutex, PoisonError};

use ahash::RandomState;
use tokio::time::Instant;

use crate::error::StoreError;
use crate::window::micros;

/// Values by key, each with an instant at which it is over and as good as absent.
///
/// The number of values is capped. At the cap those that are over are dropped first; one that is
/// not over never is: a new key then gets [`StoreError::Full`].
pub(crate) struct Expiring<V> {
    values: Mutex<Values<V>>,
    epoch: Instant,
    capacity: usize,
}

struct Values<V> {
    by_key: HashMap<Box<[u8]>, Value<V>, RandomState>,
    /// When values may be over. An entry is moved when it comes due, not when its value is used.
    due: BinaryHeap<Reverse<(u64, Box<[u8]>)>>,
}

struct Value<V> {
    value: V,
    over_us: u64,
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

impl<V: Default> Expiring<V> {
    pub(crate) fn new(capacity: usize) -> Self {
        let values = Values { by_key: HashMap::default(), due: BinaryHeap::new() };
        Self { values: Mutex::new(values), epoch: Instant::now(), capacity }
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
        // No code under the lock leaves the maps half changed, so a poisoned one is still whole.
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock, so that the stamps of one value never run backwards.
        let now_us = self.now_us();
        values.drop_over(now_us, 2);
        if let Some(known) = values.by_key.get_mut(key) {
            if known.over_us <= now_us {
                known.value = V::default();
            }
            let (result, keep) = change(&mut known.value, now_us);
            match keep {
                Keep::Until(over_us) => known.over_us = over_us,
                Keep::AtLeastUntil(over_us) => known.over_us = known.over_us.max(over_us),
                // Its entry among the due ones stays behind, and is passed over.
                Keep::Not => drop(values.by_key.remove(key)),
            }
            return Ok(result);
        }
        let mut value = V::default();
        let (result, keep) = change(&mut value, now_us);
        let (Keep::Until(over_us) | Keep::AtLeastUntil(over_us)) = keep else { return Ok(result) };
        if values.by_key.len() >= self.capacity {
            values.drop_over(now_us, usize::MAX);
        }
        if values.by_key.len() >= self.capacity {
            return Err(StoreError::Full { capacity: self.capacity });
        }
        values.by_key.insert(key.into(), Value { value, over_us });
        values.due.push(Reverse((over_us, key.into())));
        Ok(result)
    }

    /// Returns what `look` makes of the value of a key and the present instant, and changes nothing.
    pub(crate) fn look<R>(&self, key: &[u8], look: impl FnOnce(&V, u64) -> R) -> Option<R> {
        let values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        let now_us = self.now_us();
        let known = values.by_key.get(key).filter(|known| known.over_us > now_us)?;
        Some(look(&known.value, now_us))
    }

    /// Returns the keys and what `look` makes of their values, of those that are not over.
    pub(crate) fn list<R>(&self, mut look: impl FnMut(&[u8], &V, u64) -> Option<R>) -> Vec<R> {
        let values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        let now_us = self.now_us();
        let live = values.by_key.iter().filter(|(_, known)| known.over_us > now_us);
        live.filter_map(|(key, known)| look(key, &known.value, now_us)).collect()
    }

    /// Returns how many values there are, some of which may be over.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.values.lock().unwrap_or_else(PoisonError::into_inner).by_key.len()
    }

    fn now_us(&self) -> u64 {
        micros(self.epoch.elapsed())
    }
}

impl<V> Values<V> {
    /// Drops up to `most` values that are over.
    fn drop_over(&mut self, now_us: u64, most: usize) {
        let mut dropped = 0;
        while dropped < most && self.due.peek().is_some_and(|Reverse((due, _))| *due <= now_us) {
            let Some(Reverse((due_us, key))) = self.due.pop() else { break };
            match self.by_key.get(&key) {
                Some(known) if known.over_us > now_us => {
                    self.due.push(Reverse((known.over_us.max(due_us), key)));
                }
                Some(_) => {
                    self.by_key.remove(&key);
                    dropped += 1;
                }
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

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
        assert_eq!(map.list(|key, _, _| Some(key.to_vec())).len(), 2);
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
}
