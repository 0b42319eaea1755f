//! Quotas, policies and networks against whatever an operator may write.

use std::time::Duration;

use http::HeaderValue;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tower_sliding_window::key::TrustedProxies;
use tower_sliding_window::{Policy, Quota};

fn quota() -> impl Strategy<Value = Quota> {
    const CENTURY_US: u64 = 100 * 365 * 24 * 3_600_000_000;
    let round = (1_u64..1000, select(vec![1, 1_000, 1_000_000, 60_000_000, 3_600_000_000]));
    let window = prop_oneof![1..=CENTURY_US, round.prop_map(|(count, unit)| count * unit)];
    (1..=u32::MAX, window).prop_map(|(limit, us)| Quota::new(limit, Duration::from_micros(us)))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_quota_reads_back_what_it_writes(quota in quota()) {
        prop_assert_eq!(quota.to_string().parse(), Ok(quota));
    }

    #[test]
    fn a_policy_reads_back_what_it_writes(quotas in vec(quota(), 1..6)) {
        let policy = quotas.into_iter().fold(Policy::new("user"), Policy::quota);
        let read: Policy = policy.to_string().parse().expect("what was written");
        prop_assert_eq!(read.named("user"), policy);
    }

    #[test]
    fn the_order_in_which_quotas_are_given_does_not_matter(
        (quotas, shuffled) in vec((1_u32..4, 1_u64..4), 0..6)
            .prop_flat_map(|it| (Just(it.clone()), Just(it).prop_shuffle())),
    ) {
        let policy = |quotas: Vec<(u32, u64)>| {
            quotas.into_iter().fold(Policy::new("user"), |policy, (limit, seconds)| {
                policy.quota(Quota::new(limit, Duration::from_secs(seconds)))
            })
        };
        let ordered = policy(quotas);
        prop_assert!(ordered.quotas().is_sorted_by_key(Quota::window));
        prop_assert_eq!(ordered, policy(shuffled));
    }

    #[test]
    fn no_text_makes_a_parser_panic(
        text in prop_oneof![
            "\\PC{0,40}",
            "[-+0-9.,/ a-z]{0,40}",
            "[0-9]{1,22}/[0-9]{1,22}(us|ms|s|m|h|d|y)",
            "[0-9a-f:./, ]{0,40}",
        ],
    ) {
        if let Ok(quota) = text.parse::<Quota>() {
            prop_assert_eq!(quota.to_string().parse(), Ok(quota));
        }
        if let Ok(policy) = text.parse::<Policy>() {
            prop_assert!(!policy.quotas().is_empty());
        }
        if let Ok(proxies) = text.parse::<TrustedProxies>() {
            prop_assert_eq!(Ok(proxies), format!(" {text} ").parse::<TrustedProxies>());
        }
        let named = Policy::try_new(&text);
        prop_assert!(named.is_err() || HeaderValue::from_str(&text).is_ok());
    }
}
