//! [`LogName`]: the name under which stores keep the logs of a policy.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

/// A name with its hash, so that a check does not hash the whole name again for each table.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct LogName {
    hash: u64,
    text: Arc<str>,
}

impl LogName {
    pub(super) fn known_hash(&self) -> u64 {
        self.hash
    }
}

impl<T: Into<Arc<str>>> From<T> for LogName {
    fn from(text: T) -> Self {
        let (text, mut hasher) = (text.into(), DefaultHasher::new());
        text.hash(&mut hasher);
        Self { hash: hasher.finish(), text }
    }
}

impl Deref for LogName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl Hash for LogName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}
