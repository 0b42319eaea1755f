//! [`UserId`]: the sender of a request, read once, for the limit and for the order.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use axum::http::HeaderName;
use axum::http::request::Parts;
use serde::Serialize;
use tower_sliding_window::{Key, KeyError, KeyExtractor, key};

use example_support::problem::Problem;

/// The longest user id, in bytes.
const LONGEST_USER_ID: usize = 128;

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

impl fmt::Display for UserFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.place, self.name)
    }
}

impl FromStr for UserFrom {
    type Err = UserFromError;

    fn from_str(text: &str) -> Result<Self, UserFromError> {
        let (place, name) = text.split_once(':').ok_or(UserFromError::NoColon)?;
        // Header names and cookie names are tokens of the same characters.
        if name.parse::<HeaderName>().is_err() {
            return Err(UserFromError::Name { place: place.to_owned(), name: name.to_owned() });
        }
        let (place, key): (_, Arc<dyn KeyExtractor>) = match place {
            "header" => ("header", Arc::new(key::header(name))),
            "query" => ("query", Arc::new(key::query(name))),
            "cookie" => ("cookie", Arc::new(key::cookie(name))),
            _ => return Err(UserFromError::Place { place: place.to_owned() }),
        };
        Ok(Self { place, name: name.to_owned(), key })
    }
}

/// What is wrong with the text of a [`UserFrom`].
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum UserFromError {
    #[error("write PLACE:NAME, such as header:x-user-id, query:user or cookie:session")]
    NoColon,
    #[error("the place {place:?} is none of header, query and cookie")]
    Place { place: String },
    #[error("the name {name:?} after {place:?} is not a name: use letters, digits, - and _")]
    Name { place: String, name: String },
}
