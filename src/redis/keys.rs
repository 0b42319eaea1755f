//! [`Keys`]: the names of the Redis keys.

use std::sync::Arc;

use crate::key::Key;
use crate::window::LogId;

#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: Arc<str>,
}

impl Keys {
    pub(crate) fn new(prefix: String) -> Self {
        Self { prefix: prefix.into() }
    }

    pub(crate) fn log(&self, log: &LogId) -> Vec<u8> {
        self.name(log.key.as_bytes(), log.policy.log_name())
    }

    pub(crate) fn reset_mark(&self, log: &LogId) -> Vec<u8> {
        let mut name = self.log(log);
        name.extend_from_slice(b":reset");
        name
    }

    pub(crate) fn ban_record(&self, log: &LogId) -> Vec<u8> {
        self.of_policy(log, ":ban")
    }

    pub(crate) fn strikes(&self, log: &LogId) -> Vec<u8> {
        self.of_policy(log, ":strikes")
    }

    pub(crate) fn lift_mark(&self, log: &LogId) -> Vec<u8> {
        self.of_policy(log, ":lifted")
    }

    /// Returns the name of the mark that is lost when the data is. Without braces, no key has it.
    pub(crate) fn mark(&self) -> String {
        format!("{}:mark", self.prefix)
    }

    /// Returns the name of such a mark, one of many in different slots of a Cluster.
    pub(crate) fn node_mark(&self, number: u32) -> String {
        format!("{}:{number}:mark", self.prefix)
    }

    /// Returns a SCAN pattern that matches the Redis keys of one name for all keys. It may match
    /// others too.
    pub(crate) fn pattern(&self, name: &str) -> String {
        // A `?` matches any byte, so it stands for those that mean something in a pattern.
        let prefix = self.prefix.replace(['*', '?', '[', ']', '^', '-', '\\'], "?");
        format!("{prefix}:{{=*}}:{name}")
    }

    /// Returns the key that a Redis key belongs to, or `None` if the Redis key has another name.
    pub(crate) fn key_of(&self, redis_key: &[u8], name: &str) -> Option<Key> {
        let rest = redis_key.strip_prefix(self.prefix.as_bytes())?.strip_prefix(b":{=")?;
        let escaped = rest.strip_suffix(name.as_bytes())?.strip_suffix(b"}:")?;
        let key: Vec<u8> = percent_encoding::percent_decode(escaped).collect();
        let matches = self.name(&key, name) == redis_key;
        matches.then(|| Key::from_stored(&key))
    }

    fn of_policy(&self, log: &LogId, what: &str) -> Vec<u8> {
        let mut name = self.name(log.key.as_bytes(), log.policy.base_name());
        // No policy's name has a colon.
        name.extend_from_slice(what.as_bytes());
        name
    }

    /// Returns the Redis key for a key and a name: `PREFIX:{=KEY}:NAME`.
    ///
    /// The braces are a [hash
    /// tag](https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#hash-tags),
    /// so that all Redis keys of one key are in one cluster slot. A closing brace in the key would
    /// end the tag early, so it is escaped. The `=` keeps the tag of an empty key from being empty:
    /// Redis ignores an empty tag.
    pub(crate) fn name(&self, key: &[u8], name: &str) -> Vec<u8> {
        let mut redis_key = Vec::with_capacity(self.prefix.len() + key.len() + name.len() + 5);
        redis_key.extend_from_slice(self.prefix.as_bytes());
        redis_key.extend_from_slice(b":{=");
        for byte in key {
            match byte {
                b'%' => redis_key.extend_from_slice(b"%25"),
                b'}' => redis_key.extend_from_slice(b"%7D"),
                _ => redis_key.push(*byte),
            }
        }
        redis_key.extend_from_slice(b"}:");
        redis_key.extend_from_slice(name.as_bytes());
        redis_key
    }
}
