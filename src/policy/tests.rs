//! Tests of [`Policy`].

use super::*;

#[test]
fn quotas_are_ordered_by_window() {
    let policy: Policy = "100/1h, 2/1s,5/60s".parse().unwrap();
    assert_eq!(policy.to_string(), "2/1s,5/60s,100/1h");
    assert_eq!(policy.longest_window_us(), 3_600_000_000);
    assert_eq!(policy.to_string().parse::<Policy>().unwrap(), policy);
}

#[test]
fn names_fit_headers_and_keys() {
    for name in ["", "a b", "a:b", "a{b}", "a\"b", "é", &"x".repeat(65)] {
        assert!(matches!(Policy::try_new(name), Err(PolicyError::Name { .. })), "{name:?}");
    }
    assert_eq!(Policy::new("sms.channel-7_x").name(), "sms.channel-7_x");
}
