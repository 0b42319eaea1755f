//! [`Override`] in a configuration, as serde reads and writes it.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use super::Override;
use crate::policy::Policy;

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
        deserializer.deserialize_any(OneOverride)
    }
}

struct OneOverride;

impl<'de> Visitor<'de> for OneOverride {
    type Value = Override;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"exempt\", a text such as \"100/60s\", or a table with `quotas`")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Override, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<Override, A::Error> {
        Policy::deserialize(MapAccessDeserializer::new(table)).map(Override::Policy)
    }
}
