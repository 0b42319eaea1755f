//! What is the same for every limiter: the quota, and the key of a request.

use std::time::Duration;

use axum::http::Uri;

/// Five requests a minute, or what comes nearest to it.
pub(crate) const LIMIT: u32 = 5;
pub(crate) const WINDOW: Duration = Duration::from_secs(60);

/// Returns the user that a request names in its query.
pub(crate) fn user_of(uri: &Uri) -> Option<&str> {
    uri.query()?.strip_prefix("user=")
}
