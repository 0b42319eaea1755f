//! [`Name`]: of a user or a room.

use std::fmt;
use std::str::FromStr;

use axum::extract::{FromRequestParts, Path};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::Serialize;
use tower_sliding_window::Key;

use example_support::problem::Problem;

/// The header that names the user.
pub(crate) const USER: &str = "x-user-id";

/// The name of a user or a room: 1 to 128 bytes of UTF-8. The default is none of them, and the first in
/// the order of names.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(crate) struct Name(String);

impl Name {
    const LONGEST: usize = 128;

    fn new(text: &str) -> Option<Self> {
        (1..=Self::LONGEST).contains(&text.len()).then(|| Self(text.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// User ids are personal: they may be logged at the level debug only.
impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({} bytes)", self.0.len())
    }
}

/// Reads the name of a user from a flag.
impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || format!("a user id is 1 to {} bytes of UTF-8", Self::LONGEST);
        Self::new(text).ok_or_else(error)
    }
}

impl From<&Name> for Key {
    fn from(name: &Name) -> Self {
        Self::from(name.as_str())
    }
}

/// The user that sends a request. The authentication in front of this server sets `x-user-id`.
pub(crate) struct User(pub(crate) Name);

impl<S: Sync> FromRequestParts<S> for User {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let place = || format!("header {USER}");
        let mut values = parts.headers.get_all(USER).iter();
        let value = values.next().filter(|value| !value.is_empty());
        let value = value.ok_or_else(|| Problem::no_user(place()))?;
        let name = std::str::from_utf8(value.as_bytes()).ok().and_then(Name::new);
        let only = name.filter(|_| values.next().is_none());
        only.map(Self).ok_or_else(|| Problem::bad_user(place()))
    }
}

/// The name in the path.
pub(crate) struct Named(pub(crate) Name);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = <Path<String> as FromRequestParts<S>>::from_request_parts(parts, state).await;
        let name = path.ok().and_then(|Path(text)| Name::new(&text));
        name.map(Self).ok_or_else(|| {
            Problem::new(StatusCode::BAD_REQUEST, "bad-name", "The path has no proper name")
                .detail("The name of a room or a user is 1 to 128 bytes of UTF-8.")
        })
    }
}
