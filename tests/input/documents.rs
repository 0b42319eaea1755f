//! What an operator writes: what is written is read back, an error says where it is, and no text makes a
//! parser panic.

use std::fmt::{Debug, Display};
use std::str::FromStr;
use std::time::Duration;

use http::HeaderValue;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tower_sliding_window::key::TrustedProxies;
use tower_sliding_window::*;

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

fn quota() -> impl Strategy<Value = Quota> {
    const CENTURY_US: u64 = 100 * 365 * 24 * 3_600_000_000;
    let round = (1_u64..1000, select(vec![1, 1_000, 1_000_000, 60_000_000, 3_600_000_000]));
    let window = prop_oneof![1..=CENTURY_US, round.prop_map(|(count, unit)| count * unit)];
    (1..=u32::MAX, window).prop_map(|(limit, us)| Quota::new(limit, Duration::from_micros(us)))
}

fn penalty() -> impl Strategy<Value = Penalty> {
    const YEAR: u64 = 365 * 24 * 3600;
    let strikes = (1..=100_u32, quota()).prop_map(|(count, it)| Quota::new(count, it.window()));
    let levels = vec(1_000_000..=YEAR * 1_000_000, 1..=100).prop_map(|mut levels| {
        levels.sort_unstable();
        levels.into_iter().map(Duration::from_micros).collect::<Vec<_>>()
    });
    let of_strikes = (strikes, levels).prop_map(|(strikes, levels)| Penalty::new(strikes, levels));
    let decay = option::of((1..=YEAR, 0..1_000_000_000_u32));
    (prop_oneof![of_strikes, Just(Penalty::manual())], decay).prop_map(|(penalty, decay)| {
        let decay = decay.map(|(seconds, nanos)| Duration::new(seconds, nanos));
        decay.into_iter().fold(penalty, Penalty::decay)
    })
}

fn unnamed() -> impl Strategy<Value = Policy> {
    use Counts::{Budget, ByteBudget, Distinct, InFlight, Requests};
    let counts = select(vec![Requests, Budget, ByteBudget, Distinct, InFlight]);
    let kept = option::of(quota());
    let parts = (vec(quota(), 1..4), option::of(penalty()), counts, kept);
    parts.prop_map(|(quotas, penalty, counts, kept)| {
        let texts: Vec<String> = quotas.iter().map(Quota::to_string).collect();
        let policy: Policy = texts.join(",").parse().unwrap();
        let policy = match counts {
            Distinct => policy.distinct(),
            Budget => policy.budget(),
            ByteBudget => policy.byte_budget(),
            InFlight => policy.in_flight(),
            _ => policy,
        };
        let policy = kept.iter().map(Quota::window).fold(policy, Policy::keep_for);
        penalty.into_iter().fold(policy, Policy::penalty)
    })
}

fn named() -> impl Strategy<Value = Policy> {
    ("[A-Za-z0-9_.-]{1,64}", unnamed()).prop_map(|(name, policy)| policy.named(name))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn all_text_forms_agree(
        (quota, penalty) in (quota(), penalty()),
        instances in 1..=u32::MAX,
        nets in vec((any::<std::net::Ipv4Addr>(), 3..=32_u8), 1..4),
    ) {
        has_one_text(quota)?;
        has_one_text(penalty)?;
        has_one_text(FailurePolicy::Open)?;
        has_one_text(FailurePolicy::Closed)?;
        has_one_text(FailurePolicy::local(instances))?;
        let nets: Vec<String> = nets.iter().map(|(ip, bits)| format!("{ip}/{bits}")).collect();
        has_one_text(TrustedProxies::default())?;
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
    fn a_set_is_read_back(policies in vec(named(), 1..5), quotas in unnamed()) {
        let Ok(set) = Policies::try_new(policies) else { return Ok(()) };
        // Its windows may be shorter, and then the logs stay.
        set.get(set.all()[0].name()).unwrap().set(quotas).unwrap();
        let [json, toml] = [serde_json::to_string(&set).unwrap(), toml::to_string(&set).unwrap()];
        let from_json: Policies = serde_json::from_str(&json).expect("what was written");
        let from_toml: Policies = toml::from_str(&toml).expect("what was written");
        prop_assert_eq!(from_json.all(), from_toml.all());
        for (read, policy) in from_json.all().iter().zip(set.all()) {
            prop_assert_eq!(read.log_name(), policy.log_name());
            prop_assert_eq!(read.quotas(), policy.quotas());
            prop_assert_eq!(read.get_penalty(), policy.get_penalty());
        }
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

    #[test]
    fn no_document_makes_the_reader_panic(text in "[\\[\\]{}=:\",a-z0-9/\\n ]{0,60}") {
        let _ = (toml::<Policies>(&text), json::<Policies>(&text), json::<Policy>(&text));
    }
}

#[test]
fn names_fit_headers_and_keys() {
    for name in ["", "a b", "a:b", "a{b}", "a\"b", "é", &"x".repeat(65)] {
        assert!(matches!(Policy::try_new(name), Err(PolicyError::Name { .. })), "{name:?}");
    }
    assert_eq!(Policy::new("sms.channel-7_x").name(), "sms.channel-7_x");
}

#[test]
fn policy_has_at_most_16_quotas() {
    let quotas = |most| (1..=most).map(|it| Quota::new(it, Duration::from_secs(it.into())));
    let made = |most| PolicyHandle::try_new(quotas(most).fold(Policy::new("user"), Policy::quota));
    let parsed = |most| quotas(most).map(|it| it.to_string()).collect::<Vec<_>>().join(",").parse();
    assert!(made(16).is_ok() && parsed(16).is_ok_and(|it: Policy| it.quotas().len() == 16));
    let errors = [made(17).unwrap_err(), parsed(17).unwrap_err()];
    assert_eq!(errors, [(); 2].map(|()| PolicyError::TooManyQuotas { quotas: 17 }));
}

#[test]
fn a_retention_and_a_decay_have_a_longest_length() {
    let (year, policy) = (Duration::from_secs(365 * 24 * 3600), Policy::from(Quota::per_minute(5)));
    assert_eq!(policy.keep_for(Duration::MAX).retention(), year * 100);
    assert_eq!(Penalty::manual().decay(Duration::MAX).decay_time(), year);
}

#[test]
fn an_error_names_the_part_of_a_text() {
    fn error<T: FromStr<Err: Display>>(text: &str) -> String {
        text.parse::<T>().err().expect(text).to_string()
    }
    for (text, part) in [
        ("", "LIMIT/WINDOW"),
        ("-5/60s", "limit \"-5\""),
        ("99999999999/60s", "limit \"99999999999\""),
        ("5/-60s", "window \"-60s\""),
        ("5/60", "window \"60\""),
        ("0/60s", "limit is zero"),
        ("5/0s", "window is zero"),
        ("5/1ns", "window \"1ns\""),
        ("5/73000d", "hundred years"),
        ("5/99999999999999999999s", "window"),
        ("5/18446744073709551615s 1000ms", "window"),
        ("5/s", "window"),
        ("5/1s2", "window"),
        ("5/é", "window"),
    ] {
        assert!(error::<Quota>(text).contains(part), "{text}: {}", error::<Quota>(text));
    }
    for (text, part) in [
        ("3/10m", "write STRIKES/TIME:LENGTH"),
        ("0/10m:1m", "the strikes, before the colon: the limit is zero"),
        ("3/10m:", "level number 1"),
        ("3/10m:1m,x", "level number 2"),
        ("3/10m:1h,1m", "level number 2 must be a second to a year long"),
        ("3/10m:10ms", "level number 1 must be a second"),
        ("3/10m:366d", "level number 1 must be a second to a year long"),
        ("101/10m:1m", "101 strikes are too many"),
        (&format!("3/10m:{}", ["1m"; 101].join(",")), "a penalty has 1 to 100 levels, not 101"),
        ("3/10m:1m decay", "\"decay\" is not an option"),
        ("3/10m:1m decay 1h decay 2h", "\"decay 1h decay 2h\" is not an option"),
        ("3/10m:1m often 2", "level number 1"),
        ("3/10m:1m decay soon", "the decay \"soon\""),
        ("3/10m:1m decay 1ms", "the decay \"1ms\""),
        ("3/10m:1m decay 366d", "the decay \"366d\""),
    ] {
        assert!(error::<Penalty>(text).starts_with(part), "{text}: {}", error::<Penalty>(text));
    }
    assert!(error::<FailurePolicy>("fail").starts_with("\"fail\" is not a failure"));
    for number in ["", "0", "-1", "x", "4294967296"] {
        let part = format!("{number:?} is not a number of instances");
        assert!(error::<FailurePolicy>(&format!("local:{number}")).starts_with(&part));
    }
    assert_eq!("local:1".parse(), Ok(FailurePolicy::default()));
    let fraction = Quota::try_new(1, Duration::from_nanos(1_500));
    assert_eq!(fraction, Err(QuotaError::FractionalWindow));
    assert_eq!("2/10m".parse(), Ok(Quota::new(2, Duration::from_secs(600))));
    assert_eq!("2/1d".parse(), Ok(Quota::per_day(2)));
}

#[test]
fn an_error_says_where_it_is() {
    const FIELDS: &str = "`name`, `quotas`, `keep_for`, `counts`, `penalty`";
    const KINDS: &str = "one of `requests`, `distinct`, `in_flight`, `budget`, `byte_budget`";
    for (text, (line, column), part) in [
        ("ip = '1/1s'\nuser = '5/sixty'", (2, 8), "quota number 1: the window \"sixty\""),
        ("[user]\nquotas = ['5/60s', '0/1s']", (2, 10), "quota number 2: the limit is"),
        ("[user]\nquotas = 5", (2, 10), "a text such as \"5/60s\", or a list"),
        ("[user]\nquotas = []", (2, 10), "invalid length 0, expected one quota or more"),
        ("[user]\nquotas = '1/1s'\nkeep_for = 'soon'", (3, 12), "the window \"soon\""),
        ("[user]\nquotas = '1/1s'\npenalty = '3/10m'", (3, 11), "write STRIKES"),
        ("[user]\nquotas = '1/1s'\ncounts = 'all'", (3, 10), &format!("`all`, expected {KINDS}")),
        ("[user]\nquotas = '1/1s'\ncounts = 5", (3, 10), "wanted string"),
        ("[user]\nquota = '5/60s'", (2, 1), FIELDS),
        ("[ip]\nquotas = '1/1s'\n[user]\npenalty = 'manual'", (3, 1), "missing field `quotas`"),
        ("user = ['5/60s']", (1, 8), "a text such as \"5/60s\", or a table"),
        ("ip = '1/1s'\n'a user' = '5/60s'", (2, 1), "\"a user\" is not a policy name"),
        ("[user]\nquotas = '1/1s'\nname = 'a b'", (3, 8), "\"a b\" is not a policy name"),
        ("user = { name = 'ip', quotas = '1/1s' }", (1, 1), "\"user\" is named \"ip\""),
    ] {
        let error = toml::<Policies>(text).unwrap_err();
        let place = format!("line {line}, column {column}");
        assert!(error.contains(&place) && error.contains(part), "{text}: {error}");
    }
    for (text, part) in [
        ("{\"user\": {\n \"quotas\": \"5/sixty\"}}", "the window \"sixty\""),
        ("{\"user\": {\n \"quotas\": \"5/60s\", \"penalty\": \"3\"}}", "write STRIKES"),
        ("{\"user\": \"5/60s\",\n \"user\": \"6/60s\"}", "two policies named \"user\""),
        ("{\"user\": {\"quotas\": \"5/60s\",\n \"quotas\": 6}}", "duplicate field `quotas`"),
        ("\n{}", "there is no policy"),
    ] {
        let error = json::<Policies>(text).unwrap_err();
        assert!(error.contains(part) && error.contains(" at line 2 column "), "{text}: {error}");
    }
    for (text, part) in [
        ("{\"name\": \"a b\", \"quotas\": \"5/60s\"}", "\"a b\" is not a policy name"),
        ("{\"plan\": \"user\"}", FIELDS),
        ("7", "a text such as \"5/60s\", or a table"),
    ] {
        let error = json::<Policy>(text).unwrap_err();
        assert!(error.contains(part), "{text}: {error}");
    }
}
