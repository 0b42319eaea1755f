//! The keys denied most: which denials are counted, and where the keys can be read.

use crate::*;

fn one_a_minute(name: &str) -> Policy {
    Policy::new(name).quota(Quota::per_minute(1))
}

/// Returns the key and the denials of each offender.
fn counts(offenders: &[Offender]) -> Vec<(&str, u64)> {
    let keys = offenders.iter().map(|it| std::str::from_utf8(it.key().as_bytes()).unwrap());
    keys.zip(offenders.iter().map(Offender::denials)).collect()
}

#[tokio::test(start_paused = true)]
async fn each_policy_counts_the_keys_it_denies() {
    let offenders = TopOffenders::new(10);
    let service = alone(one_a_minute("user"))
        .rule(Policy::new("tenant").quota(Quota::per_minute(8)), key::header("x-tenant"))
        .top_offenders(&offenders)
        .layer(service_fn(ok));
    for (user, requests) in [("mallory", 7), ("bob", 3), ("alice", 1)] {
        for _ in 0..requests {
            send(&service, request(&[("x-user-id", user), ("x-tenant", "acme")])).await;
        }
    }
    assert_eq!(counts(&offenders.of("user")), [("mallory", 6), ("bob", 2)]);
    assert_eq!(counts(&offenders.of("tenant")), [], "it had room for each denied request");
    assert!(offenders.of("other").is_empty());

    for user in 0..9 {
        let user = user.to_string();
        send(&service, request(&[("x-user-id", &user), ("x-tenant", "acme")])).await;
    }
    assert_eq!(counts(&offenders.of("tenant")), [("acme", 4)]);
    let all = offenders.all();
    let policies: Vec<_> = all.iter().map(Offender::policy).collect();
    assert_eq!(policies, ["user", "tenant", "user"], "the worst first, whatever the policy");
    offenders.clear();
    assert!(offenders.all().is_empty());
}

#[tokio::test(start_paused = true)]
async fn banned_and_shadowed_requests_are_counted_and_no_wait() {
    let offenders = TopOffenders::new(10);
    let banned = one_a_minute("banned").penalty("1/1h:1h".parse().unwrap());
    let banned = Limiter::new(banned, MemoryStore::new()).top_offenders(&offenders);
    let shadow = alone(one_a_minute("shadow")).shadow(true).top_offenders(&offenders);
    let shadow = shadow.layer(service_fn(ok));
    let waits = Limiter::new(one_a_minute("waits"), MemoryStore::new()).top_offenders(&offenders);
    for _ in 0..2 {
        waits.until_admitted("alice").await.unwrap();
    }
    assert!(offenders.all().is_empty());
    for _ in 0..4 {
        let _ = banned.check("mallory").await.unwrap();
        assert_eq!(status(&shadow, "mallory").await, 200);
    }
    advance(Duration::from_secs(60)).await;
    assert!(!banned.check("mallory").await.unwrap().is_admitted(), "the log has room");
    assert_eq!(counts(&offenders.of("banned")), [("mallory", 4)]);
    assert_eq!(counts(&offenders.of("shadow")), [("mallory", 3)]);
}

#[tokio::test(start_paused = true)]
async fn the_surest_offender_is_the_first() {
    let offenders = TopOffenders::new(2);
    let limiter = Limiter::new(one_a_minute("user"), MemoryStore::new()).top_offenders(&offenders);
    for (key, denials) in [("mallory", 9), ("bob", 8), ("eve", 3)] {
        for _ in 0..=denials {
            let _ = limiter.check(key).await.unwrap();
        }
    }
    assert_eq!(counts(&offenders.of("user")), [("mallory", 9), ("eve", 11)]);
    let one = TopOffenders::new(0);
    let limiter = limiter.top_offenders(&one);
    let _ = limiter.check("mallory").await.unwrap();
    assert_eq!(counts(&one.all()), [("mallory", 1)], "it keeps one at least");
}

#[tokio::test(start_paused = true)]
async fn debug_text_and_metrics_hold_no_key() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let offenders = TopOffenders::new(10);
    let limiter = Limiter::new(one_a_minute("user"), MemoryStore::new()).top_offenders(&offenders);
    for _ in 0..3 {
        let _ = limiter.check("mallory").await.unwrap();
    }
    assert_eq!(format!("{offenders:?}"), "TopOffenders(1 keys)");
    assert!(!format!("{:?} {limiter:?}", offenders.all()).contains("mallory"));
    assert!(recorded.names().iter().all(|name| !name.contains("mallory")));
}
