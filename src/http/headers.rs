//! `Retry-After`, and the fields that show a client its quotas.

mod draft11;
mod legacy;

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::quota::{Quota, Span};
use crate::window::{QuotaState, Usage};

/// Which fields show a client its quotas.
///
/// They are in the response to a denied request and, with
/// [`headers_on_success`](super::SlidingWindowLayer::headers_on_success), in every response. A field
/// that the response already has stays as it is. `Retry-After` does not depend on this choice.
///
/// | choice | fields |
/// |---|---|
/// | `Draft11` | `RateLimit-Policy: "user";q=5;w=60` and `RateLimit: "user";r=3;t=60` |
/// | `Legacy` | `X-RateLimit-Limit: 5`, `X-RateLimit-Remaining: 3` and `X-RateLimit-Reset: 1785589260` |
/// | `Both` | all five |
/// | `None` | none |
///
/// ## What `r` and `t` say
///
/// The fields are those of
/// [draft 11](https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-ratelimit-headers-11). Each
/// quota has an item in both fields. Its name is that of the policy, or, if the policy has several
/// quotas, the policy and the quota, as in `"user:2/1s"`. A client needs them all: the quota with the
/// fewest places now is not always the one that limits it longest.
///
/// | state of the quota | `r` | `t` |
/// |---|---|---|
/// | places are free | how many | the window of the quota |
/// | none is free | 0 | until the first one is free |
/// | it denies the request | 0, also if a request of a lower cost fits | until the request fits, at most `Retry-After` |
/// | another quota or rule denies the request | how many are free | left out |
/// | the same, and the log [was not read](crate::store::LogOutcome::is_read) | no item in `RateLimit` | |
///
/// So `r / t` is never above `q / w`: a client that divides the two does not go faster than the
/// policy allows (sections 4.1.2 and 8.5). If no other client uses the key, `r` requests are admitted
/// at any times within `t`, under a [budget](crate::Policy::budget) as many as cost `r` together. After `t` there may be
/// fewer than `q` places, because each place comes free a window after its own request. Each response has the next pair.
///
/// The guide has the fields of [other kinds of policies](crate::docs::responses#fields-of-other-kinds-of-policies).
///
/// ## The state of the draft
///
/// Draft 11 expired on 24 November 2026 and is no standard. A successor becomes a further choice: `Draft11` keeps sending
/// what is described here, and the default changes in a release that says so.
///
/// ## What the older fields say
///
/// They have room for one quota: the one that denies the request for the longest time, otherwise the
/// one with the fewest places. `X-RateLimit-Reset` is the end of `t` above in seconds since the Unix
/// epoch, rounded up, as GitHub and express-rate-limit (`legacyHeaders`) send it. A client whose clock
/// is wrong reads a wrong wait, which `Retry-After` avoids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RateLimitHeaders {
    /// `RateLimit` and `RateLimit-Policy`, as in draft 11 of the IETF.
    #[default]
    Draft11,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`.
    Legacy,
    /// The fields of `Draft11` and of `Legacy`.
    Both,
    /// No field.
    None,
}

impl RateLimitHeaders {
    /// Inserts the fields that are chosen, unless the application has set them.
    pub(super) fn insert(self, headers: &mut HeaderMap, usage: &Usage) {
        if matches!(self, Self::Draft11 | Self::Both) {
            draft11::insert(headers, usage);
        }
        if matches!(self, Self::Legacy | Self::Both) {
            legacy::insert(headers, usage);
        }
    }
}

/// Inserts a field, unless the application has set it.
pub(super) fn insert(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    headers.entry(name).or_insert(value);
}

/// Inserts `Retry-After`: whole seconds, rounded up, at least 1.
///
/// The syntax is that of [RFC 9110, section 10.2.3](https://www.rfc-editor.org/rfc/rfc9110#section-10.2.3).
pub(super) fn insert_retry_after(headers: &mut HeaderMap, wait: Duration) {
    insert(headers, RETRY_AFTER, seconds(wait).max(1).into());
}

/// Pushes the name of a policy or, if it has several quotas, of one of them: `user:2/1s`.
///
/// It has no characters that need escaping. The colon is not valid in the name of a policy.
pub(super) fn push_name(policy: &str, quota: Option<Quota>, mut push: impl FnMut(&str)) {
    push(policy);
    if let Some(quota) = quota {
        // Without `write!`, which took 150 ns more for two quotas.
        let (count, unit) = Span(quota.window_us()).parts();
        let (mut limit, mut window) = (itoa::Buffer::new(), itoa::Buffer::new());
        let parts = [":", limit.format(quota.limit()), "/", window.format(count), unit];
        parts.into_iter().for_each(push);
    }
}

/// Returns whole seconds, rounded up: a shorter wait could end before there is room.
fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// What a client may do under one quota.
struct Pair {
    /// How many requests it can send.
    available: u32,
    /// The time within which it can send no more.
    window: Option<Duration>,
}

impl Pair {
    /// Chooses the pair that never lets a client go faster than the quota allows, see
    /// [`RateLimitHeaders`].
    fn new(quota: Quota, state: &QuotaState, is_denied: bool) -> Self {
        let some = |time: Duration| Some(time).filter(|time| !time.is_zero());
        if state.is_full() {
            return Self { available: 0, window: some(state.wait()) };
        }
        let window = match state.remaining() {
            // The end of a window could be later than `Retry-After`.
            _ if is_denied => None,
            0 => some(state.reset()),
            _ => Some(quota.window()),
        };
        Self { available: state.remaining(), window }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_rounded_up_and_at_least_one() {
        for (wait_us, seconds) in [(0, "1"), (1, "1"), (1_000_001, "2"), (3_599_000_001, "3600")] {
            let mut headers = HeaderMap::new();
            insert_retry_after(&mut headers, Duration::from_micros(wait_us));
            assert_eq!(headers[RETRY_AFTER], seconds);
        }
    }
}
