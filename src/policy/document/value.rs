//! [`Text`] and [`Quotas`]: the values of a configuration, with errors that say where they are.

use std::fmt::{self, Display};

use serde::de::{self, DeserializeSeed, Deserializer, SeqAccess, Visitor};

use crate::policy::{PolicyError, parse_quotas};
use crate::quota::Quota;

/// The part of a configuration that a message speaks of.
#[derive(Clone, Copy, Default)]
pub(super) struct Place<'a> {
    pub(super) policy: Option<&'a str>,
    pub(super) field: Option<&'static str>,
}

impl Place<'_> {
    pub(super) fn error<E: de::Error>(&self, error: impl Display) -> E {
        E::custom(format_args!("{self}: {error}"))
    }
}

impl Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("policy")?;
        if let Some(policy) = self.policy {
            write!(f, " {policy:?}")?;
        }
        self.field.map_or(Ok(()), |field| write!(f, ", {field}"))
    }
}

/// Reads a text with a function, whose error names the wrong part.
pub(super) struct Text<'a, F> {
    pub(super) place: Place<'a>,
    pub(super) expected: &'static str,
    pub(super) parse: F,
}

impl<'de, T, E: Display, F: FnOnce(&str) -> Result<T, E>> DeserializeSeed<'de> for Text<'_, F> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<T, E: Display, F: FnOnce(&str) -> Result<T, E>> Visitor<'_> for Text<'_, F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.expected)
    }

    fn visit_str<D: de::Error>(self, text: &str) -> Result<T, D> {
        (self.parse)(text).map_err(|error| self.place.error(error))
    }
}

/// Reads quotas: a text, or a list of texts.
pub(super) struct Quotas<'a>(pub(super) Place<'a>);

impl<'de> DeserializeSeed<'de> for Quotas<'_> {
    type Value = Vec<Quota>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<Quota>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Quotas<'_> {
    type Value = Vec<Quota>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: a text such as \"5/60s\", or a list of such texts", self.0)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<Quota>, E> {
        parse_quotas(text).map_err(|error| self.0.error(error))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<Quota>, A::Error> {
        let mut quotas = Vec::new();
        while let Some(quota) = list.next_element_seed(Text {
            place: self.0,
            expected: "a text such as \"5/60s\"",
            parse: |text: &str| {
                let wrong = |source| PolicyError::Quota { position: quotas.len() + 1, source };
                text.parse::<Quota>().map_err(wrong)
            },
        })? {
            quotas.push(quota);
        }
        if quotas.is_empty() {
            return Err(self.0.error("the list is empty: it needs a quota such as \"5/60s\""));
        }
        Ok(quotas)
    }
}
