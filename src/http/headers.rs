//! `Retry-After`, and `RateLimit` and `RateLimit-Policy` as in
//! [draft 11 of the RateLimit fields](https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-ratelimit-headers-11).

use std::fmt::Write;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::decision::Usage;
use crate::window::QuotaState;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Says how long to wait, in whole seconds, rounded up, at least 1.
///
/// The syntax is that of [RFC 9110, section 10.2.3](https://www.rfc-editor.org/rfc/rfc9110#section-10.2.3).
pub(super) fn insert_retry_after(headers: &mut HeaderMap, wait: Duration) {
    headers.entry(RETRY_AFTER).or_insert_with(|| HeaderValue::from(seconds(wait).max(1)));
}

/// Says what the quotas are and how much of them is left.
pub(super) fn insert_rate_limit(headers: &mut HeaderMap, usage: &Usage) {
    // Room for one policy of two quotas. Names have no character that would have to be escaped.
    let (mut policies, mut limits) = (String::with_capacity(64), String::with_capacity(32));
    for (policy, states, _) in usage.policies() {
        let name = policy.name();
        for quota in policy.quotas() {
            let (limit, window) = (quota.limit(), seconds(quota.window()));
            let _ = write!(item(&mut policies), "\"{name}\";q={limit};w={window}");
        }
        let Some(tightest) = states.iter().min_by_key(tightness) else { continue };
        let _ = write!(item(&mut limits), "\"{name}\";r={}", tightest.remaining);
        let more_in = Duration::from_micros(tightest.wait_us.max(tightest.reset_us));
        if !more_in.is_zero() {
            let _ = write!(limits, ";t={}", seconds(more_in));
        }
    }
    for (name, value) in [(RATE_LIMIT_POLICY, policies), (RATE_LIMIT, limits)] {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.entry(name).or_insert(value);
        }
    }
}

/// Orders quotas by how soon they stop the client: the longest wait first, then the least left.
fn tightness(state: &&QuotaState) -> (u64, u32) {
    (u64::MAX - state.wait_us, state.remaining)
}

/// Separates the next item of a list from those before it.
fn item(list: &mut String) -> &mut String {
    if !list.is_empty() {
        list.push_str(", ");
    }
    list
}

/// Rounds up: who waits a second less than told must never be told off again.
fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::key::Key;
    use crate::policy::Policy;
    use crate::store::{Check, Partition, Verdict};

    fn usage(policies: &[Policy], states: &[QuotaState]) -> Usage {
        let partition =
            |policy: &Policy| Partition { policy: Arc::new(policy.clone()), key: Key::from("k") };
        let check = Check::new(policies.iter().map(partition));
        Usage::new(check, Verdict::new(false, None, states.into()))
    }

    fn state(remaining: u32, wait_us: u64, reset_us: u64) -> QuotaState {
        QuotaState { remaining, wait_us, reset_us }
    }

    #[test]
    fn fields_of_a_denial() {
        let user = Policy::new("user").quota("5/60s".parse().unwrap());
        let mut headers = HeaderMap::new();
        insert_rate_limit(&mut headers, &usage(&[user], &[state(0, 36_000_001, 0)]));
        assert_eq!(headers["ratelimit-policy"], "\"user\";q=5;w=60");
        assert_eq!(headers["ratelimit"], "\"user\";r=0;t=37");
    }

    #[test]
    fn each_policy_shows_the_quota_that_stops_the_client_first() {
        let user =
            Policy::new("user").quota("2/500ms".parse().unwrap()).quota("5/60s".parse().unwrap());
        let ip = Policy::new("ip").quota("100/60s".parse().unwrap());
        let states = [state(0, 400_000, 0), state(3, 0, 0), state(98, 0, 2_000_000)];
        let mut headers = HeaderMap::new();
        insert_rate_limit(&mut headers, &usage(&[user, ip], &states));
        assert_eq!(
            headers["ratelimit-policy"],
            "\"user\";q=2;w=1, \"user\";q=5;w=60, \"ip\";q=100;w=60"
        );
        assert_eq!(headers["ratelimit"], "\"user\";r=0;t=1, \"ip\";r=98;t=2");
    }

    #[test]
    fn retry_after_is_rounded_up_and_at_least_one() {
        for (wait_us, seconds) in
            [(0, "1"), (1, "1"), (1_000_000, "1"), (1_000_001, "2"), (36_999_999, "37")]
        {
            let mut headers = HeaderMap::new();
            insert_retry_after(&mut headers, Duration::from_micros(wait_us));
            assert_eq!(headers[RETRY_AFTER], seconds);
        }
    }
}
