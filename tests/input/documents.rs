//! Configurations that serde reads: what is written is read back, and an error says where it is.

use std::fmt::{Debug, Display};
use std::str::FromStr;
use std::time::Duration;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tower_sliding_window::key::TrustedProxies;
use tower_sliding_window::{BanCursor, FailurePolicy, Penalty, Policies, Policy, Quota};

use crate::parsers::{penalty, quota};

fn json<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

fn toml<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    toml::from_str(text).map_err(|error| error.to_string())
}

/// Checks that Display, FromStr and serde have one text for a value.
fn has_one_text<T>(value: T) -> Result<(), TestCaseError>
where
    T: Display + FromStr<Err: Debug> + Serialize + DeserializeOwned + PartialEq + Debug,
{
    let text = value.to_string();
    let written = serde_json::to_value(&value).expect("it can be written");
    prop_assert_eq!(written.as_str(), Some(text.as_str()));
    prop_assert_eq!(&text.parse::<T>().expect("what was written"), &value);
    prop_assert_eq!(serde_json::from_value::<T>(written).expect("what was written"), value);
    Ok(())
}

fn full_penalty() -> impl Strategy<Value = Penalty> {
    const YEAR: u64 = 365 * 24 * 3600;
    let decay = option::of((1..=YEAR, 0..1_000_000_000_u32));
    (prop_oneof![penalty(), Just(Penalty::manual())], decay, 0..=100_u8).prop_map(
        |(penalty, decay, jitter)| {
            let penalty = match decay {
                Some((seconds, nanos)) => penalty.decay(Duration::new(seconds, nanos)),
                None => penalty,
            };
            penalty.jitter(jitter)
        },
    )
}

fn unnamed() -> impl Strategy<Value = Policy> {
    let parts = (vec(quota(), 1..4), vec(quota(), 0..3), option::of(full_penalty()));
    parts.prop_map(|(quotas, candidates, penalty)| {
        let texts: Vec<String> = quotas.iter().map(Quota::to_string).collect();
        let policy: Policy = texts.join(",").parse().unwrap();
        let policy = candidates.into_iter().fold(policy, Policy::candidate);
        penalty.into_iter().fold(policy, Policy::penalty)
    })
}

fn named() -> impl Strategy<Value = Policy> {
    ("[A-Za-z0-9_.-]{1,64}", unnamed()).prop_map(|(name, policy)| policy.named(name))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn all_text_forms_agree(
        (quota, penalty) in (quota(), full_penalty()),
        (instances, position) in (1..=u32::MAX, any::<u64>()),
        nets in vec((any::<std::net::Ipv4Addr>(), 3..=32_u8), 1..4),
    ) {
        has_one_text(quota)?;
        has_one_text(penalty)?;
        has_one_text(FailurePolicy::Open)?;
        has_one_text(FailurePolicy::Closed)?;
        has_one_text(FailurePolicy::local(instances))?;
        has_one_text(BanCursor::new(position))?;
        let nets: Vec<String> = nets.iter().map(|(ip, bits)| format!("{ip}/{bits}")).collect();
        has_one_text(nets.join(", ").parse::<TrustedProxies>().unwrap())?;
    }

    #[test]
    fn a_policy_is_read_back(policy in prop_oneof![named(), unnamed()]) {
        let written = serde_json::to_string(&policy).unwrap();
        let read: Policy = serde_json::from_str(&written).expect("what was written");
        prop_assert_eq!(&read, &policy);
        prop_assert_eq!(read.log_name(), policy.log_name());
        let bare: Policy = serde_json::from_value(policy.to_string().into()).unwrap();
        prop_assert_eq!(bare.quotas(), policy.quotas());
    }

    #[test]
    fn a_set_is_read_back(policies in vec(named(), 1..5)) {
        let Ok(set) = Policies::try_new(policies) else { return Ok(()) };
        let [json, toml] = [serde_json::to_string(&set).unwrap(), toml::to_string(&set).unwrap()];
        let from_json: Policies = serde_json::from_str(&json).expect("what was written");
        let from_toml: Policies = toml::from_str(&toml).expect("what was written");
        prop_assert_eq!(from_json.all(), set.all());
        prop_assert_eq!(from_toml.all(), set.all());
    }

    #[test]
    fn no_document_makes_the_reader_panic(text in "[\\[\\]{}=:\",a-z0-9/\\n ]{0,60}") {
        let _ = (toml::<Policies>(&text), json::<Policies>(&text), json::<Policy>(&text));
    }
}

#[test]
fn a_policy_is_a_text_or_a_table() {
    let bare: Policy = json(r#""2/1s,5/60s""#).unwrap();
    assert_eq!((bare.name(), bare.to_string().as_str()), ("default", "2/1s,5/60s"));
    let table = r#"{"name": "user", "quotas": ["5/60s", "2/1s"], "candidates": "4/60s,3/60s",
                    "penalty": "3/10m:1m,1h"}"#;
    let whole = Policy::new("user")
        .quota(Quota::per_second(2))
        .quota(Quota::per_minute(5))
        .candidate(Quota::per_minute(4))
        .candidate(Quota::per_minute(3))
        .penalty("3/10m:1m,1h".parse().unwrap());
    assert_eq!(json::<Policy>(table).unwrap(), whole);
    let set = "user = { quotas = '5/60s', penalty = 'manual' }\nip = '100/60s'";
    let set = toml::<Policies>(set).unwrap().all();
    assert_eq!(set[0].to_string(), "100/60s");
    assert_eq!(set[1].get_penalty(), Some(&Penalty::manual()));
}

#[test]
fn an_error_says_where_it_is() {
    for (text, parts) in [
        (
            "ip = '1/1s'\nuser = '5/sixty'",
            ["line 2, column 8", "policy \"user\": quota number 1: the window \"sixty\""],
        ),
        (
            "[user]\nquotas = ['5/60s', '0/1s']",
            ["line 2, column 20", "policy \"user\", quotas: quota number 2: the limit is zero"],
        ),
        (
            "[user]\nquotas = 5",
            ["line 2, column 10", "policy \"user\", quotas: a text such as \"5/60s\""],
        ),
        (
            "[user]\nquotas = '5/60s'\npenalty = '3/10m'",
            ["line 3, column 11", "policy \"user\", penalty: write STRIKES/TIME"],
        ),
        (
            "[user]\nquotas = '5/60s'\ncandidates = ['x']",
            ["line 3, column 15", "policy \"user\", candidates: quota number 1"],
        ),
        (
            "[user]\nquota = '5/60s'",
            [
                "line 2, column 1",
                "policy \"user\": the field \"quota\" is unknown: there are quotas, keep_for, candidates, penalty",
            ],
        ),
        (
            "[user]\nname = 'ip'\nquotas = '5/60s'",
            ["line 2, column 1", "the field \"name\" is unknown"],
        ),
        (
            "[ip]\nquotas = '1/1s'\n[user]\npenalty = 'manual'",
            ["line 3, column 1", "policy \"user\": the field `quotas` is missing"],
        ),
        (
            "[user]\nquotas = []",
            ["line 2, column 10", "policy \"user\", quotas: the list is empty"],
        ),
        ("'a user' = '5/60s'", ["line 1, column 1", "\"a user\" is not a policy name"]),
        ("user = '5/60s'\nuser = '6/60s'", ["line 2, column 1", "duplicate key"]),
        (
            "user = ['5/60s']",
            ["line 1, column 8", "policy \"user\": a text such as \"5/60s\", or a table"],
        ),
        ("[user\n", ["line 1, column 6", ""]),
        ("", ["there is no policy", ""]),
    ] {
        let error = toml::<Policies>(text).unwrap_err();
        assert!(parts.iter().all(|part| error.contains(part)), "{parts:?}: {error}");
    }
    for (text, parts) in [
        (
            "{\"ip\": \"1/1s\",\n \"user\": \"5/60\"}",
            ["line 2", "policy \"user\": quota number 1: the window \"60\""],
        ),
        ("{\"user\": \"5/60s\",\n \"user\": \"6/60s\"}", ["line 2", "two policies named \"user\""]),
        (
            "{\"user\": {\"quotas\": \"5/60s\",\n \"quotas\": \"6/60s\"}}",
            ["line 2", "policy \"user\": the field \"quotas\" is there twice"],
        ),
        (
            "{\"user\": {\"quotas\": \"5/60s\",\n \"penalty\": null}}",
            ["line 2", "policy \"user\", penalty: a text such as"],
        ),
        ("{\"user\": null}", ["line 1 column 13", "policy \"user\": a text such as"]),
        ("[]", ["line 1", "policies by name"]),
        ("{}", ["there is no policy", ""]),
        ("", ["line 1", "EOF"]),
    ] {
        let error = json::<Policies>(text).unwrap_err();
        assert!(parts.iter().all(|part| error.contains(part)), "{parts:?}: {error}");
    }
    for (text, part) in [
        (
            "{\"name\": \"a b\", \"quotas\": \"5/60s\"}",
            "policy, name: \"a b\" is not a policy name",
        ),
        ("{\"name\": \"user\"}", "policy: the field `quotas` is missing"),
        ("{\"plan\": \"user\"}", "there are name, quotas, keep_for, candidates, penalty"),
        ("7", "policy: a text such as \"5/60s\", or a table"),
    ] {
        let error = json::<Policy>(text).unwrap_err();
        assert!(error.contains(part), "{part}: {error}");
    }
    let error = json::<Quota>("5").unwrap_err();
    assert!(error.contains("expected a quota in quotation marks, such as \"5/60s\""), "{error}");
}
