//! [`Policy`] and [`Policies`] in a configuration, as serde reads and writes them.
//!
//! Each part is read by a type of its own, so that the format knows where a mistake stands.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use super::penalty::Penalty;
use super::policies::Policies;
use super::{Counts, DEFAULT_NAME, Policy, PolicyError, parse_quotas};
use crate::quota::{Quota, Span};

/// A policy with all its parts.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<Name>,
    quotas: Quotas,
    #[serde(skip_serializing_if = "Option::is_none")]
    keep_for: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    counts: Option<Counts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    penalty: Option<Penalty>,
}

/// A valid name.
#[derive(Serialize, Deserialize)]
#[serde(try_from = "String")]
struct Name(String);

impl TryFrom<String> for Name {
    type Error = PolicyError;

    fn try_from(name: String) -> Result<Self, PolicyError> {
        Policy::try_new(&name).map(|_| Self(name))
    }
}

/// A text, or a list of texts.
#[derive(Serialize)]
struct Quotas(Vec<Quota>);

impl<'de> Deserialize<'de> for Quotas {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(QuotasVisitor)
    }
}

struct QuotasVisitor;

impl<'de> Visitor<'de> for QuotasVisitor {
    type Value = Quotas;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text such as \"5/60s\", or a list of such texts")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Quotas, E> {
        parse_quotas(text).map(Quotas).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Quotas, A::Error> {
        let texts = Vec::<String>::deserialize(SeqAccessDeserializer::new(list))?;
        if texts.is_empty() {
            return Err(de::Error::invalid_length(0, &"one quota or more"));
        }
        self.visit_str(&texts.join(","))
    }
}

impl From<Table> for Policy {
    fn from(table: Table) -> Self {
        let mut policy = table.quotas.0.into_iter().fold(Self::unnamed(), Self::quota);
        if let Some(Name(name)) = table.name {
            policy = policy.named(name);
        }
        if let Some(Span(us)) = table.keep_for {
            policy = policy.keep_for(Duration::from_micros(us));
        }
        if let Some(counts) = table.counts {
            policy = policy.counting(counts);
        }
        table.penalty.into_iter().fold(policy, Self::penalty)
    }
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "a text such as \"5/60s\", or a table with `quotas`";
        deserializer.deserialize_any(TextOrTable(expected, |policy| policy))
    }
}

/// Reads a text, or a table that is a policy. With what is expected.
pub(crate) struct TextOrTable<T>(pub(crate) &'static str, pub(crate) fn(Policy) -> T);

impl<'de, T: FromStr<Err = PolicyError>> Visitor<'de> for TextOrTable<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<T, A::Error> {
        let table = Table::deserialize(MapAccessDeserializer::new(table))?;
        Ok((self.1)(table.into()))
    }
}

impl Serialize for Policy {
    /// Writes the shortest form that is read back as the same. One without a name that has replaced another one in a
    /// handle is read back with logs of its own: give it a name.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let kept_us = match self.retention_us() > self.longest_window_us() {
            // Whoever reads it shares the logs, also if the windows have become shorter.
            true => self.retention_us(),
            false => self.kept_us,
        };
        let table = Table {
            name: self.is_named().then(|| Name(self.name().to_owned())),
            quotas: Quotas(self.quotas.to_vec()),
            keep_for: (kept_us > 0).then_some(Span(kept_us)),
            counts: Some(self.counts).filter(|counts| *counts != Counts::Requests),
            penalty: self.get_penalty().cloned(),
        };
        match table {
            Table { name: None, keep_for: None, counts: None, penalty: None, .. } => {
                serializer.collect_str(self)
            }
            _ => table.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Policies {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PoliciesVisitor)
    }
}

struct PoliciesVisitor;

impl<'de> Visitor<'de> for PoliciesVisitor {
    type Value = Policies;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("policies by name, each a text such as \"5/60s\" or a table with `quotas`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<Policies, A::Error> {
        let mut policies = Vec::new();
        while let Some((Name(key), policy)) = table.next_entry::<Name, Policy>()? {
            let name = policy.name();
            if policy.is_named() && name != key {
                let text = format!("the policy {key:?} is named {name:?}: its key is its name");
                return Err(de::Error::custom(text));
            }
            policies.push(policy.named(key));
        }
        Policies::try_new(policies).map_err(de::Error::custom)
    }
}

impl Serialize for Policies {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let all = self.all();
        // Each has the name of its key.
        serializer.collect_map(all.iter().map(|policy| {
            let unnamed =
                Policy { name: DEFAULT_NAME.into(), base_name: "".into(), ..Policy::clone(policy) };
            (policy.name(), unnamed)
        }))
    }
}
