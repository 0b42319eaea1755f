//! What `Limiter::explain` says is what the log holds, and what a check then gets.

use crate::*;

test_support::on_every_store!(
    explanation_lists_each_admission_and_what_a_denial_waits_for,
    ban_record_is_explained,
    long_list_is_cut,
);

const LOG: &str = "tsw:{=alice}:user:1h:budget";

fn limiter(policy: &str, store: impl Store) -> Limiter {
    let quotas = policy.split(',').map(|quota| quota.parse().unwrap());
    Limiter::new(quotas.fold(Policy::new("user"), Policy::quota).budget(), store)
}

async fn explain(limiter: &Limiter) -> Explanation {
    limiter.explain("alice").await.unwrap()
}

async fn explanation_lists_each_admission_and_what_a_denial_waits_for(store: impl Store) {
    let limiter = limiter("3/3s,4/1h", store);
    let empty = explain(&limiter).await;
    assert!(empty.admitted && empty.ban.is_none() && empty.quotas[0].admissions.is_empty());
    let first = admit_cost(&limiter, 2).await;
    sleep(Duration::from_millis(5)).await;
    let second = admit_cost(&limiter, 1).await;

    let explained = explain(&limiter).await;
    assert!(!explained.admitted, "{explained:?}");
    assert_eq!((explained.policy.as_str(), explained.cost), ("user", 1));
    assert_eq!(explained.decided_by, DecidedBy::Store);
    let [short, long] = &explained.quotas[..] else { panic!("{explained:?}") };
    assert_eq!((short.taken, short.free, short.waits_for), (3, 0, Some(first.id())));
    assert_eq!((short.wait, short.wait), (explained.retry_after, short.admissions[0].leaves_in));
    assert_eq!((long.taken, long.free, long.waits_for, long.wait), (3, 1, None, Duration::ZERO));
    let listed: Vec<_> = long.admissions.iter().map(|it| (it.id, it.cost)).collect();
    assert_eq!(listed, [(first.id(), 2), (second.id(), 1)]);
    let timestamps: Vec<_> = long.admissions.iter().map(|it| Some(it.timestamp)).collect();
    assert_eq!(timestamps, [first.timestamp(), second.timestamp()]);
    for quota in [short, long] {
        for admission in &quota.admissions {
            assert_eq!(admission.age, explained.timestamp - admission.timestamp);
            assert_eq!(admission.age + admission.leaves_in, quota.quota.window());
        }
    }
    let costly = limiter.explain_cost("alice", 3).await.unwrap();
    assert_eq!((costly.cost, costly.quotas[0].waits_for), (3, Some(second.id())));
    let error = limiter.explain_cost("alice", 4).await.unwrap_err();
    assert!(matches!(error, StoreError::CostAboveLimit { cost: 4, limit: 3 }), "{error}");

    assert!(retry_after(&limiter, "alice").await <= explained.retry_after);
    sleep(explained.retry_after).await;
    admit_cost(&limiter, 1).await;
}

async fn ban_record_is_explained(store: impl Store + Clone) {
    let quota = Quota::new(1, Duration::from_millis(300));
    let policy = || Policy::new("user").quota(quota).penalty("2/10m:1m,1h".parse().unwrap());
    let limiter = Limiter::new(policy(), store.clone());
    admit_cost(&limiter, 1).await;
    assert_eq!(explain(&limiter).await.ban.unwrap().strikes, [] as [Duration; 0]);
    assert!(!limiter.check("alice").await.unwrap().is_admitted());

    let explained = explain(&limiter).await;
    let ban = explained.ban.unwrap();
    assert_eq!((ban.remaining, ban.reason.as_str()), (Duration::ZERO, ""));
    assert_eq!((ban.strikes.len(), ban.limit), (1, Some("2/10m".parse().unwrap())));
    assert_eq!((ban.level, ban.next_ban), (0, Some(Duration::from_secs(60))));
    assert_eq!(ban.episode + ban.strikes[0], quota.window());

    let bans = Bans::new(policy(), store);
    bans.impose("alice", Duration::from_secs(600), "sells \"accounts\"").await.unwrap();
    sleep(Duration::from_millis(400)).await;
    let explained = explain(&limiter).await;
    let ban = explained.ban.clone().unwrap();
    assert_eq!(ban.reason, "sells \"accounts\"");
    assert!(!explained.admitted && explained.retry_after == ban.remaining, "{explained:?}");
    assert!(ban.remaining > Duration::from_secs(590), "{explained:?}");
    assert_eq!(ban.strikes.len(), 1, "an explanation is no strike");
}

async fn long_list_is_cut(store: impl Store) {
    let limiter = limiter("6000/1h", store);
    let first = admit_cost(&limiter, 1_000).await;
    for _ in 1..2_100 {
        admit_cost(&limiter, 2).await;
    }
    let explained = limiter.explain_cost("alice", 1_000).await.unwrap();
    let quota = &explained.quotas[0];
    assert_eq!((quota.taken, quota.free, quota.waits_for), (5_198, 802, Some(first.id())));
    let costs: u32 = quota.admissions.iter().map(|it| it.cost).sum();
    assert_eq!((quota.admissions.len(), costs, quota.not_listed), (2_048, 5_094, 104));
}

/// It would stop Redis for half a second if it had 400,000 entries.
#[tokio::test]
async fn long_budget_is_not_read_whole() {
    let redis = Redis::start().await;
    let limiter = limiter("1000/1m,1000/1h", redis.store().await);
    for _ in 0..1_000 {
        admit_cost(&limiter, 1).await;
    }
    let read = async || redis.call_count("hget").await + redis.call_count("hmget").await;
    let before = read().await;
    assert_eq!(explain(&limiter).await.quotas[1].taken, 1_000);
    assert!(read().await - before < 10);
}

#[tokio::test]
async fn explanation_writes_nothing() {
    let redis = Redis::start().await;
    let on_redis = limiter("1/1h", redis.store().await);
    explain(&on_redis).await;
    assert!(redis.keys().await.is_empty(), "no log is made");
    admit_cost(&on_redis, 1).await;
    redis.run::<i64>(&["PEXPIRE", LOG, "600000"]).await;
    let dump = async || redis.run::<Vec<u8>>(&["DUMP", LOG]).await;
    let before = dump().await;
    explain(&on_redis).await;
    assert_eq!(dump().await, before);
    assert!(redis.run::<i64>(&["PTTL", LOG]).await <= 600_000, "no TTL is renewed");

    let store = MemoryStore::new();
    explain(&limiter("1/1h", store.clone())).await;
    assert!(store.is_empty(), "no log is made");
}

#[tokio::test(start_paused = true)]
async fn json_has_microseconds_and_no_key() {
    let limiter = limiter("1/60s", MemoryStore::new());
    let only = admit_cost(&limiter, 1).await;
    advance(Duration::from_millis(1_500)).await;
    let json = serde_json::to_value(explain(&limiter).await).unwrap();
    let admission = serde_json::json!({
        "id": only.id().to_string(), "cost": 1, "timestamp_us": 0, "age_us": 1_500_000,
        "leaves_in_us": 58_500_000,
    });
    let expected = serde_json::json!({
        "policy": "user", "cost": 1, "admitted": false, "retry_after_us": 58_500_000,
        "decided_by": "store", "timestamp_us": 1_500_000,
        "quotas": [{
            "quota": "1/60s", "taken": 1, "free": 0, "wait_us": 58_500_000,
            "waits_for": only.id().to_string(), "admissions": [admission], "not_listed": 0,
        }],
        "ban": null,
    });
    assert_eq!(json, expected);
    assert!(!json.to_string().contains("alice"));
}
