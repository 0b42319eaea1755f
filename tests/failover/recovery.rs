//! What happens when Redis answers again: it decides at once, and what other processes did in the
//! meantime stays done.

use std::time::Duration;

use test_support::proxy::{Fault, Proxy};
use test_support::{Redis, admit, eventually};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tower_sliding_window::{
    Bans, DecidedBy, Decision, FailurePolicy, Limiter, Policy, PolicyHandle, Quota, RedisStore,
};

const HOUR: Duration = Duration::from_secs(3600);
/// How long Redis may take to decide again.
const A_SECOND: Duration = Duration::from_secs(1);

fn user(limit: u32) -> Policy {
    Policy::new("user").quota(Quota::per_hour(limit))
}

fn punished(limit: u32) -> Policy {
    user(limit).penalty("3/10m:1h".parse().unwrap())
}

/// A process behind a network of its own, that may be cut.
struct Far {
    proxy: Proxy,
    store: RedisStore,
}

impl Far {
    async fn from(redis: &Redis) -> Self {
        let proxy = Proxy::to(redis.port()).await;
        // A denial that is remembered for a second would hide what Redis says.
        let builder = RedisStore::builder().deny_cache(false);
        let store = builder.connect(proxy.url()).await.unwrap();
        Self { proxy, store }
    }

    fn limiter(&self, policy: Policy) -> Limiter {
        Limiter::new(policy, self.store.clone())
    }

    /// Cuts the network, and waits until this process decides on its own.
    async fn cut(&self) {
        self.proxy.set(Fault::Cut);
        eventually("the process decides", async || !self.redis_decides().await).await;
    }

    /// Mends the network, and waits until Redis decides again about keys that were not used.
    async fn mend(&self) {
        self.proxy.set(Fault::None);
        eventually("Redis decides", async || self.redis_decides().await).await;
    }

    async fn redis_decides(&self) -> bool {
        let limiter = self.limiter(Policy::new("probe").quota(Quota::per_hour(1)));
        let key = uuid::Uuid::new_v4().to_string();
        limiter.check(key).await.is_ok_and(|it| it.decided_by() == DecidedBy::Store)
    }
}

/// Requests of all users, held to a quota that they share, as fast as one every millisecond.
fn hammer(store: &RedisStore, user: &Policy, shared: &Policy) -> JoinSet<()> {
    let (user, shared) = (PolicyHandle::new(user.clone()), PolicyHandle::new(shared.clone()));
    let limiter = Limiter::new(&user, store.clone());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut requests = JoinSet::new();
        for number in 0_u32.. {
            let (limiter, user, shared) = (limiter.clone(), user.clone(), shared.clone());
            requests.spawn(async move {
                let key = format!("user-{}", number % 8);
                let _ = limiter.check_all([(&user, &key[..]), (&shared, "all")]).await;
            });
            while requests.try_join_next().is_some() {}
            sleep(Duration::from_millis(1)).await;
        }
    });
    tasks
}

/// Asks about a log until Redis decides, and says how long that took.
async fn until_redis_decides(limiter: &Limiter, key: &str) -> Duration {
    let began = Instant::now();
    loop {
        let decided = limiter.check(key).await;
        if decided.is_ok_and(|decision| decision.decided_by() == DecidedBy::Store) {
            return began.elapsed();
        }
        assert!(began.elapsed() < Duration::from_secs(20), "Redis does not decide");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_log_returns_to_redis() {
    let redis = Redis::start().await;
    let shared = Policy::new("all").quota(Quota::new(1_000_000, Duration::from_secs(60)));
    let (one, other) = (Far::from(&redis).await, Far::from(&redis).await);
    let mut load = Vec::new();
    for process in [&one, &other] {
        process.proxy.set(Fault::Delay(Duration::from_millis(2)));
        load.push(hammer(&process.store, &user(1_000_000), &shared));
    }
    sleep(A_SECOND).await;
    redis.signal("STOP");
    sleep(A_SECOND).await;
    redis.signal("CONT");
    for process in [&one, &other] {
        let took = until_redis_decides(&process.limiter(shared.clone()), "all").await;
        assert!(took < 2 * A_SECOND, "{took:?}");
    }
    // Redis knows of everything: a user of both processes gets no more than a user of one.
    let (user, all) = (PolicyHandle::new(user(5)), PolicyHandle::new(shared));
    let mut admitted = 0;
    for process in [&one, &other] {
        let limiter = Limiter::new(&user, process.store.clone());
        for _ in 0..5 {
            let decision = limiter.check_all([(&user, "alice"), (&all, "all")]).await.unwrap();
            assert_eq!(decision.decided_by(), DecidedBy::Store);
            admitted += usize::from(decision.is_admitted());
        }
    }
    assert_eq!(admitted, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hammering_does_not_prolong_an_outage() {
    let redis = Redis::start().await;
    let policy: Policy = "5/1s,1000000/60s".parse().unwrap();
    let process = Far::from(&redis).await;
    let shared = Policy::new("all").quota(Quota::new(1_000_000, Duration::from_secs(60)));
    let _load = hammer(&process.store, &policy.clone().named("user"), &shared);
    sleep(A_SECOND / 2).await;
    redis.signal("STOP");
    sleep(Duration::from_millis(300)).await;
    redis.signal("CONT");
    let limiter = process.limiter(policy.named("user"));
    for user in 0..8 {
        let took = until_redis_decides(&limiter, &format!("user-{user}")).await;
        assert!(took < 2 * A_SECOND, "{took:?}");
    }
    // And goes on deciding.
    for _ in 0..200 {
        for user in 0..8 {
            let decision = limiter.check(format!("user-{user}")).await.unwrap();
            assert_eq!(decision.decided_by(), DecidedBy::Store);
        }
        sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn reset_elsewhere_in_outage_stays_reset() {
    let redis = Redis::start().await;
    let (ours, theirs) = (Far::from(&redis).await, Far::from(&redis).await);
    let (our_limiter, their_limiter) = (ours.limiter(user(2)), theirs.limiter(user(2)));
    ours.cut().await;
    for _ in 0..2 {
        assert!(admit(&our_limiter, "alice").await);
    }
    assert!(!admit(&our_limiter, "alice").await);
    their_limiter.reset("alice").await.unwrap();
    ours.mend().await;
    let Decision::Admitted(admitted) = our_limiter.check("alice").await.unwrap() else {
        panic!("the log was reset")
    };
    assert_eq!(admitted.remaining(), 1, "what was admitted before the reset is not written back");
    sleep(Duration::from_millis(300)).await;
    assert_eq!(redis.entries("tsw:{=alice}:user:1h").await, 1);
}

#[tokio::test]
async fn reset_elsewhere_is_known_after_a_blip() {
    let redis = Redis::start().await;
    let (ours, theirs) = (Far::from(&redis).await, Far::from(&redis).await);
    let (our_limiter, their_limiter) = (ours.limiter(user(5)), theirs.limiter(user(5)));
    for _ in 0..5 {
        assert!(admit(&our_limiter, "alice").await);
    }
    their_limiter.reset("alice").await.unwrap();
    redis.run::<usize>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    ours.mend().await;
    theirs.mend().await;
    for left in (0..5).rev() {
        let Decision::Admitted(admitted) = our_limiter.check("alice").await.unwrap() else {
            panic!("{left} are left")
        };
        assert_eq!(admitted.remaining(), left);
        assert_eq!(their_limiter.peek("alice").await.unwrap().remaining(), left);
    }
    assert!(!admit(&our_limiter, "alice").await);
}

#[tokio::test]
async fn ban_lifted_elsewhere_stays_lifted() {
    let redis = Redis::start().await;
    let (ours, theirs) = (Far::from(&redis).await, Far::from(&redis).await);
    let limiter = ours.limiter(punished(5));
    let their_bans = Bans::new(punished(5), theirs.store.clone());
    their_bans.impose("mallory", HOUR, "by mistake").await.unwrap();
    assert!(!admit(&limiter, "mallory").await, "and so it is known here");
    ours.cut().await;
    assert!(!admit(&limiter, "mallory").await);
    their_bans.lift("mallory").await.unwrap();
    ours.mend().await;
    assert!(admit(&limiter, "mallory").await);
    assert!(their_bans.get("mallory").await.unwrap().is_none());
}

#[tokio::test]
async fn ban_outlives_the_memory_of_redis() {
    let mut redis = Redis::start().await;
    let ours = Far::from(&redis).await;
    let limiter = ours.limiter(punished(5));
    let bans = Bans::new(punished(5), RedisStore::connect(redis.url()).await.unwrap());
    bans.impose("mallory", HOUR, "sells accounts").await.unwrap();
    assert!(!admit(&limiter, "mallory").await, "and so it is known here");
    redis.restart().await;
    ours.mend().await;
    let denied = limiter.check("mallory").await.unwrap();
    assert!(denied.usage().banned_for().is_some_and(|left| left > HOUR * 9 / 10));
    eventually("Redis knows the ban", async || {
        bans.get("mallory").await.is_ok_and(|ban| ban.is_some())
    })
    .await;
}

#[tokio::test]
async fn refused_request_keeps_no_place() {
    let redis = Redis::start().await;
    let process = Far::from(&redis).await;
    let limiter = process.limiter(user(1)).failure_policy(FailurePolicy::Closed);
    for _ in 0..20 {
        // Redis counts the request, and neither of its two replies arrives.
        process.proxy.drop_replies(2);
        let _ = limiter.check("alice").await.unwrap_err();
        process.mend().await;
        assert!(admit(&limiter, "alice").await, "it is cancelled before the next is decided on");
        limiter.reset("alice").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn high_costs_are_written_back() {
    let redis = Redis::start().await;
    let process = Far::from(&redis).await;
    let limiter = process.limiter(user(1_000_000));
    process.cut().await;
    for _ in 0..500 {
        assert!(limiter.check_cost("alice", 1_000).await.unwrap().is_admitted());
    }
    process.mend().await;
    let took = until_redis_decides(&limiter, "alice").await;
    assert!(took < 5 * A_SECOND, "{took:?}");
    let written = redis.entries("tsw:{=alice}:user:1h").await;
    assert!(written >= 500_000, "{written}");
}

#[tokio::test]
async fn clock_stepped_back_past_a_reset() {
    let redis = Redis::start().await;
    let process = Far::from(&redis).await;
    let limiter = process.limiter(user(2));
    limiter.reset("alice").await.unwrap();
    // The clock of the server steps back: the mark then lies in its future.
    let mark = "tsw:{=alice}:user:1h:reset";
    let reset_us: u64 = redis.run::<String>(&["GET", mark]).await.parse().unwrap();
    let future_us = (reset_us + 600_000_000).to_string();
    redis.run::<String>(&["SET", mark, &future_us, "KEEPTTL"]).await;
    process.cut().await;
    for _ in 0..2 {
        assert!(admit(&limiter, "alice").await);
    }
    process.mend().await;
    for _ in 0..2 {
        assert!(!admit(&limiter, "alice").await, "two were admitted in the outage");
    }
    assert_eq!(redis.entries("tsw:{=alice}:user:1h").await, 2);
}
