//! [`Entries`]: a log in the memory of this process, which knows how many bytes it takes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::key::Key;
use crate::store::heap_bytes_of;
use crate::time::micros;

/// Entries with their timestamps, oldest first.
pub(super) struct Entries<T> {
    entries: VecDeque<(u64, T)>,
    /// How many bytes the entries take on the heap.
    heap_bytes: usize,
}

/// What can be an entry.
pub(super) trait Entry {
    /// Returns how many bytes the entry takes beside its own size.
    fn heap_bytes(&self) -> usize;
}

impl Entry for Uuid {
    fn heap_bytes(&self) -> usize {
        0
    }
}

impl Entry for Key {
    fn heap_bytes(&self) -> usize {
        heap_bytes_of(self)
    }
}

impl Entry for (Uuid, Arc<str>) {
    fn heap_bytes(&self) -> usize {
        // The text, and the two counts before it.
        self.1.len() + 2 * size_of::<usize>()
    }
}

impl<T> Default for Entries<T> {
    fn default() -> Self {
        Self { entries: VecDeque::new(), heap_bytes: 0 }
    }
}

impl<T: Entry> Entries<T> {
    /// Adds an entry, and drops the oldest above so many.
    pub(super) fn add(&mut self, now_us: u64, entry: T, kept: u32) {
        while self.entries.len() >= (kept as usize).max(1) {
            self.drop_oldest();
        }
        if self.entries.len() == self.entries.capacity() {
            self.entries.reserve_exact(self.more_places());
        }
        self.heap_bytes += entry.heap_bytes();
        self.entries.push_back((now_us, entry));
    }

    /// Drops what is as old as the horizon, if anybody says how far that is.
    pub(super) fn forget(&mut self, now_us: u64, (longest_window, kept): (Duration, u32)) {
        let is_old = |at_us: u64| now_us - at_us >= micros(longest_window);
        while kept > 0 && self.entries.front().is_some_and(|(at_us, _)| is_old(*at_us)) {
            self.drop_oldest();
        }
    }

    /// Drops the entries that are meant.
    pub(super) fn remove(&mut self, is_meant: impl Fn(&T) -> bool) {
        let Self { entries, heap_bytes } = self;
        entries.retain(|(_, entry)| {
            let goes = is_meant(entry);
            *heap_bytes -= if goes { entry.heap_bytes() } else { 0 };
            !goes
        });
    }

    /// Returns how many entries are in the window and count.
    pub(super) fn within(&self, now_us: u64, window_us: u64, counts: impl Fn(&T) -> bool) -> usize {
        let inside = self.entries.iter().rev().take_while(|(at_us, _)| now_us - at_us < window_us);
        inside.filter(|(_, entry)| counts(entry)).count()
    }

    pub(super) fn any(&self, is_meant: impl Fn(&T) -> bool) -> bool {
        self.entries.iter().any(|(_, entry)| is_meant(entry))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(u64, T)> {
        self.entries.iter()
    }

    /// Returns how many bytes the log takes beside its own size.
    pub(super) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<(u64, T)>() + self.heap_bytes
    }

    /// Returns by how many bytes the log grows at the most if an entry is added.
    pub(super) fn growth(&self, entry: &T, kept: u32) -> usize {
        if self.entries.len() >= kept as usize {
            let oldest = self.entries.front().map_or(0, |(_, oldest)| oldest.heap_bytes());
            return entry.heap_bytes().saturating_sub(oldest);
        }
        let is_full = self.entries.len() == self.entries.capacity();
        let places = if is_full { self.more_places() } else { 0 };
        places * size_of::<(u64, T)>() + entry.heap_bytes()
    }

    /// Returns how many places are added when there are too few: as many as there are, but not more
    /// than one for the first entry, which is the only one of most senders.
    fn more_places(&self) -> usize {
        self.entries.len().max(1)
    }

    fn drop_oldest(&mut self) {
        if let Some((_, oldest)) = self.entries.pop_front() {
            self.heap_bytes -= oldest.heap_bytes();
        }
    }
}
