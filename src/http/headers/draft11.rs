//! `RateLimit` and `RateLimit-Policy` as in
//! [draft 11 of the RateLimit fields](https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-ratelimit-headers-11).
//! All that depends on the draft's names and format is here.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::{Pair, push_name, seconds};
use crate::policy::Counts;
use crate::quota::Quota;
use crate::window::Usage;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Inserts `RateLimit-Policy`, which shows the quotas, and `RateLimit`, which shows what is left.
///
/// Each is a list of items with parameters, as in
/// [RFC 9651, section 3.1](https://www.rfc-editor.org/rfc/rfc9651#section-3.1).
pub(super) fn insert(headers: &mut HeaderMap, usage: &Usage) {
    let (mut policies, mut limits) = (String::with_capacity(64), String::with_capacity(64));
    for (log, outcome) in usage.logs() {
        let counts = log.policy.counts();
        if counts == Counts::Distinct {
            // The draft has no unit for it.
            continue;
        }
        let (name, quotas) = (log.policy.name(), log.policy.quotas());
        for (quota, state) in quotas.iter().zip(outcome.quotas()) {
            // A single quota has the name of its policy.
            let own = (quotas.len() > 1).then_some(*quota);
            push_item(&mut policies, name, own);
            push_parameter(&mut policies, ";q=", u64::from(quota.limit()));
            match counts {
                Counts::InFlight => policies.push_str(";qu=\"concurrent-requests\""),
                Counts::ByteBudget => policies.push_str(";qu=\"content-bytes\""),
                _ => {}
            }
            if counts != Counts::InFlight {
                push_parameter(&mut policies, ";w=", seconds(quota.window()));
            }
            if !outcome.is_read() {
                continue;
            }
            let Pair { available, window } = Pair::new(*quota, state, usage.is_denied());
            push_item(&mut limits, name, own);
            push_parameter(&mut limits, ";r=", u64::from(available));
            if let Some(window) = window.filter(|_| counts != Counts::InFlight) {
                push_parameter(&mut limits, ";t=", seconds(window));
            }
        }
    }
    for (name, list) in [(RATE_LIMIT_POLICY, policies), (RATE_LIMIT, limits)] {
        if !list.is_empty() {
            super::insert(headers, name, field(list));
        }
    }
}

fn push_item(list: &mut String, policy: &str, quota: Option<Quota>) {
    list.push_str(if list.is_empty() { "\"" } else { ", \"" });
    push_name(policy, quota, |part| list.push_str(part));
    list.push('"');
}

fn push_parameter(list: &mut String, name: &str, value: u64) {
    // Without `write!`, which made a denied request 7 % slower in total.
    list.push_str(name);
    list.push_str(itoa::Buffer::new().format(value));
}

fn field(text: String) -> HeaderValue {
    HeaderValue::from_maybe_shared(bytes::Bytes::from(text))
        .expect("names and numbers are visible ASCII")
}
