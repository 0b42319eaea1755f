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
