//! Texts that stay in memory until the process ends.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

/// How many bytes of text are interned at most.
const MOST_BYTES: usize = 1 << 20;

static INTERNED: Mutex<Interned> = Mutex::new(Interned::new(MOST_BYTES));

/// Returns a text whose clones count no references, as long as there is room for such texts.
///
/// A denial clones three texts, and counting their references took up to a fifth of the time of the layer.
/// The texts follow from the policies, so that there are few, and the same ones come back when a policy
/// does.
pub(super) fn intern(text: String) -> Bytes {
    INTERNED.lock().unwrap_or_else(PoisonError::into_inner).intern(text)
}

struct Interned {
    texts: BTreeSet<&'static str>,
    free_bytes: usize,
}

impl Interned {
    const fn new(free_bytes: usize) -> Self {
        Self { texts: BTreeSet::new(), free_bytes }
    }

    fn intern(&mut self, text: String) -> Bytes {
        if let Some(interned) = self.texts.get(&*text) {
            return Bytes::from_static(interned.as_bytes());
        }
        let Some(free_bytes) = self.free_bytes.checked_sub(text.len()) else {
            return Bytes::from(text);
        };
        self.free_bytes = free_bytes;
        let interned: &'static str = Box::leak(text.into_boxed_str());
        self.texts.insert(interned);
        Bytes::from_static(interned.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_are_interned_once() {
        let mut interned = Interned::new(10);
        let one = interned.intern("five5".to_owned());
        for _ in 0..10 {
            let other = interned.intern("five5".to_owned());
            assert_eq!((other.as_ptr(), &other), (one.as_ptr(), &one));
        }
        assert_eq!(interned.free_bytes, 5);
    }

    #[test]
    fn interned_bytes_are_bounded() {
        let mut interned = Interned::new(10);
        for text in ["five5", "sixsix", "four"] {
            assert_eq!(interned.intern(text.to_owned()), text);
        }
        assert_eq!(Vec::from_iter(&interned.texts), [&"five5", &"four"]);
        assert_eq!(interned.free_bytes, 1);
    }
}
