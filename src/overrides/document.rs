//! [`Override`] in a configuration, as serde reads and writes it.

use serde::de::Deserializer;
use serde::{Deserialize, Serialize, Serializer};

use super::Override;
use crate::policy::TextOrTable;

impl Serialize for Override {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Exempt => serializer.collect_str(self),
            Self::Policy(policy) => policy.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Override {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "\"exempt\", a text such as \"100/60s\", or a table with `quotas`";
        deserializer.deserialize_any(TextOrTable(expected, Self::Policy))
    }
}
