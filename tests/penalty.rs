//! Strikes and bans: who keeps running into a quota is sent away, for longer each time.

#[path = "support/http.rs"]
mod http_support;
#[path = "support/redis_process.rs"]
mod redis_process;
mod support;

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_support::{from_user, ok, send, status};
use redis_process::RedisProcess;
use support::Redis;
use tokio::time::sleep;
use tower::{Layer, service_fn};
use tower_sliding_window::store::{BanStore, Check, DenyCache, Partition, Store, Struck};
use tower_sliding_window::{
    BanEvent, Bans, DecidedBy, Decision, Limiter, MemoryStore, Muted, OnBan, Penalty, Policy,
    Quota, RedisStore, SlidingWindowLayer, key,
};

/// Two a second; the second strike within a minute is a ban of two seconds, later ones of three.
fn policy() -> Policy {
    Policy::new("user").quota(Quota::per_second(2)).penalty("2/1m:2s,3s".parse().unwrap())
}

macro_rules! promises {
    ($($name:ident),* $(,)?) => {
        mod in_process {
            $(#[tokio::test(start_paused = true)]
            async fn $name() {
                super::$name(super::MemoryStore::new()).await;
            })*
        }
        mod on_redis {
            $(#[tokio::test]
            async fn $name() {
                let redis = super::Redis::start().await;
                super::$name(redis.store_without_deny_cache().await).await;
            })*
        }
        mod on_redis_behind_the_deny_cache {
            $(#[tokio::test]
            async fn $name() {
                let redis = super::Redis::start().await;
                super::$name(redis.store().await).await;
            })*
        }
    };
}

promises!(
    hammering_for_a_window_is_one_strike_and_the_next_window_s_brings_a_ban,
    a_ban_holds_whatever_room_the_window_has_and_ends_when_told,
    the_second_ban_is_longer_and_hammering_does_not_lengthen_one,
    a_ban_by_hand_only_lengthens_and_can_be_lifted,
    a_banned_request_leaves_no_trace_in_other_windows,
    peeking_is_no_strike,
    who_stays_out_of_bans_comes_down_the_ladder,
    a_short_ban_by_hand_does_not_end_an_episode,
);

/// Checks until the decision is a denial, and returns what it was to the key's standing.
async fn run_into(limiter: &Limiter) -> (Struck, Option<Duration>) {
    loop {
        if let Decision::Denied(denied) = limiter.check("mallory").await.unwrap() {
            let struck = denied.usage().bans().map(|(_, ban)| ban.struck).next();
            return (struck.unwrap_or_default(), denied.usage().banned_for());
        }
    }
}

/// Goes all the way to a ban, and returns how long it is.
async fn provoke(limiter: &Limiter) -> Duration {
    assert_eq!(run_into(limiter).await, (Struck::Strike, None));
    sleep(Duration::from_millis(1_050)).await;
    let (struck, banned) = run_into(limiter).await;
    assert_eq!(struck, Struck::Banned);
    banned.expect("how long")
}

async fn hammering_for_a_window_is_one_strike_and_the_next_window_s_brings_a_ban(
    store: impl Store,
) {
    let limiter = Limiter::new(policy(), store);
    assert_eq!(run_into(&limiter).await, (Struck::Strike, None));
    for _ in 0..50 {
        assert_eq!(run_into(&limiter).await, (Struck::No, None), "the same episode");
    }
    sleep(Duration::from_millis(1_050)).await;
    let (struck, banned) = run_into(&limiter).await;
    assert_eq!(struck, Struck::Banned);
    assert!(banned.unwrap() > Duration::from_millis(1_500));
}

async fn a_ban_holds_whatever_room_the_window_has_and_ends_when_told(store: impl Store) {
    let limiter = Limiter::new(policy(), store);
    let ban = provoke(&limiter).await;
    sleep(Duration::from_millis(1_100)).await;
    let Decision::Denied(denied) = limiter.check("mallory").await.unwrap() else {
        panic!("the window has room, and the ban stands")
    };
    assert_eq!(denied.violated().collect::<Vec<_>>(), ["user"]);
    let left = denied.retry_after();
    assert!(left < ban && left > Duration::from_millis(400), "{left:?} of {ban:?}");
    assert!(limiter.check("alice").await.unwrap().is_admitted(), "others are not banned");
    sleep(left).await;
    assert!(limiter.check("mallory").await.unwrap().is_admitted(), "as told");
}

async fn the_second_ban_is_longer_and_hammering_does_not_lengthen_one(store: impl Store) {
    let limiter = Limiter::new(policy(), store);
    let first = provoke(&limiter).await;
    assert!(first <= Duration::from_secs(2) && first > Duration::from_millis(1_500), "{first:?}");
    let mut last = first;
    for _ in 0..20 {
        let (struck, left) = run_into(&limiter).await;
        let left = left.expect("banned");
        assert_eq!(struck, Struck::No);
        assert!(left <= last, "hammering does not lengthen it: {left:?} after {last:?}");
        last = left;
    }
    sleep(last).await;
    let second = provoke(&limiter).await;
    assert!(
        second <= Duration::from_secs(3) && second > Duration::from_millis(2_500),
        "{second:?}"
    );
}

async fn a_ban_by_hand_only_lengthens_and_can_be_lifted(store: impl Store + BanStore + Clone) {
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
    let told: Vec<_> = events.lock().unwrap().iter().map(std::mem::discriminant).collect();
    assert_eq!(told.len(), 4, "two that lengthened, a stranger's, and a lifted one");
    assert!(matches!(events.lock().unwrap()[3], BanEvent::Lifted { .. }));
}

async fn a_banned_request_leaves_no_trace_in_other_windows(store: impl Store + BanStore + Clone) {
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

async fn peeking_is_no_strike(store: impl Store) {
    let limiter = Limiter::new(policy(), store);
    for _ in 0..2 {
        assert!(limiter.check("mallory").await.unwrap().is_admitted());
    }
    for _ in 0..5 {
        assert_eq!(limiter.peek("mallory").await.unwrap().remaining(), 0);
    }
    assert_eq!(run_into(&limiter).await.0, Struck::Strike, "the first denial is the first strike");
}

#[tokio::test(start_paused = true)]
async fn hammering_is_a_strike_a_window_behind_a_deny_cache_too() {
    let policy = Policy::new("user").quota(Quota::per_minute(5));
    let policy = policy.penalty("100/24h:1h".parse().unwrap());
    let strikes = async |store: Arc<dyn Store>| {
        let mut strikes = 0;
        for tick in 0..3_000 {
            // All five at once, a pause that is not always the same, and then without end.
            let requests = match (tick / 600 % 2, tick % 600) {
                (_, 0) => 5,
                (0, 1..5) | (1, 1..2) => 0,
                _ => 1,
            };
            for _ in 0..requests {
                let check = Check::new([Partition::new(Arc::new(policy.clone()), "mallory")]);
                let verdict = store.admit(&check).await.unwrap();
                strikes += verdict.bans.iter().filter(|it| it.struck == Struck::Strike).count();
            }
            sleep(Duration::from_millis(100)).await;
        }
        strikes
    };
    assert_eq!(strikes(Arc::new(MemoryStore::new())).await, 5, "in five minutes");
    assert_eq!(strikes(Arc::new(DenyCache::new(MemoryStore::new()))).await, 5);
}

async fn who_stays_out_of_bans_comes_down_the_ladder(store: impl Store) {
    let second = Duration::from_secs(1);
    let penalty: Penalty = "1/1m:1s,1h".parse().unwrap();
    let policy = Policy::new("user").quota(Quota::per_second(2)).penalty(penalty.decay(second));
    let limiter = Limiter::new(policy, store);
    for _ in 0..2 {
        let (struck, banned) = run_into(&limiter).await;
        assert_eq!(struck, Struck::Banned);
        assert!(banned.unwrap() <= second, "an hour comes only to who was banned lately");
        sleep(second * 2 + second / 20).await;
    }
}

async fn a_short_ban_by_hand_does_not_end_an_episode(store: impl Store + BanStore + Clone) {
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

async fn muted(request: Request<String>) -> Result<Response<String>, Infallible> {
    let muted = request.extensions().get::<Muted>();
    Ok(Response::new(muted.map_or("heard", |_| "muted").to_owned()))
}

#[tokio::test(start_paused = true)]
async fn over_http_a_ban_is_403_or_as_wanted_and_says_when_it_ends() {
    for (on_ban, expected) in
        [(None, 403), (Some(OnBan::Reject(StatusCode::TOO_MANY_REQUESTS)), 429)]
    {
        let store = MemoryStore::new();
        let bans = Bans::new(policy(), store.clone());
        let mut layer = SlidingWindowLayer::new(policy(), key::header("x-user-id"), store);
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
async fn a_muted_request_passes_uncounted_and_its_handler_can_pretend() {
    let store = MemoryStore::new();
    let bans = Bans::new(policy(), store.clone());
    let service = SlidingWindowLayer::new(policy(), key::header("x-user-id"), store.clone())
        .on_ban(OnBan::Mute)
        .layer(service_fn(muted));
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

#[tokio::test]
async fn everything_that_redis_keeps_of_a_ban_has_a_ttl() {
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
async fn when_redis_fails_a_ban_holds_and_a_lifted_one_does_not_come_back() {
    for (lifted_by, holds) in [(None, true), (Some("this process"), false), (Some("other"), false)]
    {
        let mut redis = RedisProcess::start().await;
        let store = async || {
            let builder = RedisStore::builder().response_timeout(Duration::from_secs(10));
            builder.connect(redis.url().as_str()).await.unwrap()
        };
        let (ours, theirs) = (store().await, store().await);
        let policy = || {
            let policy = Policy::new("user").quota(Quota::per_minute(1_000_000));
            policy.penalty("3/1m:1h".parse().unwrap())
        };
        let limiter = Limiter::new(policy(), ours.clone());
        let (bans, others) = (Bans::new(policy(), ours), Bans::new(policy(), theirs));
        others.impose("mallory", Duration::from_secs(3600), "by hand").await.unwrap();
        assert!(!limiter.check("mallory").await.unwrap().is_admitted());
        match lifted_by {
            None => {}
            Some("other") => {
                assert!(others.lift("mallory").await.unwrap());
                while !limiter.check("mallory").await.unwrap().is_admitted() {
                    sleep(Duration::from_millis(10)).await;
                }
            }
            Some(_) => assert!(bans.lift("mallory").await.unwrap()),
        }
        // As long as the denial may be remembered.
        sleep(Duration::from_millis(1_050)).await;
        redis.kill();
        let decision = limiter.check("mallory").await.unwrap();
        assert_eq!(decision.decided_by(), DecidedBy::LocalWindow);
        assert_eq!(decision.is_admitted(), !holds, "lifted by {lifted_by:?}");
        assert_eq!(decision.usage().banned_for().is_some(), holds);
    }
}

#[tokio::test]
async fn a_long_ban_by_hand_lets_nobody_off_the_rungs() {
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
async fn a_ban_of_one_process_is_known_to_all_within_a_second() {
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
