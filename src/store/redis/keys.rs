//! [`Keys`]: how windows are named in Redis.

use super::Partition;

/// Names the Redis keys of one prefix.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    pub(super) fn new(prefix: String) -> Self {
        Self { prefix }
    }

    /// Returns the name of a window's log: `PREFIX:{=KEY}:POLICY`.
    ///
    /// The braces are a [hash tag](https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#hash-tags):
    /// all that belongs to one partition key is in one cluster slot. A closing brace in the key
    /// would end the tag early, so it is escaped; the `=` keeps the tag of an empty key from being
    /// empty, which would be no tag.
    pub(super) fn window(&self, partition: &Partition) -> Vec<u8> {
        let (key, policy) = (partition.key.as_bytes(), partition.policy.window_name());
        let mut name = Vec::with_capacity(self.prefix.len() + key.len() + policy.len() + 5);
        name.extend_from_slice(self.prefix.as_bytes());
        name.extend_from_slice(b":{=");
        for byte in key {
            match byte {
                b'%' => name.extend_from_slice(b"%25"),
                b'}' => name.extend_from_slice(b"%7D"),
                _ => name.push(*byte),
            }
        }
        name.extend_from_slice(b"}:");
        name.extend_from_slice(policy.as_bytes());
        name
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::policy::Policy;

    fn name(key: &[u8]) -> Vec<u8> {
        let policy = Arc::new(Policy::new("user"));
        Keys::new("tsw".into()).window(&Partition { policy, key: key.into() })
    }

    #[test]
    fn keys_cannot_leave_their_braces() {
        assert_eq!(name(b"alice"), b"tsw:{=alice}:user");
        assert_eq!(name(b""), b"tsw:{=}:user");
        assert_eq!(name(b"}:admin"), b"tsw:{=%7D:admin}:user");
        assert_eq!(name(b"{{\0\n%7D"), b"tsw:{={{\0\n%257D}:user");
    }
}
