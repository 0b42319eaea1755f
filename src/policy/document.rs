//! [`Policy`] and [`Policies`] in a configuration, as serde reads and writes them.
//!
//! Each error is made where the format knows the position of the value, and names the policy and the
//! field itself: an error that is wrapped later would lose its line.

mod value;

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

use self::value::{Place, Quotas, Text};
use super::penalty::Penalty;
use super::policies::Policies;
use super::{Counts, Policy, PolicyError, is_name};
use crate::quota::{Span, parse_window};

const NAME: &str = "name";
const QUOTAS: &str = "quotas";
const KEEP_FOR: &str = "keep_for";
const PENALTY: &str = "penalty";
const COUNTS: &str = "counts";

/// Reads a policy: a text or a table. In a set it has the name of its key.
struct OnePolicy<'a> {
    key: Option<&'a str>,
}

impl<'a> OnePolicy<'a> {
    fn place(&self, field: Option<&'static str>) -> Place<'a> {
        Place { policy: self.key, field }
    }

    fn fields(&self) -> &'static [&'static str] {
        let fields = &[NAME, QUOTAS, KEEP_FOR, COUNTS, PENALTY];
        if self.key.is_some() { &fields[1..] } else { fields }
    }

    fn field<'de, A: MapAccess<'de>>(
        &self,
        table: &mut A,
        seen: &[&'static str],
    ) -> Result<Option<&'static str>, A::Error> {
        let parse = |text: &str| match self.fields().iter().find(|field| **field == text) {
            None => Err(format!(
                "the field {text:?} is unknown: there are {}",
                self.fields().join(", ")
            )),
            Some(field) if seen.contains(field) => {
                Err(format!("the field {field:?} is there twice"))
            }
            Some(field) => Ok(*field),
        };
        table.next_key_seed(Text { place: self.place(None), expected: "a field", parse })
    }
}

impl<'de> DeserializeSeed<'de> for OnePolicy<'_> {
    type Value = Policy;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Policy, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for OnePolicy<'_> {
    type Value = Policy;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.place(None);
        write!(f, "{place}: a text such as \"5/60s\", or a table with `{QUOTAS}`")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Policy, E> {
        text.parse().map_err(|error: PolicyError| self.place(None).error(error))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<Policy, A::Error> {
        let (mut policy, mut seen) = (Policy::unnamed(), Vec::new());
        let (mut name, mut quotas) = (None, Vec::new());
        while let Some(field) = self.field(&mut table, &seen)? {
            seen.push(field);
            let place = self.place(Some(field));
            match field {
                NAME => {
                    let expected = "a text of 1 to 64 characters of A-Z a-z 0-9 _ . -";
                    let parse = |text: &str| read_name(text, |_| false);
                    name = Some(table.next_value_seed(Text { place, expected, parse })?);
                }
                QUOTAS => quotas = table.next_value_seed(Quotas(place))?,
                KEEP_FOR => {
                    let expected = "a length of time such as \"1h\"";
                    let parse = |text: &str| {
                        parse_window(text.trim()).ok_or_else(|| {
                            format!("{text:?} is not a whole number of us, ms, s, m, h or d")
                        })
                    };
                    policy =
                        policy.keep_for(table.next_value_seed(Text { place, expected, parse })?);
                }
                COUNTS => {
                    let expected =
                        "\"requests\", \"costs\", \"bytes\", \"distinct\" or \"in_flight\"";
                    let parse = |text: &str| {
                        let is_it = |counts: &&Counts| counts.name() == text;
                        let found = Counts::ALL.iter().find(is_it).copied();
                        found.ok_or_else(|| format!("{text:?} is not {expected}"))
                    };
                    policy =
                        policy.counting(table.next_value_seed(Text { place, expected, parse })?);
                }
                _ => {
                    let expected = "a text such as \"3/10m:1m,1h,24h\"";
                    let parse = |text: &str| text.parse::<Penalty>();
                    policy =
                        policy.penalty(table.next_value_seed(Text { place, expected, parse })?);
                }
            }
        }
        if quotas.is_empty() {
            let error =
                format_args!("the field `{QUOTAS}` is missing, such as {QUOTAS} = \"5/60s\"");
            return Err(self.place(None).error(error));
        }
        policy = quotas.into_iter().fold(policy, Policy::quota);
        Ok(name.into_iter().fold(policy, Policy::named))
    }
}

/// Returns the name of a policy if it is valid and new.
fn read_name(text: &str, is_taken: impl Fn(&str) -> bool) -> Result<String, PolicyError> {
    let name = text.to_owned();
    match text {
        _ if !is_name(text) => Err(PolicyError::Name { name }),
        _ if is_taken(text) => Err(PolicyError::Duplicate { name }),
        _ => Ok(name),
    }
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        OnePolicy { key: None }.deserialize(deserializer)
    }
}

impl<'de> Deserialize<'de> for Policies {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(AllPolicies)
    }
}

struct AllPolicies;

impl<'de> Visitor<'de> for AllPolicies {
    type Value = Policies;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "policies by name, each a text such as \"5/60s\" or a table with `{QUOTAS}`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<Policies, A::Error> {
        let (mut names, mut policies) = (BTreeSet::new(), Vec::new());
        while let Some(name) = table.next_key_seed(Text {
            place: Place::default(),
            expected: "the name of a policy",
            parse: |text: &str| read_name(text, |name| names.contains(name)),
        })? {
            let policy = table.next_value_seed(OnePolicy { key: Some(&name) })?;
            policies.push(policy.named(&name));
            names.insert(name);
        }
        Policies::try_new(policies).map_err(de::Error::custom)
    }
}

/// Writes a policy in the shortest form that is read back as the same.
struct Written<'a> {
    policy: &'a Policy,
    name: Option<&'a str>,
}

impl Serialize for Written<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { policy, name } = *self;
        let penalty = policy.get_penalty();
        let kept_us = match policy.retention_us > policy.longest_window_us() {
            // Whoever reads it shares the logs, also if the windows have become shorter.
            true => policy.retention_us,
            false => policy.kept_us,
        };
        let is_plain = kept_us == 0 && policy.counts() == Counts::Requests;
        if name.is_none() && penalty.is_none() && is_plain {
            return serializer.collect_str(policy);
        }
        let mut table = serializer.serialize_map(None)?;
        if let Some(name) = name {
            table.serialize_entry(NAME, name)?;
        }
        table.serialize_entry(QUOTAS, policy.quotas())?;
        if kept_us > 0 {
            table.serialize_entry(KEEP_FOR, &Span(kept_us).to_string())?;
        }
        if policy.counts() != Counts::Requests {
            table.serialize_entry(COUNTS, policy.counts().name())?;
        }
        if let Some(penalty) = penalty {
            table.serialize_entry(PENALTY, penalty)?;
        }
        table.end()
    }
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let name = self.is_named().then(|| self.name());
        Written { policy: self, name }.serialize(serializer)
    }
}

impl Serialize for Policies {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let all = self.all();
        let written = |policy| Written { policy, name: None };
        serializer.collect_map(all.iter().map(|policy| (policy.name(), written(policy))))
    }
}
