//! [`Name`]: of a user or a room.

use crate::problem;
use std::fmt;
use std::str::FromStr;

use axum::extract::{FromRequestParts, OptionalFromRequestParts, Path};
use axum::http::request::Parts;
use serde::Serialize;
use tower_sliding_window::Key;

use example_support::problem::Problem;

/// The name of a user or a room: 1 to 128 bytes of UTF-8.
#[derive(Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Name(String);

impl Name {
    pub(crate) const LONGEST: usize = 128;

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        if (1..=Self::LONGEST).contains(&text.len()) {
            Ok(Self(text.to_owned()))
        } else {
            Err(problem::bad_name())
        }
    }
}

/// User ids are personal: they may be logged at the level debug only.
impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({} bytes)", self.0.len())
    }
}

impl From<&Name> for Key {
    fn from(name: &Name) -> Self {
        Self::from(name.as_str())
    }
}

/// The user that sends a request. The authentication in front of this server sets `x-user-id`.
pub(crate) struct User(pub(crate) Name);

impl User {
    fn of(parts: &Parts) -> Result<Option<Self>, Problem> {
        let mut values = parts.headers.get_all("x-user-id").iter();
        let Some(value) = values.next().filter(|value| !value.is_empty()) else { return Ok(None) };
        let text = std::str::from_utf8(value.as_bytes()).map_err(|_| problem::bad_user())?;
        if values.next().is_some() {
            return Err(problem::bad_user());
        }
        text.parse().map(|name| Some(Self(name))).map_err(|_| problem::bad_user())
    }
}

impl<S: Sync> FromRequestParts<S> for User {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Self::of(parts)?.ok_or_else(problem::no_user)
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for User {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Problem> {
        Self::of(parts)
    }
}

/// A name in the path.
pub(crate) struct Named(pub(crate) Name);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = <Path<String> as FromRequestParts<S>>::from_request_parts(parts, state).await;
        let Path(text) = path.map_err(|_| problem::bad_name())?;
        text.parse().map(Self)
    }
}
