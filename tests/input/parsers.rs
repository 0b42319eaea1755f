//! Quotas, policies, networks, failure policies and Redis URLs against anything that an operator may
//! write.

use std::net::IpAddr;
use std::time::Duration;

use http::HeaderValue;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tower_sliding_window::key::TrustedProxies;
use tower_sliding_window::store::RedisServers;
use tower_sliding_window::{FailurePolicy, Penalty, Policy, Quota};

/// What no parser here takes anywhere, so that whatever holds it is the wrong part.
const WRONG: &str = "[#!?x-z]{1,12}";

pub(crate) fn quota() -> impl Strategy<Value = Quota> {
    const CENTURY_US: u64 = 100 * 365 * 24 * 3_600_000_000;
    let round = (1_u64..1000, select(vec![1, 1_000, 1_000_000, 60_000_000, 3_600_000_000]));
    let window = prop_oneof![1..=CENTURY_US, round.prop_map(|(count, unit)| count * unit)];
    (1..=u32::MAX, window).prop_map(|(limit, us)| Quota::new(limit, Duration::from_micros(us)))
}

pub(crate) fn penalty() -> impl Strategy<Value = Penalty> {
    const YEAR_US: u64 = 365 * 24 * 3_600_000_000;
    let strikes = (1..=100_u32, quota()).prop_map(|(count, it)| Quota::new(count, it.window()));
    let levels = vec(1_000_000..=YEAR_US, 1..=100).prop_map(|mut levels| {
        levels.sort_unstable();
        levels.into_iter().map(Duration::from_micros).collect::<Vec<_>>()
    });
    (strikes, levels).prop_map(|(strikes, levels)| Penalty::new(strikes, levels))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_is_written_is_read_back(
        (quota, quotas, penalty) in (quota(), vec(quota(), 1..6), penalty()),
        instances in 1..=u32::MAX,
    ) {
        prop_assert_eq!(quota.to_string().parse(), Ok(quota));
        let policy = quotas.into_iter().fold(Policy::new("user"), Policy::quota);
        let read: Policy = policy.to_string().parse().expect("what was written");
        prop_assert_eq!(read.named("user"), policy);
        prop_assert_eq!(penalty.to_string().parse(), Ok(penalty));
        let local = FailurePolicy::local(instances);
        for policy in [FailurePolicy::Open, FailurePolicy::Closed, local] {
            prop_assert_eq!(policy.to_string().parse(), Ok(policy));
        }
    }

    #[test]
    fn penalty_errors_name_the_wrong_part(
        penalty in penalty(),
        (wrong, place) in (WRONG, any::<prop::sample::Index>()),
    ) {
        let text = penalty.to_string();
        let (strikes, levels) = text.split_once(':').expect("what was written");
        let error = |text: String| text.parse::<Penalty>().unwrap_err().to_string();
        let named = |error: &str| error.contains(&format!("{wrong:?}"));

        let spoilt = error(format!("{wrong}:{levels}"));
        prop_assert!(spoilt.starts_with("the strikes, before the colon: "), "{}", spoilt);
        let mut levels: Vec<&str> = levels.split(',').collect();
        let position = place.index(levels.len());
        levels[position] = &wrong;
        let spoilt = error(format!("{strikes}:{}", levels.join(",")));
        prop_assert!(spoilt.starts_with(&format!("level number {}: ", position + 1)), "{}", spoilt);
        prop_assert!(named(&spoilt), "{}", spoilt);
        prop_assert!(error(strikes.to_owned()).contains("STRIKES/TIME:LENGTH"));
    }

    #[test]
    fn order_of_quotas_does_not_matter(
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
    fn errors_name_the_wrong_part_only(
        quotas in vec(quota(), 0..4),
        (wrong, place) in (WRONG, any::<prop::sample::Index>()),
        proxies in vec(any::<IpAddr>(), 0..4),
    ) {
        let quoted = format!("{wrong:?}");
        let named = |error: String| error.contains(&quoted);
        for (text, part) in [
            (format!("{wrong}/60s"), "the limit"),
            (format!("5/{wrong}"), "the window"),
            (wrong.clone(), "LIMIT/WINDOW"),
        ] {
            let error = text.parse::<Quota>().unwrap_err().to_string();
            prop_assert!(error.contains(part) && named(error.clone()), "{}: {}", text, error);
            let position = place.index(quotas.len() + 1);
            let mut list: Vec<_> = quotas.iter().map(Quota::to_string).collect();
            list.insert(position, text);
            let in_list = list.join(", ").parse::<Policy>().unwrap_err().to_string();
            prop_assert_eq!(in_list, format!("quota number {}: {}", position + 1, error));
        }
        let mut list: Vec<_> = proxies.iter().map(IpAddr::to_string).collect();
        list.insert(place.index(list.len() + 1), wrong.clone());
        prop_assert!(named(list.join(",").parse::<TrustedProxies>().unwrap_err().to_string()));

        let error = format!("local:{wrong}").parse::<FailurePolicy>().unwrap_err().to_string();
        prop_assert!(error.contains("number of instances") && named(error));
        prop_assert!(named(wrong.parse::<FailurePolicy>().unwrap_err().to_string()));
        let spoilt = format!("user {wrong}");
        let error = Policy::try_new(&spoilt).unwrap_err().to_string();
        let quoted = format!("{spoilt:?}");
        prop_assert!(error.contains(&quoted), "{}", error);
    }

    #[test]
    fn bad_url_error_hides_the_password(
        scheme in "[a-z]{0,8}|redis|rediss|unix",
        rest in "\\PC{0,20}|[/@:?#\\[\\]%0-9a-z.]{0,30}",
    ) {
        let url = format!("{scheme}://user:hunter2@{rest}");
        let shown = match RedisServers::try_from(url.as_str()) {
            Ok(servers) => format!("{servers:?}"),
            Err(error) => format!("{error} {error:?}"),
        };
        prop_assert!(!shown.contains("hunter2"), "{}", shown);
    }

    #[test]
    fn no_text_makes_a_parser_panic(
        text in prop_oneof![
            "(local|open|closed|LOCAL)?:?[-+0-9]{0,12}",
            "rediss?://[/@:?#\\[\\]%0-9a-z.]{0,30}",
            "\\PC{0,40}",
            "[-+0-9.,/ a-z]{0,40}",
            "[0-9]{1,22}/[0-9]{1,22}(us|ms|s|m|h|d|y)",
            "[0-9a-f:./, ]{0,40}",
            "[0-9]{1,3}/[0-9]{1,3}[smhd]:([0-9]{0,4}[smhdx],?){0,4}",
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
        if let Ok(penalty) = text.parse::<Penalty>() {
            prop_assert_eq!(penalty.to_string().parse(), Ok(penalty));
        }
        if let Ok(policy) = text.parse::<FailurePolicy>() {
            prop_assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        let _ = RedisServers::try_from(text.as_str());
        let named = Policy::try_new(&text);
        prop_assert!(named.is_err() || HeaderValue::from_str(&text).is_ok());
    }
}
