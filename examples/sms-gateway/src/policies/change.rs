//! [`Change`] and [`ChangeError`]: what may be changed, and why nothing was.

use tower_sliding_window::StoreError;

use super::MOST_MEMBERS;
use crate::entry::Entry;
use crate::shared::Changes;
use crate::sum::GlobalTooLow;
use crate::thresholds::{Thresholds, UnknownTarget};

/// Forgets what was removed once there are `most` changes, so that their number is bounded. What the
/// flags have must stay removed.
pub(super) fn forget_removed(changes: &mut Changes, flags: &Thresholds, most: usize) {
    if changes.policies.len() < most {
        return;
    }
    let removed = Entry::Removed.to_string();
    changes.policies.retain(|target, entry| {
        *entry != removed || target.parse().is_ok_and(|target| flags.get(&target).is_ok())
    });
}

/// What a change may be of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Change {
    /// Of levels and of members that there are.
    OfMembers,
    /// Of new members too.
    Put,
}

/// Why nothing was changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeError {
    #[error(transparent)]
    Unknown(#[from] UnknownTarget),
    #[error("there are {MOST_MEMBERS} already")]
    TooMany,
    #[error(transparent)]
    GlobalTooLow(#[from] GlobalTooLow),
    #[error("the change can't be written to Redis: {0}")]
    Redis(#[from] StoreError),
    #[error("other servers were faster, again and again")]
    Contended,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_removed_is_forgotten_in_the_end() {
        let policy = || "1/1s".parse().unwrap();
        let flags = Thresholds {
            levels: [policy(), policy(), policy()],
            lists: [[("bank".parse().unwrap(), None)].into(), Default::default()],
        };
        let entries = [
            ("institution/bank", "removed"),
            ("institution/gone", "removed"),
            ("channel/bank", "removed"),
            ("channel/news", "level"),
            ("receiver", "5/1s"),
        ];
        let policies = entries.map(|(target, entry)| (target.to_owned(), entry.to_owned())).into();
        let mut changes = Changes { version: 5, policies };
        forget_removed(&mut changes, &flags, 6);
        assert_eq!(changes.policies.len(), 5, "there is room for more");
        forget_removed(&mut changes, &flags, 5);
        let left: Vec<&str> = changes.policies.keys().map(String::as_str).collect();
        assert_eq!(left, ["channel/news", "institution/bank", "receiver"]);
    }
}
