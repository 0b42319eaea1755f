//! [`Changes`]: what operators have changed, and how two sets of changes become one.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// What has been changed since the servers were first started.
///
/// Two sets of changes are joined target by target, and of two changes of one target the later holds.
/// So a server that knows of a change can give it back to a Redis that has lost it, whatever the other
/// servers have changed meanwhile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The version of the last change or join.
    pub version: u64,
    /// The version of the last join: Redis had lost changes, and a server gave them back.
    pub joined: u64,
    /// Of the removals up to this version not all are kept.
    pub forgotten: u64,
    /// By target, also those that this server does not understand, for another server may.
    pub entries: BTreeMap<String, Versioned>,
}

/// The text of a change with the version that made it. The greater of two is the later one. Of
/// two of one version it is that of the greater text, so that all servers choose the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Versioned {
    /// The version that made the change.
    pub version: u64,
    /// What was changed, which no text that ends in ` @NUMBER` may be.
    pub text: String,
}

impl Versioned {
    /// Reads `ENTRY @VERSION`. An entry without a version has that of all the changes.
    pub fn read(text: &str, version_of_all: u64) -> Self {
        let parts = text.rsplit_once(" @");
        let read = parts.and_then(|(text, version)| Some((text, version.parse().ok()?)));
        let (text, version) = read.unwrap_or((text, version_of_all));
        Self { version, text: text.to_owned() }
    }
}

impl fmt::Display for Versioned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} @{}", self.text, self.version)
    }
}

impl Changes {
    /// Returns the version of the next change: the time in milliseconds, but more than any version
    /// before. So it is later than a change that this server does not know of, as far as the clocks
    /// of the servers agree.
    pub fn next_version(&self) -> u64 {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let versions = self.entries.values().map(|entry| entry.version).chain([self.version]);
        let next = versions.max().unwrap_or(0).saturating_add(1);
        next.max(u64::try_from(time.as_millis()).unwrap_or(0))
    }

    /// Adds one change.
    pub fn set(&mut self, target: String, text: String) {
        self.version = self.next_version();
        self.entries.insert(target, Versioned { version: self.version, text });
    }

    /// Joins these changes and others. The version is the higher one.
    pub fn join(&self, others: &Self) -> Self {
        let mut entries = BTreeMap::<String, Versioned>::new();
        for (some, rest) in [(self, others), (others, self)] {
            for (target, entry) in &some.entries {
                match rest.entries.get(target) {
                    Some(other) => entries.insert(target.clone(), entry.max(other).clone()),
                    // It was removed later, and that is forgotten.
                    None if entry.version <= rest.forgotten => None,
                    None => entries.insert(target.clone(), entry.clone()),
                };
            }
        }
        Self {
            version: self.version.max(others.version),
            joined: self.joined.max(others.joined),
            forgotten: self.forgotten.max(others.forgotten),
            entries,
        }
    }

    /// Returns the targets whose entries `later` does not have, each with its old and its new text.
    pub fn replaced_by<'a>(
        &'a self,
        later: &'a Self,
    ) -> impl Iterator<Item = (&'a str, &'a str, Option<&'a str>)> {
        let entries = self.entries.iter().map(move |(target, old)| {
            let new = later.entries.get(target).map(|new| new.text.as_str());
            (target.as_str(), old.text.as_str(), new)
        });
        entries.filter(|(_, old, new)| *new != Some(*old))
    }

    /// Forgets entries once there are `most`, so that their number is bounded. `keep` is called with
    /// each target and its text, and tells what may not be forgotten.
    pub fn forget(&mut self, most: usize, keep: impl Fn(&str, &str) -> bool) {
        if self.entries.len() < most {
            return;
        }
        self.entries.retain(|target, entry| keep(target, &entry.text));
        self.forgotten = self.version;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(version: u64, entries: &[(&str, &str)]) -> Changes {
        let read =
            |&(target, text): &(&str, &str)| (target.to_owned(), Versioned::read(text, version));
        Changes { version, entries: entries.iter().map(read).collect(), ..Changes::default() }
    }

    fn joined(one: &Changes, other: &Changes) -> Vec<String> {
        let joined = one.join(other);
        assert_eq!(joined, other.join(one), "in any order");
        assert_eq!(joined.join(one), joined, "again");
        joined.entries.iter().map(|(target, entry)| format!("{target} {entry}")).collect()
    }

    #[test]
    fn the_later_change_of_each_target_holds() {
        let one = changes(9, &[("channel", "1/1s @9"), ("receiver", "1/1s @4")]);
        let other = changes(5, &[("institution/a", "removed @3"), ("receiver", "2/1s @5")]);
        let all = ["channel 1/1s @9", "institution/a removed @3", "receiver 2/1s @5"];
        assert_eq!(joined(&one, &other), all);
        let replaced: Vec<_> = one.replaced_by(&other).collect();
        assert_eq!(replaced, [("channel", "1/1s", None), ("receiver", "1/1s", Some("2/1s"))]);
        let same = ["1/1s @4", "3/1s @4"].map(|text| changes(4, &[("receiver", text)]));
        assert_eq!(joined(&same[0], &same[1]), ["receiver 3/1s @4"], "every server chooses it");
    }

    #[test]
    fn an_entry_without_a_version_has_that_of_all() {
        let old = changes(7, &[("receiver", "2/1s,5/60s"), ("sender", "a @b"), ("channel", "@3")]);
        let texts = ["channel @3 @7", "receiver 2/1s,5/60s @7", "sender a @b @7"];
        assert_eq!(joined(&old, &Changes::default()), texts);
        let newer = changes(8, &[("receiver", "1/1s")]);
        assert_eq!(joined(&old, &newer)[1], "receiver 1/1s @8");
    }

    #[test]
    fn versions_rise_and_follow_the_time() {
        let mut changes = changes(7, &[("receiver", "1/1s")]);
        changes.set("channel".to_owned(), "1/1s".to_owned());
        let first = changes.version;
        assert!(first > 1_700_000_000_000, "{first}");
        // A server whose clock is ahead has changed something.
        changes.version += 3_600_000;
        changes.set("receiver".to_owned(), "2/1s".to_owned());
        assert_eq!(changes.version, first + 3_600_001);
        assert_eq!(changes.entries["receiver"].version, changes.version);
    }

    #[test]
    fn what_was_removed_is_forgotten_in_the_end() {
        let keep = |target: &str, text: &str| text != "removed" || target == "institution/bank";
        let entries = [
            ("institution/bank", "removed @1"),
            ("institution/gone", "removed @2"),
            ("channel/bank", "removed @3"),
            ("channel/news", "level @4"),
            ("receiver", "5/1s @5"),
        ];
        let mut forgetful = changes(5, &entries);
        forgetful.forget(6, keep);
        assert_eq!(forgetful.entries.len(), 5, "there is room for more");
        forgetful.forget(5, keep);
        let left = ["channel/news level @4", "institution/bank removed @1", "receiver 5/1s @5"];
        // Neither a server that still knows of it nor one that has missed it brings it back.
        for old in [("institution/gone", "removed @2"), ("institution/gone", "9/1s @1")] {
            assert_eq!(joined(&forgetful, &changes(4, &[old])), left);
        }
        assert_eq!(joined(&forgetful, &changes(6, &[("institution/gone", "1/1s @6")])).len(), 4);
    }
}
