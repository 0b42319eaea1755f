//! A reload replaces a set of policies, and every log keeps what it holds.

use crate::*;

test_support::on_every_store!(
    reload_keeps_the_history;
    without_deny_cache:
    permit_outlives_other_limits_and_a_ban,
    permit_outlives_an_override,
);

const LEASE: Duration = Duration::from_secs(1);

fn policies(text: &str) -> Policies {
    toml::from_str(text).unwrap_or_else(|error| panic!("{error}"))
}

async fn remaining(policies: &Policies, name: &str, store: &(impl Store + Clone)) -> u32 {
    left(&limiter(policies.get(name).unwrap(), store.clone())).await
}

async fn reload_keeps_the_history(store: impl Store + Clone) {
    let set = policies("user = '3/1h'\nip = { quotas = '9/1h', penalty = '1/1h:1h' }");
    let user = set.get("user").unwrap();
    let limiter = limiter(&user, store.clone());
    for admitted in [true, true, true, false] {
        assert_eq!(admit(&limiter, "alice").await, admitted);
    }
    let changes = set.reload(policies("user = '5/1h'\nip = '9/1h'\nvip = '7/1h'")).unwrap();
    let changes: Vec<String> = changes.iter().map(ToString::to_string).collect();
    let expected =
        ["ip: penalty 1/1h:1h -> none", "user: quotas 3/1h -> 5/1h", "vip: new, quotas 7/1h"];
    assert_eq!(changes, expected);
    assert_eq!(user.get().to_string(), "5/1h", "the old handle");
    assert_eq!(remaining(&set, "user", &store).await, 2);
    assert_eq!(remaining(&set, "vip", &store).await, 7);
    for _ in 0..2 {
        assert!(admit(&limiter, "alice").await);
    }
    set.reload(policies("user = '2/1h'\nip = '9/1h'\nvip = '7/1h'")).unwrap();
    assert!(!admit(&limiter, "alice").await);
    let shorter = set.reload(policies("user = '7/60s'\nip = '9/1h'\nvip = '7/1h'")).unwrap();
    let expected = "quotas 2/1h -> 7/60s, logs kept for 1h: other processes need keep_for 1h";
    assert_eq!(shorter[0].to_string(), format!("user: {expected}"));
    let restarted = policies("user = { quotas = '7/60s', keep_for = '1h' }");
    assert_eq!(remaining(&restarted, "user", &store).await, 2, "of one log");
    assert!(admit(&limiter, "alice").await);
    set.reload(policies("user = '7/1h'\nip = '9/1h'\nvip = '7/1h'")).unwrap();
    assert_eq!(remaining(&set, "user", &store).await, 1, "the log was kept for an hour");
    assert_eq!(set.reload(set.clone()).unwrap(), [], "with itself");
    let kept = policies("user = { quotas = '7/1h', keep_for = '1h' }\nip = '9/1h'\nvip = '7/1h'");
    assert_eq!(set.reload(kept).unwrap(), [], "the retention is the same");
}

/// The request runs, whatever was decided since.
async fn permit_outlives_other_limits_and_a_ban(store: impl Store + Clone) {
    let jobs = |limit, lease| {
        let policy = Policy::new("jobs").quota(Quota::new(limit, lease)).in_flight();
        policy.penalty(Penalty::manual())
    };
    let policy = PolicyHandle::new(jobs(1, LEASE));
    let limiter = limiter(&policy, store.clone());
    let acquire = async || limiter.acquire("tenant", Duration::ZERO).await;
    let _first = acquire().await.unwrap();
    policy.set(jobs(1, LEASE / 10)).unwrap();
    sleep(LEASE / 5).await;
    assert!(acquire().await.is_err(), "the first has renewed nothing yet, and runs");
    policy.set(jobs(2, LEASE)).unwrap();
    let _second = acquire().await.unwrap();
    sleep(LEASE * 3 / 2).await;
    assert!(acquire().await.is_err(), "the first began under a limit of 1, and two are running");
    let bans = Bans::new(&policy, store);
    bans.impose("tenant", LEASE * 9, "").await.unwrap();
    sleep(LEASE * 3 / 2).await;
    bans.lift("tenant").await.unwrap();
    assert!(acquire().await.is_err(), "they have run through the ban");
}

async fn permit_outlives_an_override(store: impl Store + Clone) {
    let jobs = Policy::new("jobs").quota(Quota::new(1, LEASE)).in_flight();
    let (tenants, tenant) = (Overrides::new(jobs), Key::from("tenant"));
    tenants.set(&tenant, "2/1h".parse().unwrap()).unwrap();
    let limiter = || limiter(tenants.get(&tenant).unwrap(), store.clone());
    let _permit = limiter().acquire(&tenant, Duration::ZERO).await.unwrap();
    tenants.remove(&tenant);
    sleep(LEASE * 3 / 2).await;
    assert!(limiter().acquire(&tenant, Duration::ZERO).await.is_err(), "it runs");
}

#[test]
fn broken_set_changes_nothing() {
    let set = policies("user = '3/1h'\nip = '9/1h'");
    for (text, names) in [
        ("user = '5/1h'", "\"ip\""),
        ("users = '5/1h'\nip = '8/1h'", "\"user\""),
        ("vip = '5/1h'", "\"ip\", \"user\""),
    ] {
        let error = set.reload(policies(text)).unwrap_err();
        assert_eq!(error, PolicyError::Missing { names: names.to_owned() });
        assert!(error.to_string().contains("can't be removed or renamed"), "{error}");
        assert_eq!(format!("{set:?}"), r#"{Policy("ip": 9/1h), Policy("user": 3/1h)}"#);
        assert!(set.get("users").is_none() && set.get("vip").is_none());
    }
    let twice = [Quota::per_second(1), Quota::per_second(2)].map(|it| Policy::new("a").quota(it));
    let error = Policies::try_new(twice).unwrap_err();
    assert_eq!(error, PolicyError::Duplicate { name: "a".to_owned() });
    assert_eq!(Policies::try_new([]).unwrap_err(), PolicyError::NoPolicy);
    assert!(matches!(Policies::try_new([Policy::new("a")]), Err(PolicyError::NoQuota { .. })));
}

#[test]
fn concurrent_reloads_end_with_one_document() {
    let document =
        |limit| policies(&format!("a = '{limit}/1s'\nb = '{limit}/1s'\nc = '{limit}/1s'"));
    let (set, documents) = (document(9), [1, 2, 3, 4].map(document));
    let together = Barrier::new(documents.len());
    for _ in 0..500 {
        thread::scope(|scope| {
            for document in &documents {
                scope.spawn(|| {
                    together.wait();
                    set.reload(document.clone()).unwrap();
                });
            }
        });
        let texts = ["a", "b", "c"].map(|name| set.get(name).unwrap().get().to_string());
        assert!(texts.iter().all(|text| *text == texts[0]) && texts[0] != "9/1s", "{texts:?}");
    }
}
