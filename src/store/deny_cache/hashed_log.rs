//! [`HashedLog`]: a log with its hash. A check looks for its log up to three times and hashes it once.

use std::hash::{BuildHasherDefault, Hash, Hasher};

use quick_cache::Equivalent;
use smallvec::SmallVec;

use crate::window::LogId;

pub(super) type Hashes = SmallVec<[u64; 2]>;

/// A log, owned or borrowed, with its hash.
pub(super) struct HashedLog<L> {
    pub(super) hash: u64,
    pub(super) log: L,
}

impl<L> Hash for HashedLog<L> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl PartialEq for HashedLog<LogId> {
    fn eq(&self, other: &Self) -> bool {
        self.log == other.log
    }
}

impl Eq for HashedLog<LogId> {}

impl Equivalent<HashedLog<LogId>> for HashedLog<&LogId> {
    fn equivalent(&self, key: &HashedLog<LogId>) -> bool {
        *self.log == key.log
    }
}

/// Returns the hash of a [`HashedLog`].
pub(super) type KnownHash = BuildHasherDefault<KnownHasher>;

#[derive(Default)]
pub(super) struct KnownHasher(u64);

impl Hasher for KnownHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    /// Not called: a [`HashedLog`] writes one number.
    fn write(&mut self, _bytes: &[u8]) {}
}
