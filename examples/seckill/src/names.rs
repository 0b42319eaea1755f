//! [`Sku`], [`OrderId`] and [`UserId`]: what is sold, the name of one sale, and the buyer. [`UserFrom`]:
//! where a request names its user.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use axum::http::HeaderName;
use axum::http::request::Parts;
use serde::Serialize;
use tower_sliding_window::{Key, KeyError, KeyExtractor, key};
use uuid::Uuid;

use example_support::problem::Problem;

/// The longest user id, in bytes.
const LONGEST_USER_ID: usize = 128;

/// The name of something for sale: 1 to 64 characters of `A-Z a-z 0-9 _ . -`.
///
/// It stands in URLs and in the hash tags of Redis keys, so it holds nothing that either would
/// have to escape.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub(crate) struct Sku(String);

impl fmt::Display for Sku {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Sku {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        let fits = (1..=64).contains(&text.len()) && text.bytes().all(allowed);
        let error = || format!("the SKU {text:?} is not 1 to 64 characters of A-Z a-z 0-9 _ . -");
        if fits { Ok(Self(text.to_owned())) } else { Err(error()) }
    }
}

/// The name of an order, written `SKU.UUID`.
///
/// It begins with the SKU because that is where the order is kept: all records of one SKU share
/// a slot of a Redis Cluster, and different SKUs spread over the slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OrderId {
    pub(crate) sku: Sku,
    pub(crate) uuid: Uuid,
}

impl fmt::Display for OrderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.sku, self.uuid)
    }
}

impl OrderId {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        // A SKU may have dots, a UUID has none.
        let (sku, uuid) = text.rsplit_once('.')?;
        Some(Self { sku: sku.parse().ok()?, uuid: uuid.parse().ok()? })
    }
}

/// A user, as the authentication in front of this server names them.
#[derive(Clone, PartialEq, Eq, Hash, Serialize)]
pub(crate) struct UserId(String);

impl UserId {
    /// Returns the id if it is 1 to 128 bytes long and can't stand for two users.
    pub(crate) fn new(text: String) -> Option<Self> {
        let is_clear = (1..=LONGEST_USER_ID).contains(&text.len())
            // Stands for bytes that could not be decoded, and so for different ones.
            && !text.contains(char::REPLACEMENT_CHARACTER)
            // A text that looks like a hash is kept as its own hash.
            && Key::from(&text).as_bytes() == text.as_bytes();
        is_clear.then_some(Self(text))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The log of a user and the order of a user have the same id.
impl From<&UserId> for Key {
    fn from(user: &UserId) -> Self {
        Self::from(user.as_str())
    }
}

/// User ids are personal: they may be logged at the level debug only.
impl fmt::Debug for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserId({} bytes)", self.0.len())
    }
}

/// Where the user id stands in a request: `header:NAME`, `query:NAME` or `cookie:NAME`.
#[derive(Clone)]
pub(crate) struct UserFrom {
    pub(crate) place: &'static str,
    pub(crate) name: String,
    key: Arc<dyn KeyExtractor>,
}

impl UserFrom {
    /// Returns the sender of a request, or the response that says why it is not known: a 401 or a 400.
    ///
    /// A real shop has its authentication here.
    pub(crate) fn identify(&self, parts: &Parts) -> Result<UserId, Problem> {
        let place = || format!("{} {:?}", self.place, self.name);
        self.user(parts).map_err(|error| match error {
            KeyError::Missing => Problem::no_user(place()),
            _ => Problem::bad_user(place()),
        })
    }

    fn user(&self, parts: &Parts) -> Result<UserId, KeyError> {
        let key = self.key.extract(parts)?;
        // A text over 128 bytes comes as its hash, which is no user id.
        let text = std::str::from_utf8(key.as_bytes()).map_err(|_| KeyError::Invalid)?;
        UserId::new(text.to_owned()).ok_or(KeyError::Invalid)
    }
}

impl FromStr for UserFrom {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (place, name) = text
            .split_once(':')
            .ok_or("write PLACE:NAME, such as header:x-user-id, query:user or cookie:session")?;
        // Header names and cookie names are tokens of the same characters.
        if name.parse::<HeaderName>().is_err() {
            return Err(format!("{name:?} is not a name: use letters, digits, - and _"));
        }
        let (place, key): (_, Arc<dyn KeyExtractor>) = match place {
            "header" => ("header", Arc::new(key::header(name))),
            "query" => ("query", Arc::new(key::query(name))),
            "cookie" => ("cookie", Arc::new(key::cookie(name))),
            _ => return Err(format!("the place {place:?} is none of header, query and cookie")),
        };
        Ok(Self { place, name: name.to_owned(), key })
    }
}
