//! Tests of [`Denials`] in front of a store in process, under paused time.

use std::sync::atomic::AtomicUsize;

use fastrand::Rng;
use tokio::time::{advance, sleep};

use super::*;
use crate::MemoryStore;
use crate::limiter::Limiter;
use crate::policy::{Policy, PolicyHandle};
use crate::quota::Quota;
use crate::store::contract::{Player, history};
use crate::store::{Store, StoreFuture};
use crate::window::{Decision, Explanation, Strike};

const TICK: Duration = Duration::from_micros(1);
const A_SECOND: Duration = Duration::from_secs(1);

/// Denials in front of a store, used as a [`RedisStore`](crate::RedisStore) uses them. It counts its checks, and may take
/// its time to send one and to reply.
#[derive(Clone)]
struct Cached {
    store: MemoryStore,
    denials: Arc<Denials>,
    checks: Arc<AtomicUsize>,
    before: Duration,
    after: Duration,
}

impl Cached {
    fn new() -> Self {
        Self::with(DEFAULT_CAPACITY, DEFAULT_MAX_AGE)
    }

    fn with(capacity: usize, max_age: Duration) -> Self {
        Self {
            store: MemoryStore::new(),
            denials: Arc::new(Denials::new(capacity, max_age)),
            checks: Arc::default(),
            before: Duration::ZERO,
            after: Duration::ZERO,
        }
    }

    fn checks(&self) -> usize {
        self.checks.load(Ordering::Relaxed)
    }
}

/// Denials that hold for as long as the store says.
fn cached() -> Cached {
    Cached::with(DEFAULT_CAPACITY, Duration::MAX)
}

async fn delay(time: Duration) {
    // A sleep of zero takes a millisecond.
    if !time.is_zero() {
        sleep(time).await;
    }
}

impl Store for Cached {
    fn admit(&self, check: &Check) -> StoreFuture<Outcome> {
        if let Some(denial) = self.denials.find(check, Instant::now()) {
            return StoreFuture::ready(Ok(denial));
        }
        let (this, check) = (self.clone(), check.clone());
        StoreFuture::later(async move {
            let (sent, generations) = (Instant::now(), this.denials.generations(&check.logs));
            this.checks.fetch_add(1, Ordering::Relaxed);
            delay(this.before).await;
            let outcome = this.store.admit(&check).await?;
            delay(this.after).await;
            this.denials.note(&check, &outcome, sent, &generations);
            Ok(outcome)
        })
    }

    fn peek(&self, check: &Check) -> StoreFuture<Outcome> {
        self.store.peek(check)
    }

    fn explain(&self, check: &Check) -> StoreFuture<Explanation> {
        self.store.explain(check)
    }

    fn settle(&self, check: &Check, cost: u32) -> StoreFuture<bool> {
        self.denials.forget(&check.logs);
        self.store.settle(check, cost)
    }

    fn reset(&self, log: &LogId) -> StoreFuture<()> {
        self.denials.forget(std::slice::from_ref(log));
        self.store.reset(log)
    }
}

async fn admit(limiter: &Limiter, key: &str) -> bool {
    limiter.check(key).await.unwrap().is_admitted()
}

async fn retry_after(limiter: &Limiter, key: &str) -> Duration {
    match limiter.check(key).await.unwrap() {
        Decision::Denied(denied) => denied.retry_after(),
        Decision::Admitted(_) => panic!("it is admitted"),
    }
}

/// What is repeated from memory, the store would say in random histories too.
#[tokio::test(start_paused = true)]
async fn memory_decides_as_the_store() {
    for seed in 0..400 {
        let store = cached();
        let steps = history(&mut Rng::with_seed(seed), 80, false);
        let keys = ["alice", "bob"].map(Into::into);
        let mut player = Player::new(&store, keys, 0, false);
        player.reads_parts = true;
        let mut clock_us = 0;
        let mut move_clock = async |now_us: u64| {
            advance(Duration::from_micros(now_us - clock_us)).await;
            clock_us = now_us;
        };
        let played = player.play(&steps, &mut move_clock).await;
        played.unwrap_or_else(|difference| panic!("seed {seed}: {difference}"));
    }
}

#[tokio::test(start_paused = true)]
async fn slow_reply_causes_no_false_denial() {
    let slow = Duration::from_millis(300);
    for (before, after) in [(slow, Duration::ZERO), (Duration::ZERO, slow), (slow, slow)] {
        let store = Cached { before, after, ..cached() };
        let limiter = Limiter::new(Quota::per_second(1), store.clone());
        let truth = Limiter::new(Quota::per_second(1), store.store.clone());
        assert!(admit(&limiter, "alice").await);
        let told_wait = retry_after(&limiter, "alice").await;
        // The cache denies for as long as that is certain, and names the rest of the wait each time.
        let mut waited = Duration::ZERO;
        loop {
            let checks = store.checks();
            let decision = limiter.check("alice").await.unwrap();
            if store.checks() > checks {
                break;
            }
            let left = decision.denied().expect("the cache only denies").retry_after();
            let truly = truth.peek("alice").await.unwrap().retry_after();
            assert!(!truly.is_zero(), "the store would have admitted it");
            assert!(truly <= left, "told_wait {left:?}, which is too short: {truly:?}");
            assert_eq!(left + waited, told_wait, "the wait counts from when the reply arrived");
            advance(Duration::from_millis(1)).await;
            waited += Duration::from_millis(1);
        }
        assert!(waited <= told_wait, "the cache denies for {waited:?} of {told_wait:?}");
    }
}

/// A denial at a cost of 1 does not say how long a higher cost waits in another log.
#[tokio::test(start_paused = true)]
async fn denial_of_a_budget_is_repeated_at_a_cost_of_1_only() {
    let store = cached();
    let user = PolicyHandle::new(Policy::new("user").quota(Quota::new(1, A_SECOND * 5)));
    let tokens = PolicyHandle::new(Policy::new("tokens").quota(Quota::per_minute(3)).budget());
    let limiter = Limiter::new(&user, store.clone());
    let of_tokens =
        async |cost| limiter.check_all([(&tokens, "here", cost)]).await.unwrap().is_admitted();
    let both = async |cost| {
        let logs = [(&user, "alice", 1), (&tokens, "here", cost)];
        limiter.check_all(logs).await.unwrap()
    };
    assert!(both(2).await.is_admitted());
    for cost in [2, 2, 3, 3] {
        assert!(!of_tokens(cost).await);
    }
    assert_eq!(store.checks(), 5, "each of them is sent");
    for cost in [1, 1, 3] {
        let decision = both(cost).await;
        assert_eq!(decision.denied().unwrap().violated().collect::<Vec<_>>(), ["user"]);
    }
    assert_eq!(store.checks(), 6, "the quota of requests denies at any cost");
    assert!(of_tokens(1).await && !of_tokens(1).await && !of_tokens(1).await);
    assert_eq!(store.checks(), 8, "the denial of the last one is repeated");
    assert!(!of_tokens(2).await);
    assert_eq!(store.checks(), 9, "a higher cost waits for longer");
}

#[tokio::test(start_paused = true)]
async fn denial_is_cached_for_a_second_at_most() {
    let ours = Cached::new();
    let theirs = Cached { store: ours.store.clone(), ..Cached::new() };
    let [here, there] = [ours, theirs].map(|it| Limiter::new(Quota::per_minute(1), it));
    let admitted = there.check("alice").await.unwrap();
    assert!(!admit(&here, "alice").await);
    there.cancel(admitted.admitted().unwrap()).await.unwrap();
    advance(Duration::from_millis(750) - TICK).await;
    assert!(!admit(&here, "alice").await);
    advance(Duration::from_millis(250) + TICK).await;
    assert!(admit(&here, "alice").await);
}

#[tokio::test(start_paused = true)]
async fn cache_keeps_to_its_capacity() {
    let store = Cached::with(100, Duration::MAX);
    let limiter = Limiter::new(Quota::per_minute(1), store.clone());
    for key in 0..1000 {
        let key = key.to_string();
        assert!(admit(&limiter, &key).await);
        assert!(!admit(&limiter, &key).await);
    }
    let checks = store.checks();
    for key in 0..1000 {
        assert!(!admit(&limiter, &key.to_string()).await);
    }
    assert!(store.checks() - checks >= 850, "at most 100 and some were remembered");
}

/// Two routes have policies of one name with different limits. What one of them admits makes the wait of the other longer.
#[tokio::test(start_paused = true)]
async fn each_policy_of_a_log_has_its_own_denial() {
    let store = cached();
    let limiter =
        |limit| Limiter::new(Policy::new("user").quota(Quota::per_minute(limit)), store.clone());
    let (one, two) = (limiter(1), limiter(2));
    assert!(admit(&one, "alice").await && !admit(&one, "alice").await);
    advance(A_SECOND).await;
    assert!(admit(&two, "alice").await);
    assert_eq!(retry_after(&one, "alice").await, A_SECOND * 60);
    for _ in 0..100 {
        assert!(!admit(&one, "alice").await && !admit(&two, "alice").await);
    }
    assert_eq!(store.checks(), 5, "two admissions and three denials");
}

/// A policy that is another one with each request would be kept with each.
#[tokio::test(start_paused = true)]
async fn denials_that_are_over_are_dropped() {
    let cache = Cached::new();
    let policy = |limit| {
        let short = Quota::new(limit, A_SECOND * 59);
        Policy::new("user").quota(Quota::per_minute(1)).quota(short)
    };
    assert!(admit(&Limiter::new(policy(1), cache.clone()), "alice").await);
    for limit in 1..40 {
        assert!(!admit(&Limiter::new(policy(limit), cache.clone()), "alice").await);
        sleep(A_SECOND).await;
    }
    let kept = cache.denials.cache.get(&LogId::new(Arc::new(policy(1)), "alice"));
    assert_eq!(kept.map(|denials| denials.len()), Some(1));
}

/// A denial that is repeated from memory must not hide the strike after an episode.
#[tokio::test(start_paused = true)]
async fn memory_hides_no_strike() {
    // Its episodes end while a denial would still be remembered.
    let policy = Policy::new("user").quota(Quota::new(2, A_SECOND));
    let policy = Arc::new(policy.penalty("100/24h:1m".parse().unwrap()));
    let strikes = async |store: Arc<dyn Store>| {
        let (mut strikes, mut random) = (0, Rng::with_seed(1));
        for _ in 0..3_000 {
            let log = LogId::new(policy.clone(), "mallory");
            let outcome = store.admit(&Check::new([log])).await.unwrap();
            let counted = outcome.logs().iter().filter(|it| it.ban().strike() == Strike::Counted);
            strikes += counted.count();
            sleep(Duration::from_millis(random.u64(1..200))).await;
        }
        strikes
    };
    let truth = strikes(Arc::new(MemoryStore::new())).await;
    assert!(truth > 90, "{truth} in five minutes");
    let store = Cached::new();
    assert_eq!(strikes(Arc::new(store.clone())).await, truth);
    assert!(store.checks() < 1_500, "{} checks", store.checks());
}

#[tokio::test(start_paused = true)]
async fn remembered_ban_gets_shorter() {
    let policy = Policy::new("user").quota(Quota::per_minute(1));
    let policy = policy.penalty("1/10m:5m".parse().unwrap());
    let limiter = Limiter::new(policy, Cached::new());
    assert!(admit(&limiter, "mallory").await);
    let told = retry_after(&limiter, "mallory").await;
    let half = Duration::from_millis(500);
    sleep(half).await;
    assert_eq!(retry_after(&limiter, "mallory").await, told - half);
}
