//! [`Totals`]: what all shards hold together. [`Room`]: what is left of the budget for one value.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::StoreError;

/// The values and bytes of all shards, and how many there may be.
///
/// Each is raised before the map grows, in one step with the comparison, and lowered after it has shrunk.
pub(super) struct Totals {
    held: AtomicUsize,
    bytes: AtomicUsize,
    capacity: usize,
    budget: AtomicUsize,
}

/// How many values and bytes of one shard the totals include.
pub(super) struct Counted {
    pub(super) held: usize,
    pub(super) bytes: usize,
}

/// What an update has found no room for.
#[derive(Clone, Copy)]
pub(super) enum Lack {
    Place,
    Bytes(usize),
}

impl Totals {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            held: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            capacity,
            budget: AtomicUsize::new(usize::MAX),
        }
    }

    pub(super) fn set_budget(&self, bytes: usize) {
        self.budget.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    pub(super) fn too_many_bytes(&self) -> StoreError {
        StoreError::TooManyBytes { budget: self.budget.load(Ordering::Relaxed) }
    }

    pub(super) fn reserve_place(&self, counted: &mut Counted) -> Result<(), StoreError> {
        let grown = |held: usize| Some(held + 1).filter(|sum| *sum <= self.capacity);
        match self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown) {
            Ok(_) => {
                counted.held += 1;
                Ok(())
            }
            Err(_) => Err(StoreError::Full { capacity: self.capacity }),
        }
    }

    fn reserve_bytes(&self, bytes: usize, counted: &mut Counted) -> bool {
        let budget = self.budget.load(Ordering::Relaxed);
        let grown = |held: usize| held.checked_add(bytes).filter(|sum| *sum <= budget);
        let reserved = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).is_ok();
        counted.bytes += if reserved { bytes } else { 0 };
        reserved
    }

    /// Returns whether there is room now for what an update has found none for.
    pub(super) fn has_room(&self, lack: Lack) -> bool {
        match lack {
            Lack::Place => self.held.load(Ordering::Relaxed) < self.capacity,
            Lack::Bytes(bytes) => {
                let sum = self.bytes().checked_add(bytes);
                sum.is_some_and(|sum| sum <= self.budget.load(Ordering::Relaxed))
            }
        }
    }

    /// Makes the totals include what a shard holds, instead of what was counted and reserved for it.
    pub(super) fn settle(&self, counted: &Counted, held: usize, bytes: usize) {
        // Nothing is written for an update that changes nothing: most checks find no ban record. An
        // addition wraps, so it can lower a total too.
        if held != counted.held {
            self.held.fetch_add(held.wrapping_sub(counted.held), Ordering::Relaxed);
        }
        if bytes != counted.bytes {
            self.bytes.fetch_add(bytes.wrapping_sub(counted.bytes), Ordering::Relaxed);
        }
    }
}

/// The room for a value while it is changed: what is left of the budget.
pub(crate) struct Room<'a> {
    totals: &'a Totals,
    counted: &'a mut Counted,
    /// What a new value takes in addition.
    fixed_bytes: usize,
    lack: Option<Lack>,
}

impl<'a> Room<'a> {
    pub(super) fn new(totals: &'a Totals, counted: &'a mut Counted, fixed_bytes: usize) -> Self {
        Self { totals, counted, fixed_bytes, lack: None }
    }

    /// Reserves room for a value that may grow by so many bytes. Returns `false` if the budget lacks
    /// them. The value must not grow then.
    ///
    /// What the value does not use is free again after the update. Nothing is reserved for 0 bytes, so a
    /// change that adds nothing needs no room.
    pub(crate) fn reserve(&mut self, bytes: usize) -> bool {
        if bytes == 0 {
            return true;
        }
        let wanted = bytes.saturating_add(self.fixed_bytes);
        let reserved = self.totals.reserve_bytes(wanted, self.counted);
        if reserved {
            self.fixed_bytes = 0;
        } else {
            self.lack = Some(Lack::Bytes(wanted));
        }
        reserved
    }

    pub(super) fn lack(&self) -> Option<Lack> {
        self.lack
    }
}
