//! Bans: imposed and lifted by hand, over HTTP, in Redis and in all processes that share it.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use test_support::Redis;
use test_support::requests::{by_user, from_user, ok, send, status};
use test_support::strikes::{policy, provoke, run_into};
use tokio::time::sleep;
use tower::{Layer, service_fn};
use tower_sliding_window::store::{BanStore, Partition, Store, Struck};
use tower_sliding_window::{
    BanCursor, BanEvent, Bans, DecidedBy, FailurePolicy, Limiter, MemoryStore, Muted, OnBan,
    Penalty, Policy, PolicyHandle, Quota, RedisStore, key,
};

test_support::on_every_store!(
    manual_ban_only_lengthens_until_lifted,
    banned_request_leaves_no_trace,
    short_manual_ban_keeps_the_episode,
    no_ban_is_longer_than_a_year,
    a_lifted_key_has_no_strike_left,
    rule_given_twice_keeps_its_penalty,
    a_ban_by_hand_needs_no_strikes,
    new_quotas_lift_no_ban,
    a_muted_request_is_held_to_the_other_rules,
    a_mute_counts_one_strike_a_request,
    reading_a_ban_keeps_its_strikes,
    ban_without_a_penalty_keeps_the_level,
    pages_show_each_ban_once,
    a_page_holds_about_as_many_as_asked_for,
    a_cursor_reads_back_what_it_writes,
);

async fn manual_ban_only_lengthens_until_lifted(store: impl Store + BanStore + Clone) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let heard = events.clone();
    let bans = Bans::new(policy(), store.clone())
        .on_event(move |event| heard.lock().unwrap().push(event.clone()));
    let limiter = Limiter::new(policy(), store);
    assert_eq!(bans.get("mallory").await.unwrap(), None);
    assert!(!bans.lift("mallory").await.unwrap());

    let minute = Duration::from_secs(60);
    let ban = bans.impose("mallory", minute, "sells accounts").await.unwrap();
    assert_eq!((ban.remaining(), ban.reason()), (minute, "sells accounts"));
    let shorter = bans.impose("mallory", minute / 2, "again").await.unwrap();
    assert!(shorter.remaining() > minute / 2 && shorter.reason() == "sells accounts");
    let longer = bans.impose("mallory", minute * 2, "again").await.unwrap();
    assert_eq!((longer.remaining(), longer.reason()), (minute * 2, "again"));
    bans.impose("a}b*\n", minute, "strange").await.unwrap();

    assert!(!limiter.check("mallory").await.unwrap().is_admitted());
    let listed = bans.list().await.unwrap();
    let listed: Vec<_> =
        listed.iter().map(|(key, ban)| (key.as_bytes(), ban.reason().to_owned())).collect();
    assert_eq!(listed, [(&b"mallory"[..], "again".into()), (&b"a}b*\n"[..], "strange".into())]);

    assert!(bans.lift("mallory").await.unwrap());
    assert_eq!(bans.get("mallory").await.unwrap(), None);
    assert_eq!(bans.list().await.unwrap().len(), 1);
    sleep(Duration::from_millis(1_050)).await; // as long as another process may remember it
    assert!(limiter.check("mallory").await.unwrap().is_admitted());
    let reported: Vec<_> = events.lock().unwrap().iter().map(std::mem::discriminant).collect();
    assert_eq!(reported.len(), 4, "two that lengthened, a stranger's, and a lifted one");
    assert!(matches!(events.lock().unwrap()[3], BanEvent::Lifted { .. }));
}

async fn banned_request_leaves_no_trace(store: impl Store + BanStore + Clone) {
    let everybody = Policy::new("all").quota(Quota::per_minute(10));
    let limiter = Limiter::new(everybody.clone(), store.clone());
    let minute = Duration::from_secs(60);
    Bans::new(policy(), store).impose("mallory", minute, "by hand").await.unwrap();
    for _ in 0..5 {
        let pairs = [(policy(), "mallory"), (everybody.clone(), "everybody")];
        let decision = limiter.check_all(pairs).await.unwrap();
        let denied = decision.denied().expect("banned");
        assert_eq!(denied.violated().collect::<Vec<_>>(), ["user"]);
        let wait = denied.retry_after();
        assert!(wait > minute / 2 && wait <= minute, "{wait:?}");
    }
    assert_eq!(limiter.peek("everybody").await.unwrap().remaining(), 10);
}

async fn short_manual_ban_keeps_the_episode(store: impl Store + BanStore + Clone) {
    let policy = || {
        let policy = Policy::new("user").quota(Quota::per_hour(1));
        policy.penalty("5/1h:1s".parse().unwrap())
    };
    let limiter = Limiter::new(policy(), store.clone());
    assert_eq!(run_into(&limiter).await.0, Struck::Strike);
    let second = Duration::from_secs(1);
    Bans::new(policy(), store).impose("mallory", second, "short").await.unwrap();
    sleep(second * 2 + second / 20).await;
    assert_eq!(run_into(&limiter).await, (Struck::No, None), "the window is full as before");
}

async fn no_ban_is_longer_than_a_year(store: impl Store + BanStore + Clone) {
    let bans = Bans::new(policy(), store.clone());
    let ban = bans.impose("mallory", Duration::MAX, "for ever").await.unwrap();
    assert_eq!(ban.remaining(), Duration::from_secs(365 * 24 * 3600));
    assert!(!Limiter::new(policy(), store).check("mallory").await.unwrap().is_admitted());
}

async fn a_lifted_key_has_no_strike_left(store: impl Store + BanStore + Clone) {
    let limiter = Limiter::new(policy(), store.clone());
    assert_eq!(run_into(&limiter).await, (Struck::Strike, None));
    assert!(Bans::new(policy(), store).lift("mallory").await.unwrap(), "there was a strike");
    sleep(Duration::from_millis(1_050)).await;
    assert_eq!(run_into(&limiter).await, (Struck::Strike, None), "the first once more");
}

async fn rule_given_twice_keeps_its_penalty(store: impl Store + BanStore + Clone) {
    let plain = || Policy::new("user").quota(Quota::per_minute(100));
    Bans::new(policy(), store.clone()).impose("mallory", Duration::from_secs(9), "").await.unwrap();
    let limiter = Limiter::new(plain(), store);
    for pairs in [[plain(), policy()], [policy(), plain()]] {
        let decision = limiter.check_all(pairs.map(|it| (it, "mallory"))).await.unwrap();
        assert!(decision.usage().banned_for().is_some());
    }
}

async fn a_ban_by_hand_needs_no_strikes(store: impl Store + BanStore + Clone) {
    let policy = || Policy::new("user").quota(Quota::per_minute(1)).penalty(Penalty::by_hand());
    let limiter = Limiter::new(policy(), store.clone());
    assert!(limiter.check("mallory").await.unwrap().is_admitted());
    for _ in 0..200 {
        let decision = limiter.check("mallory").await.unwrap();
        assert!(!decision.is_admitted() && decision.usage().bans().count() == 0);
    }
    let bans = Bans::new(policy(), store);
    assert!(!bans.lift("mallory").await.unwrap(), "no strike was counted");
    bans.impose("trudy", Duration::from_secs(60), "by hand").await.unwrap();
    assert!(limiter.check("trudy").await.unwrap().usage().banned_for().is_some());
}

async fn new_quotas_lift_no_ban(store: impl Store + BanStore + Clone) {
    let handle = PolicyHandle::new(policy());
    let limiter = Limiter::new(&handle, store.clone());
    Bans::new(&handle, store).impose("mallory", Duration::from_secs(9), "").await.unwrap();
    handle.set("8/60s".parse::<Policy>().unwrap()).unwrap();
    assert!(limiter.check("mallory").await.unwrap().usage().banned_for().is_some());
}

#[tokio::test(start_paused = true)]
async fn full_table_of_bans_admits_nothing() {
    let store = MemoryStore::with_capacity(2);
    let bans = Bans::new(policy(), store.clone());
    for key in ["x", "y"] {
        bans.impose(key, Duration::from_secs(60), "by hand").await.unwrap();
    }
    for on_failure in [FailurePolicy::default(), FailurePolicy::Open, FailurePolicy::Closed] {
        let limiter = Limiter::new(policy(), store.clone()).failure_policy(on_failure);
        limiter.reset("mallory").await.unwrap();
        for admitted in [true, true, false, false] {
            let decision = limiter.check("mallory").await.unwrap();
            assert_eq!(
                (decision.is_admitted(), decision.decided_by()),
                (admitted, DecidedBy::Store)
            );
        }
    }
}

/// A log of the same name as under [`policy`], and no penalty.
fn without_a_penalty(key: &str) -> Partition {
    Partition::new(Arc::new(Policy::new("user").quota(Quota::per_second(2))), key)
}

async fn reading_a_ban_keeps_its_strikes(store: impl Store + BanStore + Clone) {
    let limiter = Limiter::new(policy(), store.clone());
    assert_eq!(run_into(&limiter).await, (Struck::Strike, None));
    assert_eq!(store.ban(&without_a_penalty("mallory")).await.unwrap(), None);
    sleep(Duration::from_millis(1_050)).await;
    assert_eq!(run_into(&limiter).await.0, Struck::Banned, "the first strike still counts");
}

async fn ban_without_a_penalty_keeps_the_level(store: impl Store + BanStore + Clone) {
    let limiter = Limiter::new(policy(), store.clone());
    assert_eq!(provoke(&limiter).await, Duration::from_secs(2));
    let three_seconds = Duration::from_secs(3);
    let log = without_a_penalty("mallory");
    let _ = store.impose(&log, three_seconds, "by hand").await.unwrap();
    sleep(Duration::from_millis(3_050)).await;
    assert_eq!(provoke(&limiter).await, Duration::from_secs(3), "the next rung");
}

/// Bans so many users by hand, beside one of another policy and many that are not banned.
async fn ban(store: &(impl Store + BanStore + Clone), users: usize) -> Bans {
    let minute = Duration::from_secs(60);
    let other = Policy::new("other").quota(Quota::per_second(2)).penalty(Penalty::by_hand());
    Bans::new(other, store.clone()).impose("stranger", minute, "").await.unwrap();
    let bans = Bans::new(policy(), store.clone());
    let limiter = Limiter::new(policy(), store.clone());
    for user in 0..users {
        assert!(limiter.check(format!("honest-{user}")).await.unwrap().is_admitted());
        bans.impose(user.to_string(), minute, "by hand").await.unwrap();
    }
    bans
}

async fn pages_show_each_ban_once(store: impl Store + BanStore + Clone) {
    let bans = ban(&store, 500).await;
    let (mut cursor, mut users, mut pages) = (BanCursor::default(), BTreeSet::new(), 0);
    loop {
        let page = bans.page(cursor, 30).await.unwrap();
        for (user, ban) in page.bans {
            assert_eq!(ban.reason(), "by hand");
            users.insert(String::from_utf8(user.as_bytes().to_vec()).unwrap());
        }
        pages += 1;
        let Some(next) = page.next else { break };
        cursor = next;
    }
    assert_eq!(users, (0..500).map(|user| user.to_string()).collect());
    assert!((8..=50).contains(&pages), "{pages} pages");
    let mut listed: Vec<_> = bans.list().await.unwrap();
    assert!(listed.is_sorted_by_key(|(_, ban)| std::cmp::Reverse(ban.remaining())));
    listed.sort_by(|one, other| one.0.cmp(&other.0));
    listed.dedup_by(|one, other| one.0 == other.0);
    assert_eq!(listed.len(), 500);
}

async fn a_page_holds_about_as_many_as_asked_for(store: impl Store + BanStore + Clone) {
    let bans = ban(&store, 300).await;
    for count in [0, 1, 20, 100] {
        let page = bans.page(BanCursor::default(), count).await.unwrap();
        let few = count.max(1)..=count + 30;
        assert!(few.contains(&page.bans.len()), "{} for {count}", page.bans.len());
        assert!(page.next.is_some());
    }
    let page = bans.page(BanCursor::default(), usize::MAX).await.unwrap();
    assert_eq!((page.bans.len(), page.next), (300, None));
}

async fn a_cursor_reads_back_what_it_writes(store: impl Store + BanStore + Clone) {
    let bans = ban(&store, 100).await;
    let page = bans.page(BanCursor::default(), 10).await.unwrap();
    let next = page.next.unwrap();
    assert_eq!(next.to_string().parse::<BanCursor>().unwrap(), next);
    let [same, again] = [next, next.to_string().parse().unwrap()].map(|it| bans.page(it, 10));
    assert_eq!(same.await.unwrap().bans.len(), again.await.unwrap().bans.len());
    for text in ["", "-1", "x", " 1", "18446744073709551616"] {
        let error = text.parse::<BanCursor>().unwrap_err().to_string();
        assert!(error.contains(&format!("{text:?}")), "{error}");
    }
}

#[tokio::test]
async fn list_of_bans_is_few_round_trips() {
    let redis = Redis::start().await;
    let mut put = redis::pipe();
    for user in 0..3_000 {
        let name = format!("tsw:{{=user-{user}}}:user:ban");
        put.cmd("HSET").arg(name).arg(&["until", "9999999999999999", "reason", "x"]).ignore();
    }
    put.exec_async(&mut redis.connection().await).await.unwrap();
    let bans = Bans::new(policy(), redis.store().await);
    assert_eq!(bans.get("user-7").await.unwrap().unwrap().reason(), "x");
    let reads = async || -> u64 {
        let stats: String = redis.run(&["INFO", "stats"]).await;
        let reads = stats.lines().find_map(|line| line.strip_prefix("total_reads_processed:"));
        reads.unwrap().trim().parse().unwrap()
    };
    let before = reads().await;
    assert_eq!(bans.list().await.unwrap().len(), 3_000);
    let reads = reads().await - before;
    assert!(reads < 300, "{reads} reads for 3,000 bans");
}

async fn muted(request: Request<String>) -> Result<Response<String>, Infallible> {
    let muted = request.extensions().get::<Muted>();
    Ok(Response::new(muted.map_or("heard", |_| "muted").to_owned()))
}

#[tokio::test(start_paused = true)]
async fn http_ban_status_and_retry_after() {
    for (on_ban, expected) in
        [(None, 403), (Some(OnBan::Reject(StatusCode::TOO_MANY_REQUESTS)), 429)]
    {
        let store = MemoryStore::new();
        let bans = Bans::new(policy(), store.clone());
        let mut layer = by_user(policy(), store);
        if let Some(on_ban) = on_ban {
            layer = layer.on_ban(on_ban);
        }
        let service = layer.layer(service_fn(ok));
        assert_eq!(status(&service, "mallory").await, 200);
        bans.impose("mallory", Duration::from_millis(90_500), "sells accounts").await.unwrap();

        let answer = send(&service, from_user("mallory")).await;
        assert_eq!(answer.status, expected);
        assert_eq!(answer.retry_after(), Some(91));
        let problem = answer.problem();
        assert!(problem["type"].as_str().unwrap().ends_with("#abnormal-usage-detected"));
        assert_eq!(problem["violated-policies"], serde_json::json!(["user"]));
        assert!(!answer.body.contains("sells"), "the reason is not the client's");
        assert_eq!(status(&service, "alice").await, 200);
    }
}

#[tokio::test(start_paused = true)]
async fn muted_request_passes_uncounted() {
    let store = MemoryStore::new();
    let bans = Bans::new(policy(), store.clone());
    let service = by_user(policy(), store.clone()).on_ban(OnBan::Mute).layer(service_fn(muted));
    assert_eq!(send(&service, from_user("mallory")).await.body, "heard");
    bans.impose("mallory", Duration::from_secs(60), "spam").await.unwrap();
    for _ in 0..10 {
        let answer = send(&service, from_user("mallory")).await;
        assert_eq!((answer.status.as_u16(), answer.body.as_str()), (200, "muted"));
        assert_eq!(answer.retry_after(), None);
    }
    let left = Limiter::new(policy(), store).peek("mallory").await.unwrap().remaining();
    assert_eq!(left, 1, "what was muted is not counted");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(send(&service, from_user("mallory")).await.body, "heard");
}

async fn a_muted_request_is_held_to_the_other_rules(store: impl Store + BanStore + Clone) {
    let all = || Policy::new("all").quota(Quota::per_hour(3));
    let bans = Bans::new(policy(), store.clone());
    bans.impose("mallory", Duration::from_secs(600), "spam").await.unwrap();
    let service = by_user(policy(), store.clone())
        .rule(all(), key::constant("everybody"))
        .on_ban(OnBan::Mute)
        .layer(service_fn(muted));
    for _ in 0..3 {
        let answer = send(&service, from_user("mallory")).await;
        assert_eq!((answer.status.as_u16(), answer.body.as_str()), (200, "muted"));
    }
    for _ in 0..5 {
        let answer = send(&service, from_user("mallory")).await;
        assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(answer.problem()["violated-policies"], serde_json::json!(["all"]));
        assert!(answer.header("ratelimit").unwrap().starts_with("\"all\";r=0"));
        assert!(answer.retry_after() > Some(3_000), "the full rule's wait, not the ban's");
    }
    let left = Limiter::new(policy(), store.clone()).peek("mallory").await.unwrap().remaining();
    assert_eq!(left, policy().quotas()[0].limit(), "nothing counts for the banned key");
    let alice = send(&service, from_user("alice")).await;
    assert_eq!(alice.status, StatusCode::TOO_MANY_REQUESTS, "the places were taken");
}

/// Each key of the request is under a policy with a penalty, and the first is banned.
async fn a_mute_counts_one_strike_a_request(store: impl Store + BanStore + Clone) {
    let strict = || {
        let policy = Policy::new("strict").quota(Quota::per_hour(1));
        policy.penalty("2/1h:1h".parse().unwrap())
    };
    Bans::new(policy(), store.clone())
        .impose("mallory", Duration::from_secs(60), "")
        .await
        .unwrap();
    let strikes = Arc::new(Mutex::new(Vec::new()));
    let seen = strikes.clone();
    let service = by_user(policy(), store)
        .rule(strict(), key::constant("everybody"))
        .on_ban(OnBan::Mute)
        .on_decision(move |decision| {
            let struck = decision.usage().bans().map(|(_, ban)| ban.struck);
            seen.lock().unwrap().extend(struck.filter(|it| *it != Struck::No));
        })
        .layer(service_fn(muted));
    assert_eq!(status(&service, "mallory").await, 200);
    assert_eq!(status(&service, "mallory").await, 429);
    assert_eq!(*strikes.lock().unwrap(), [Struck::Strike]);
}

#[tokio::test]
async fn every_key_of_a_ban_expires() {
    let redis = Redis::start().await;
    let store = redis.store_without_deny_cache().await;
    let limiter = Limiter::new(policy(), store.clone());
    run_into(&limiter).await;
    Bans::new(policy(), store).impose("carol", Duration::from_secs(60), "x").await.unwrap();
    let keys: Vec<String> = redis.run(&["KEYS", "*"]).await;
    assert!(keys.len() >= 4, "{keys:?}");
    for key in keys {
        let ttl_ms: i64 = redis.run(&["PTTL", &key]).await;
        assert!(ttl_ms > 0, "{key} stays for ever");
    }
}

#[tokio::test]
async fn long_manual_ban_keeps_the_level() {
    let redis = Redis::start().await;
    let limiter = Limiter::new(policy(), redis.store().await);
    provoke(&limiter).await;
    let day = Duration::from_secs(24 * 3600);
    let bans = Bans::new(policy(), redis.store().await);
    bans.impose("mallory", 10 * day, "by hand").await.unwrap();
    let ttl_s: u64 = redis.run(&["TTL", "tsw:{=mallory}:user:ban"]).await;
    assert!(ttl_s > (11 * day).as_secs() - 600, "{ttl_s} s are too few");
}

#[tokio::test]
async fn ban_reaches_every_process_within_a_second() {
    let redis = Redis::start().await;
    let (ours, theirs): (RedisStore, RedisStore) = (redis.store().await, redis.store().await);
    let limiter = Limiter::new(policy(), ours);
    assert!(limiter.check("mallory").await.unwrap().is_admitted());
    let bans = Bans::new(policy(), theirs);
    bans.impose("mallory", Duration::from_secs(600), "by hand").await.unwrap();
    assert!(!limiter.check("mallory").await.unwrap().is_admitted());
    bans.lift("mallory").await.unwrap();
    sleep(Duration::from_millis(1_050)).await;
    assert!(limiter.check("mallory").await.unwrap().is_admitted());
}
