//! What is the same for every limiter: the quota, and the key of a request.

use std::time::Duration;

use axum::http::Uri;

/// Five requests a window, or what comes nearest to it.
pub(crate) const LIMIT: u32 = 5;
/// The header with the address, where there is a rule for it.
pub(crate) const ADDRESS: &str = "x-address";
/// So many requests of an address that it is never denied: all of the load come from one.
pub(crate) const ADDRESS_LIMIT: u32 = 1_000_000;
/// The window where nothing else is said.
pub(crate) const WINDOW: Duration = Window::Minute.length();

/// The windows that every limiter can be set up with. One has its window in a type.
#[derive(Clone, Copy)]
pub(crate) enum Window {
    Second,
    Minute,
}

impl Window {
    pub(crate) const fn length(self) -> Duration {
        match self {
            Self::Second => Duration::from_secs(1),
            Self::Minute => Duration::from_secs(60),
        }
    }
}

/// Returns the user that a request names in its query.
pub(crate) fn user_of(uri: &Uri) -> Option<&str> {
    uri.query()?.strip_prefix("user=")
}
