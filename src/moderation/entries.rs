//! [`Entries`]: an in-process log that knows its size in bytes.

use std::collections::VecDeque;
use std::time::Duration;

use uuid::Uuid;

use super::fingerprint::Fingerprint;
use crate::key::Key;
use crate::store::heap_bytes_of;
use crate::time::micros;

/// Entries with their timestamps, oldest first.
pub(super) struct Entries<T> {
    entries: VecDeque<(u64, T)>,
    /// How many bytes the entries take on the heap.
    heap_bytes: usize,
}

/// A value that a log can hold.
pub(super) trait Entry {
    /// Returns how many bytes the entry takes on the heap.
    fn heap_bytes(&self) -> usize {
        0
    }
}

impl Entry for Uuid {}

impl Entry for Key {
    fn heap_bytes(&self) -> usize {
        heap_bytes_of(self)
    }
}

impl Entry for (Uuid, Fingerprint) {
    fn heap_bytes(&self) -> usize {
        // The bytes, and the two reference counts of the `Arc`.
        self.1.as_bytes().len() + 2 * size_of::<usize>()
    }
}

impl<T> Default for Entries<T> {
    fn default() -> Self {
        Self { entries: VecDeque::new(), heap_bytes: 0 }
    }
}

impl<T: Entry> Entries<T> {
    /// Adds an entry, if there is one, and drops the oldest so that at most `max_entries` are left.
    pub(super) fn add(&mut self, now_us: u64, entry: Option<T>, max_entries: u32) {
        let Some(entry) = entry else { return };
        while self.entries.len() >= (max_entries as usize).max(1) {
            self.drop_oldest();
        }
        if self.entries.len() == self.entries.capacity() {
            self.entries.reserve_exact(self.next_growth());
        }
        self.heap_bytes += entry.heap_bytes();
        self.entries.push_back((now_us, entry));
    }

    /// Drops the entries that are too old for the retention. A retention of no entries drops nothing.
    pub(super) fn expire(&mut self, now_us: u64, (longest_window, max_entries): (Duration, u32)) {
        let is_old = |at_us: u64| now_us - at_us >= micros(longest_window);
        while max_entries > 0 && self.entries.front().is_some_and(|(at_us, _)| is_old(*at_us)) {
            self.drop_oldest();
        }
    }

    /// Drops the entries for which the predicate is true.
    pub(super) fn remove(&mut self, predicate: impl Fn(&T) -> bool) {
        let Self { entries, heap_bytes } = self;
        entries.retain(|(_, entry)| {
            let is_dropped = predicate(entry);
            *heap_bytes -= if is_dropped { entry.heap_bytes() } else { 0 };
            !is_dropped
        });
    }

    /// Returns how many entries are in the window and satisfy the predicate.
    pub(super) fn count(&self, now_us: u64, window_us: u64, counts: impl Fn(&T) -> bool) -> usize {
        let inside = self.entries.iter().rev().take_while(|(at_us, _)| now_us - at_us < window_us);
        inside.filter(|(_, entry)| counts(entry)).count()
    }

    /// Drops the older half, and replaces each of the others.
    pub(super) fn shrink(&mut self, smaller: impl Fn(&T) -> T) {
        self.entries.drain(..self.entries.len() / 2);
        self.entries.iter_mut().for_each(|(_, entry)| *entry = smaller(entry));
        self.entries.shrink_to_fit();
        self.heap_bytes = self.entries.iter().map(|(_, entry)| entry.heap_bytes()).sum();
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn any(&self, predicate: impl Fn(&T) -> bool) -> bool {
        self.entries.iter().any(|(_, entry)| predicate(entry))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(u64, T)> {
        self.entries.iter()
    }

    /// Returns how many bytes the log takes on the heap.
    pub(super) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<(u64, T)>() + self.heap_bytes
    }

    /// Returns by how many bytes the log may grow if an entry is added.
    pub(super) fn growth(&self, entry: Option<&T>, max_entries: u32) -> usize {
        let Some(entry) = entry else { return 0 };
        if self.entries.len() >= max_entries as usize {
            let oldest = self.entries.front().map_or(0, |(_, oldest)| oldest.heap_bytes());
            return entry.heap_bytes().saturating_sub(oldest);
        }
        let is_full = self.entries.len() == self.entries.capacity();
        let added = if is_full { self.next_growth() } else { 0 };
        added * size_of::<(u64, T)>() + entry.heap_bytes()
    }

    /// Returns by how many entries a full log grows: it doubles. It starts with a single entry, because
    /// most senders have only one.
    fn next_growth(&self) -> usize {
        self.entries.len().max(1)
    }

    fn drop_oldest(&mut self) {
        if let Some((_, oldest)) = self.entries.pop_front() {
            self.heap_bytes -= oldest.heap_bytes();
        }
    }
}
