//! What `Limiter::explain` says is what the log holds, and what a check then gets.

use std::time::Duration;

use test_support::{Cluster, Redis, patient_store};
use tokio::time::sleep;
use tower_sliding_window::store::Store;
use tower_sliding_window::{
    Admitted, Bans, DecidedBy, Decision, Explanation, Limiter, Policy, Quota, StoreError,
};
use uuid::Uuid;

test_support::on_every_store!(
    explanation_lists_each_admission,
    denial_is_explained_as_it_happens,
    cost_waits_for_a_later_admission,
    empty_log_is_explained,
    candidate_is_explained_and_denies_nothing,
    ban_record_is_explained,
    settled_request_has_its_places,
    cost_above_a_limit_is_an_error,
    long_list_is_cut_at_a_request,
);

const LOG: &str = "tsw:{=alice}:user:1h";

fn limiter(policy: &str, store: impl Store) -> Limiter {
    let quotas = policy.split(',').map(|quota| quota.parse().unwrap());
    Limiter::new(quotas.fold(Policy::new("user"), Policy::quota), store)
}

async fn admit(limiter: &Limiter, cost: u32) -> Admitted {
    match limiter.check_cost("alice", cost).await.unwrap() {
        Decision::Admitted(admitted) => admitted,
        Decision::Denied(denied) => panic!("{denied:?}"),
    }
}

async fn explain(limiter: &Limiter) -> Explanation {
    limiter.explain("alice").await.unwrap()
}

async fn explanation_lists_each_admission(store: impl Store) {
    let limiter = limiter("3/1s,5/1h", store);
    let first = admit(&limiter, 2).await;
    sleep(Duration::from_millis(1_100)).await;
    let second = admit(&limiter, 1).await;

    let explained = explain(&limiter).await;
    assert!(explained.admitted && explained.retry_after.is_zero(), "{explained}");
    assert_eq!((explained.policy.as_str(), explained.cost), ("user", 1));
    assert_eq!(explained.decided_by, DecidedBy::Store);
    let [short, long] = &explained.quotas[..] else { panic!("{explained:?}") };
    assert_eq!((short.taken, short.free, short.waits_for), (1, 2, None));
    assert_eq!((long.taken, long.free, long.waits_for), (3, 2, None));
    let listed: Vec<_> = long.admissions.iter().map(|it| (it.id, it.cost)).collect();
    assert_eq!(listed, [(first.id(), 2), (second.id(), 1)]);
    let timestamps: Vec<_> = long.admissions.iter().map(|it| Some(it.timestamp)).collect();
    assert_eq!(timestamps, [first.timestamp(), second.timestamp()]);
    for (quota, admission) in [(short, &short.admissions[0]), (long, &long.admissions[1])] {
        assert_eq!(admission.age, explained.timestamp - admission.timestamp);
        assert_eq!(admission.age + admission.leaves_in, quota.quota.window());
    }
}

async fn denial_is_explained_as_it_happens(store: impl Store) {
    let limiter = limiter("2/2s,3/1h", store);
    let first = admit(&limiter, 1).await;
    admit(&limiter, 1).await;
    let explained = explain(&limiter).await;
    assert!(!explained.admitted, "{explained}");
    let [short, long] = &explained.quotas[..] else { panic!("{explained:?}") };
    assert_eq!(short.waits_for, Some(first.id()));
    assert_eq!((short.wait, short.wait), (explained.retry_after, short.admissions[0].leaves_in));
    assert_eq!((long.wait, long.waits_for), (Duration::ZERO, None));
    let Decision::Denied(denied) = limiter.check("alice").await.unwrap() else {
        panic!("both places are taken");
    };
    assert!(denied.retry_after() <= explained.retry_after, "{denied:?}");
    sleep(explained.retry_after).await;
    admit(&limiter, 1).await;
}

async fn cost_waits_for_a_later_admission(store: impl Store) {
    let limiter = limiter("4/1h", store);
    admit(&limiter, 1).await;
    let second = admit(&limiter, 2).await;
    let explained = limiter.explain_cost("alice", 3).await.unwrap();
    assert_eq!((explained.cost, explained.admitted), (3, false));
    assert_eq!(explained.quotas[0].waits_for, Some(second.id()));
    assert!(explain(&limiter).await.admitted);
}

async fn empty_log_is_explained(store: impl Store) {
    let explained = explain(&limiter("3/1m", store)).await;
    assert!(explained.admitted && explained.ban.is_none());
    let quota = &explained.quotas[0];
    assert_eq!((quota.taken, quota.free, quota.not_listed), (0, 3, 0));
    assert!(quota.admissions.is_empty());
}

async fn candidate_is_explained_and_denies_nothing(store: impl Store) {
    let policy = Policy::new("user").quota(Quota::per_hour(5)).candidate(Quota::per_minute(1));
    let limiter = Limiter::new(policy, store);
    let only = admit(&limiter, 1).await;
    let explained = explain(&limiter).await;
    assert!(explained.admitted, "{explained}");
    assert_eq!(explained.candidates[0].waits_for, Some(only.id()));
    let expensive = limiter.explain_cost("alice", 2).await.unwrap();
    let candidate = &expensive.candidates[0];
    assert_eq!((candidate.wait, candidate.waits_for), (Duration::from_secs(60), None));
}

async fn ban_record_is_explained(store: impl Store + Clone) {
    let quota = Quota::new(1, Duration::from_millis(300));
    let policy = || Policy::new("user").quota(quota).penalty("2/10m:1m,1h".parse().unwrap());
    let limiter = Limiter::new(policy(), store.clone());
    admit(&limiter, 1).await;
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
    assert!(!explained.admitted && explained.retry_after == ban.remaining, "{explained}");
    assert!(ban.remaining > Duration::from_secs(590), "{explained}");
    assert_eq!(ban.strikes.len(), 1, "an explanation is no strike");
    let text = explained.to_string();
    assert!(text.contains("banned for 9") || text.contains("banned for 599."), "{text}");
    assert!(text.contains(r#"reason "sells \"accounts\"""#), "{text}");
}

async fn settled_request_has_its_places(store: impl Store) {
    let limiter = limiter("4/1h", store);
    let reserved = admit(&limiter, 2).await;
    limiter.settle(&reserved, 7).await.unwrap();
    let explained = explain(&limiter).await;
    let quota = &explained.quotas[0];
    assert_eq!((quota.taken, quota.free, quota.admissions[0].cost), (7, 0, 7));
    assert_eq!(quota.waits_for, Some(reserved.id()));
}

async fn cost_above_a_limit_is_an_error(store: impl Store) {
    let error = limiter("4/1h,9/2h", store).explain_cost("alice", 5).await.unwrap_err();
    assert!(matches!(error, StoreError::CostAboveLimit { cost: 5, limit: 4 }), "{error}");
}

async fn long_list_is_cut_at_a_request(store: impl Store) {
    let limiter = limiter("3000/1h", store);
    let first = admit(&limiter, 1_000).await;
    for _ in 1..3 {
        admit(&limiter, 1_000).await;
    }
    let explained = explain(&limiter).await;
    let quota = &explained.quotas[0];
    assert_eq!((quota.taken, quota.free, quota.waits_for), (3_000, 0, Some(first.id())));
    let listed: Vec<_> = quota.admissions.iter().map(|it| it.cost).collect();
    assert_eq!((listed, quota.not_listed), (vec![1_000; 2], 1_000));
}

/// The log that Redis itself shows: each member with its score.
async fn zset(redis: &Redis) -> Vec<(Vec<u8>, u64)> {
    redis.run(&["ZRANGE", LOG, "0", "-1", "WITHSCORES"]).await
}

#[tokio::test]
async fn explanation_agrees_with_the_zset() {
    let redis = Redis::start().await;
    let limiter = limiter("9/2s,12/1h", redis.store().await);
    for cost in [1, 3, 2] {
        admit(&limiter, cost).await;
    }
    sleep(Duration::from_secs(2)).await;
    for cost in [1, 4] {
        admit(&limiter, cost).await;
    }
    assert!(!limiter.check_cost("alice", 9).await.unwrap().is_admitted());
    // A denial would renew so short a TTL.
    redis.run::<i64>(&["PEXPIRE", LOG, "600000"]).await;
    let before = zset(&redis).await;
    let explained = limiter.explain_cost("alice", 9).await.unwrap();
    assert_eq!(zset(&redis).await, before, "nothing is written");
    assert!(redis.run::<i64>(&["PTTL", LOG]).await <= 600_000, "no TTL is renewed");
    let keys = redis.keys().await;
    assert_eq!(keys, [LOG]);

    assert_eq!(before.len(), 11);
    let now = explained.timestamp;
    for quota in &explained.quotas {
        let is_live = |(_, at_us): &&(Vec<u8>, u64)| {
            Duration::from_micros(*at_us) + quota.quota.window() > now
        };
        let live: Vec<_> = before.iter().filter(is_live).collect();
        assert_eq!(quota.taken as usize, live.len(), "{explained}");
        // Each entry as Redis shows it: the identity, and its timestamp.
        let entries: Vec<_> = live
            .iter()
            .map(|(member, at_us)| (Uuid::from_slice(&member[..16]).unwrap(), *at_us))
            .collect();
        let explained_entries: Vec<_> = quota
            .admissions
            .iter()
            .flat_map(|it| vec![(it.id, it.timestamp.as_micros() as u64); it.cost as usize])
            .collect();
        assert_eq!(explained_entries, entries);
        // The (limit - cost + 1)-th newest entry has to leave.
        let rank = entries.len().checked_sub((quota.quota.limit() - 9) as usize + 1);
        let waits_for = rank.map(|rank| entries[rank]);
        assert_eq!(quota.waits_for, waits_for.map(|(id, _)| id), "{explained}");
        let leaves = |(_, at_us)| Duration::from_micros(at_us) + quota.quota.window() - now;
        assert_eq!(quota.wait, waits_for.map_or(Duration::ZERO, leaves));
    }
    assert_eq!(explained.store, "redis");
}

#[tokio::test(start_paused = true)]
async fn explanation_in_process_keeps_the_log() {
    let store = tower_sliding_window::MemoryStore::new();
    let limiter = limiter("1/60s", store.clone());
    explain(&limiter).await;
    assert!(store.is_empty(), "no log is made");
    admit(&limiter, 1).await;
    tokio::time::advance(Duration::from_secs(59)).await;
    assert_eq!(explain(&limiter).await.retry_after, Duration::from_secs(1));
    assert_eq!(explain(&limiter).await.store, "memory");
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(explain(&limiter).await.admitted, "an entry of one window is out");
    assert!(admit(&limiter, 1).await.remaining() == 0);
}

#[tokio::test(start_paused = true)]
async fn text_is_readable_on_call() {
    let limiter = limiter("2/60s,9/10m", tower_sliding_window::MemoryStore::new());
    let ids = [admit(&limiter, 1).await.id(), {
        tokio::time::advance(Duration::from_millis(12_345)).await;
        admit(&limiter, 1).await.id()
    }];
    let [first, second] = ids.map(|id| id.simple().to_string()[24..].to_owned());
    assert_ne!(first, second);
    let expected = format!(
        "policy user, cost 1: denied, retry after 47.655s (decided by: memory)
  2/60s: 2 taken, 0 free, waits 47.655s for {first}
    {first} 12.345s ago, leaves in 47.655s
    {second} 0.000ns ago, leaves in 60.000s
  9/600s: 2 taken, 7 free
    {first} 12.345s ago, leaves in 587.655s
    {second} 0.000ns ago, leaves in 600.000s"
    );
    assert_eq!(explain(&limiter).await.to_string(), expected);
}

#[tokio::test(start_paused = true)]
async fn json_has_microseconds_and_no_key() {
    let limiter = limiter("1/60s", tower_sliding_window::MemoryStore::new());
    let only = admit(&limiter, 1).await;
    tokio::time::advance(Duration::from_millis(1_500)).await;
    let json = serde_json::to_value(explain(&limiter).await).unwrap();
    let admission = serde_json::json!({
        "id": only.id().to_string(), "cost": 1, "timestamp_us": 0, "age_us": 1_500_000,
        "leaves_in_us": 58_500_000,
    });
    let expected = serde_json::json!({
        "policy": "user", "cost": 1, "admitted": false, "retry_after_us": 58_500_000,
        "decided_by": "store", "store": "memory", "timestamp_us": 1_500_000,
        "quotas": [{
            "quota": "1/60s", "taken": 1, "free": 0, "wait_us": 58_500_000,
            "waits_for": only.id().to_string(), "admissions": [admission], "not_listed": 0,
        }],
        "candidates": [], "ban": null,
    });
    assert_eq!(json, expected);
    assert!(!json.to_string().contains("alice"));
}

#[tokio::test]
async fn log_on_a_cluster_is_explained() {
    let cluster = Cluster::start().await;
    let limiter = limiter("1/1h", patient_store(cluster.servers()).await);
    let only = admit(&limiter, 1).await;
    let explained = explain(&limiter).await;
    assert_eq!(explained.quotas[0].waits_for, Some(only.id()));
    assert_eq!((explained.decided_by, &*explained.store), (DecidedBy::Store, "redis"));
}
