//! [`Document`]: the file of `--policies`.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use tower_sliding_window::{Policies, Policy, PolicyError};

use crate::name::Name;
use crate::thresholds::{Level, List, Members, Thresholds};

/// The thresholds of the levels, and the lists.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Document {
    policies: Policies,
    institutions: Vec<Member<{ List::Institutions as usize }>>,
    channels: Vec<Member<{ List::Channels as usize }>>,
    destinations: Vec<Member<{ List::Destinations as usize }>>,
}

/// A member of a list, written `NAME` or `NAME=LIMIT/WINDOW`.
struct Member<const LIST: usize>(Name, Option<Policy>);

// By hand, so that an error has the line and the column of the text.
impl<'de, const LIST: usize> Deserialize<'de> for Member<LIST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MemberVisitor<const LIST: usize>;

        impl<const LIST: usize> Visitor<'_> for MemberVisitor<LIST> {
            type Value = Member<LIST>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text NAME or NAME=LIMIT/WINDOW")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Member<LIST>, E> {
                let wrong = |error| E::custom(format_args!("{text:?}: {error}"));
                member(List::ALL[LIST], text)
                    .map(|(name, policy)| Member(name, policy))
                    .map_err(wrong)
            }
        }

        deserializer.deserialize_str(MemberVisitor::<LIST>)
    }
}

/// Reads a member of a list.
pub(crate) fn member(
    list: List,
    text: &str,
) -> Result<(Name, Option<Policy>), Box<dyn Error + Send + Sync>> {
    let (name, policy) = match text.split_once('=') {
        Some((name, policy)) => (name, Some(policy.parse()?)),
        None => (text, None),
    };
    Ok((list.member(name)?, policy))
}

/// Why the thresholds of a file can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DocumentError {
    #[error("there is no policy {0:?}: each level needs one")]
    Missing(&'static str),
    #[error(
        "the policy {0:?} is unknown: there are institution, channel, destination and receiver"
    )]
    Unknown(String),
    #[error("policy {level:?}: a {part} has no effect in this server, which has quotas only")]
    QuotasOnly { level: &'static str, part: &'static str },
    #[error("{0} is there twice")]
    Twice(Name),
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

impl TryFrom<Document> for Thresholds {
    type Error = DocumentError;

    fn try_from(document: Document) -> Result<Self, DocumentError> {
        let Document { policies, institutions, channels, destinations } = document;
        let is_level = |name: &str| Level::ALL.iter().any(|level| level.name() == name);
        if let Some(unknown) = policies.all().iter().find(|policy| !is_level(policy.name())) {
            return Err(DocumentError::Unknown(unknown.name().to_owned()));
        }
        let [institution, channel, destination, receiver] =
            Level::ALL.map(|level| of_level(&policies, level));
        Ok(Self {
            levels: [institution?, channel?, destination?, receiver?],
            lists: [members(institutions)?, members(channels)?, members(destinations)?],
        })
    }
}

/// Returns the quotas of a level, as a flag would have them.
fn of_level(policies: &Policies, level: Level) -> Result<Policy, DocumentError> {
    let level = level.name();
    let policy = policies.get(level).ok_or(DocumentError::Missing(level))?.get();
    if policy.get_penalty().is_some() {
        return Err(DocumentError::QuotasOnly { level, part: "penalty" });
    }
    if !policy.candidates().is_empty() {
        return Err(DocumentError::QuotasOnly { level, part: "candidate" });
    }
    Ok(policy.to_string().parse()?)
}

fn members<const LIST: usize>(list: Vec<Member<LIST>>) -> Result<Members, DocumentError> {
    let mut members = BTreeMap::new();
    for Member(name, policy) in list {
        if members.insert(name.clone(), policy).is_some() {
            return Err(DocumentError::Twice(name));
        }
    }
    Ok(members)
}
