//! [`Keys`]: how windows are named in Redis.

use crate::window::LogId;
use std::sync::Arc;

use crate::key::Key;

/// Names the Redis keys of one prefix.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: Arc<str>,
}

impl Keys {
    pub(crate) fn new(prefix: String) -> Self {
        Self { prefix: prefix.into() }
    }

    /// Returns the name of a window's log.
    pub(crate) fn log(&self, log: &LogId) -> Vec<u8> {
        self.name(log.key.as_bytes(), log.policy.log_name())
    }

    /// Returns the name of how a window's key stands with the policy's penalty.
    pub(crate) fn ban_record(&self, log: &LogId) -> Vec<u8> {
        self.of_policy(log, ":ban")
    }

    /// Returns the name of the strikes of a window's key.
    pub(crate) fn strikes(&self, log: &LogId) -> Vec<u8> {
        self.of_policy(log, ":strikes")
    }

    /// Returns the name of when a log was last reset.
    pub(crate) fn reset_mark(&self, log: &LogId) -> Vec<u8> {
        self.of_policy(log, ":reset")
    }

    /// Returns the name of when the ban of a log's key was last lifted.
    pub(crate) fn lift_mark(&self, log: &LogId) -> Vec<u8> {
        self.of_policy(log, ":lifted")
    }

    /// Returns a pattern of SCAN that is met by what is kept for any key under a name, and perhaps by
    /// more.
    pub(crate) fn pattern(&self, name: &str) -> String {
        let mut pattern = String::new();
        for letter in format!("{}:", self.prefix).chars() {
            if "*?[]^\\-".contains(letter) {
                pattern.push('\\');
            }
            pattern.push(letter);
        }
        format!("{pattern}{{=*}}:{name}")
    }

    /// Returns the key that something is kept for under a name, if that is its name.
    pub(crate) fn key_of(&self, whole: &[u8], name: &str) -> Option<Key> {
        let rest = whole.strip_prefix(self.prefix.as_bytes())?.strip_prefix(b":{=")?;
        let escaped = rest.strip_suffix(name.as_bytes())?.strip_suffix(b"}:")?;
        let key: Vec<u8> = percent_encoding::percent_decode(escaped).collect();
        let same = self.name(&key, name) == whole;
        same.then(|| Key::from_stored(&key))
    }

    fn of_policy(&self, log: &LogId, what: &str) -> Vec<u8> {
        let mut name = self.log(log);
        // No policy's name has a colon.
        name.extend_from_slice(what.as_bytes());
        name
    }

    /// Returns the name of what is kept for a key under a name: `PREFIX:{=KEY}:NAME`.
    ///
    /// The braces are a [hash tag](https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#hash-tags):
    /// all that belongs to one log key is in one cluster slot. A closing brace in the key
    /// would end the tag early, so it is escaped; the `=` keeps the tag of an empty key from being
    /// empty, which would be no tag.
    pub(crate) fn name(&self, key: &[u8], name: &str) -> Vec<u8> {
        let mut whole = Vec::with_capacity(self.prefix.len() + key.len() + name.len() + 5);
        whole.extend_from_slice(self.prefix.as_bytes());
        whole.extend_from_slice(b":{=");
        for byte in key {
            match byte {
                b'%' => whole.extend_from_slice(b"%25"),
                b'}' => whole.extend_from_slice(b"%7D"),
                _ => whole.push(*byte),
            }
        }
        whole.extend_from_slice(b"}:");
        whole.extend_from_slice(name.as_bytes());
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    fn name(key: &[u8]) -> Vec<u8> {
        let policy = Arc::new(Policy::new("user"));
        Keys::new("tsw".into()).log(&LogId { policy, key: key.into() })
    }

    #[test]
    fn keys_cannot_leave_their_braces() {
        assert_eq!(name(b"alice"), b"tsw:{=alice}:user");
        assert_eq!(name(b""), b"tsw:{=}:user");
        assert_eq!(name(b"}:admin"), b"tsw:{=%7D:admin}:user");
        assert_eq!(name(b"{{\0\n%7D"), b"tsw:{={{\0\n%257D}:user");
    }
}
