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
fn error_names_the_quota() {
    let error = "2/1s,0/60s".parse::<Policy>().unwrap_err();
    assert_eq!(error.to_string(), "quota number 2: the limit is zero: it must be at least 1");
    let error = "".parse::<Policy>().unwrap_err();
    assert!(error.to_string().starts_with("quota number 1: \"\" is not a quota"));
}

#[test]
fn names_fit_headers_and_keys() {
    for name in ["", "a b", "a:b", "a{b}", "a\"b", "é", &"x".repeat(65)] {
        assert!(matches!(Policy::try_new(name), Err(PolicyError::Name { .. })), "{name:?}");
    }
    assert_eq!(Policy::new("sms.channel-7_x").name(), "sms.channel-7_x");
}
