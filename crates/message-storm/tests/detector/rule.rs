//! Rules: what is valid, and how a configuration writes it.

use std::time::Duration;

use message_storm::{StormDetector, StormRule};
use proptest::prelude::*;
use proptest::{option, sample};
use tower_sliding_window::Quota;

fn per_minute(limit: u32) -> StormRule {
    StormRule::new(Quota::per_minute(limit))
}

#[test]
fn errors_name_the_invalid_part() {
    let error = |rule: StormRule| StormDetector::try_in_process(rule).unwrap_err().to_string();
    assert!(error(per_minute(10).named("a:b")).contains("\"a:b\" is not a name"));
    assert!(error(per_minute(10).named("")).contains("\"\" is not a name"));
    assert!(error(per_minute(10).named("x".repeat(65))).contains("1 to 64 characters"));
    assert!(error(per_minute(10).ends_below(0)).contains("can't end below 0"));
    assert!(error(per_minute(10).ends_below(11)).contains("to the threshold of 10"));
    assert!(error(per_minute(10).cap(10)).contains("cap of 10 must be above the threshold of 10"));
    assert!(error(per_minute(10).cap(1_000_001)).contains("at most 1000000"));
    assert!(error(per_minute(u32::MAX)).contains("above the threshold of 4294967295"));
    assert!(error(per_minute(10).cool_down(Duration::MAX)).contains("cool-down"));
    for time in [Duration::ZERO, Duration::from_millis(999), Duration::MAX] {
        let detector = StormDetector::in_process(Quota::per_minute(10));
        let error = detector.try_remind_every(time).unwrap_err().to_string();
        assert!(error.contains("at least a second"), "{error}");
    }
}

#[test]
#[should_panic(expected = "can't end below 0")]
fn in_process_panics_on_an_invalid_rule() {
    let _ = StormDetector::in_process(per_minute(10).ends_below(0));
}

#[test]
fn defaults_are_valid_at_every_threshold() {
    for limit in [1, 2, 3, 99, 100, 101, 1_000, 99_999, 999_999] {
        assert_eq!(per_minute(limit).validate(), Ok(()), "{limit}");
        let extreme = per_minute(limit).ends_below(limit).cap(limit + 1).named("x".repeat(64));
        assert_eq!(extreme.validate(), Ok(()), "{limit}");
    }
    let rule = per_minute(100);
    assert_eq!((rule.name(), rule.threshold()), ("default", Quota::per_minute(100)));
    assert_eq!(rule, per_minute(100).ends_below(50).cap(1_000).cool_down(Duration::ZERO));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_rule_is_read_back(
        limit in 1..1_000_000_u32,
        window in sample::select(vec!["7us", "1500ms", "90s", "10m", "3h", "30d"]),
        name in option::of("[a-z]{1,9}"),
        (ends_below, cap, cool_down) in (any::<u32>(), any::<u32>(), 0..1_000_000_000_u64),
    ) {
        let rule = StormRule::new(format!("{limit}/{window}").parse().unwrap())
            .ends_below(1 + ends_below % limit)
            .cap(limit + 1 + cap % (1_000_000 - limit))
            .cool_down(Duration::from_micros(cool_down));
        let rule = name.into_iter().fold(rule, StormRule::named);
        for rule in [rule, per_minute(limit)] {
            let written = serde_json::to_string(&rule).unwrap();
            prop_assert_eq!(serde_json::from_str::<StormRule>(&written).expect("a rule"), rule);
        }
    }
}

#[test]
fn a_document_is_a_table_with_a_threshold() {
    let text =
        "threshold = '100/60s'\nname = 'chat'\nends_below = 20\ncap = 5000\ncool_down = '5m'";
    let rule: StormRule = toml::from_str(text).unwrap();
    let expected = per_minute(100).named("chat").ends_below(20).cap(5_000);
    assert_eq!(rule, expected.cool_down(Duration::from_secs(300)));
    let written = serde_json::to_string(&rule).unwrap();
    assert!(written.contains("\"cool_down\":\"300s\""), "{written}");
    let none: StormRule = toml::from_str("threshold = '100/60s'\ncool_down = '0s'").unwrap();
    assert_eq!(none, per_minute(100));
    assert_eq!(
        serde_json::to_string(&none).unwrap(),
        "{\"threshold\":\"100/60s\",\"ends_below\":50,\"cap\":1000}"
    );
    for (text, part) in [
        ("threshold = '100/60s'\nends_below = 101", "can't end below 101"),
        ("threshold = '100/60s'\nname = 'a:b'", "\"a:b\" is not a name"),
        ("threshold = '100/60s'\ncool_down = 'long'", "the cool-down \"long\""),
        ("threshold = '100/60s'\ncool_down = '73000d'", "cool-down is longer than a hundred years"),
        ("threshold = '100/60s'\ncooldown = '5m'", "unknown field `cooldown`"),
        ("cap = 5", "missing field `threshold`"),
    ] {
        let error = toml::from_str::<StormRule>(text).unwrap_err().to_string();
        assert!(error.contains(part), "{part}: {error}");
    }
}
