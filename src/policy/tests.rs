//! Tests of [`Policy`].

use super::*;

#[test]
fn names_fit_headers_and_keys() {
    for name in ["", "a b", "a:b", "a{b}", "a\"b", "é", &"x".repeat(65)] {
        assert!(matches!(Policy::try_new(name), Err(PolicyError::Name { .. })), "{name:?}");
    }
    assert_eq!(Policy::new("sms.channel-7_x").name(), "sms.channel-7_x");
}

fn set(quotas: [&str; 3]) -> Policies {
    let named = ["a", "b", "c"].into_iter().zip(quotas);
    Policies::new(named.map(|(name, quotas)| quotas.parse::<Policy>().unwrap().named(name)))
}

fn texts(policies: &Policies) -> Vec<String> {
    policies.all().iter().map(ToString::to_string).collect()
}

#[test]
fn an_unchanged_policy_is_not_replaced() {
    let policies = set(["1/1s", "2/1s", "3/1s"]);
    let before = policies.all();
    assert_eq!(policies.reload(set(["1/1s", "5/1s", "3/1s"])).unwrap().len(), 1);
    let after = policies.all();
    let same: Vec<bool> =
        before.iter().zip(&after).map(|(it, other)| Arc::ptr_eq(it, other)).collect();
    assert_eq!(same, [true, false, true]);
}

#[test]
fn concurrent_reloads_end_with_one_document() {
    let policies = set(["9/1s"; 3]);
    std::thread::scope(|scope| {
        for limit in 1..5 {
            let policies = policies.clone();
            let quotas = format!("{limit}/1s");
            scope.spawn(move || {
                for _ in 0..500 {
                    policies.reload(set([&quotas; 3])).unwrap();
                }
            });
        }
    });
    let texts = texts(&policies);
    assert!(texts.iter().all(|text| *text == texts[0]) && texts[0] != "9/1s", "{texts:?}");
}

#[test]
fn a_change_names_its_parts() {
    let policies = Policies::new([Policy::new("user").quota(Quota::per_minute(5))]);
    let user = Policy::new("user").quota(Quota::per_minute(4));
    let vip = Policy::new("vip").quota(Quota::per_minute(50)).penalty(Penalty::manual());
    let changes = policies.reload(Policies::new([user.clone(), vip])).unwrap();
    assert_eq!(changes[0].to_string(), "user: quotas 5/60s -> 4/60s");
    assert_eq!(changes[1].to_string(), "vip: new, quotas 50/60s, penalty manual");
    assert_eq!((changes[0].name(), changes[0].after()), ("user", &user));
    assert!(changes[0].before().is_some() && changes[1].before().is_none());
}
