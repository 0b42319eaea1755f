//! `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`, as
//! [GitHub](https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api) sends them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue};

use super::{Pair, seconds};
use crate::window::Usage;

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// Inserts the fields for the quota that limits the client most.
pub(super) fn insert(headers: &mut HeaderMap, usage: &Usage) {
    let logs = usage.logs().filter(|(log, outcome)| outcome.is_read() && !log.policy.refreshes());
    let quotas = logs.flat_map(|(log, outcome)| log.policy.quotas().iter().zip(outcome.quotas()));
    // The longest wait, then the fewest places, then the longest window.
    let most_limiting = quotas.min_by_key(|(quota, state)| {
        (u64::MAX - state.wait_us, state.remaining, u64::MAX - quota.window_us())
    });
    let Some((quota, state)) = most_limiting else { return };
    let pair = Pair::new(*quota, state, usage.is_denied());
    super::insert(headers, LIMIT, HeaderValue::from(quota.limit()));
    super::insert(headers, REMAINING, HeaderValue::from(pair.available));
    if let Some(window) = pair.window {
        // A clock before 1970 is one that was never set.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        super::insert(headers, RESET, HeaderValue::from(seconds(now.saturating_add(window))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;
    use crate::quota::Quota;
    use crate::window::{Check, Decision, LogId, LogOutcome, Outcome};

    /// As on a Cluster whose node is gone, while another one denies.
    #[test]
    fn log_that_was_not_read_is_not_shown() {
        let policy = std::sync::Arc::new(Policy::from(Quota::per_minute(5)));
        let outcome = Outcome::new(false, [LogOutcome::unread(&policy)]);
        let decision = Decision::new(Check::new([LogId::new(policy, "alice")]), outcome);
        let mut headers = HeaderMap::new();
        insert(&mut headers, decision.usage());
        assert!(headers.is_empty(), "{headers:?}");
    }
}
