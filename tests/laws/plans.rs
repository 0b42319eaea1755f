//! Policies of one name with different windows that share a log, such as those of plans.

use std::time::Duration;

use tokio::time::sleep;
use tower_sliding_window::store::Store;
use tower_sliding_window::{Decision, Limiter, Overrides, Policy, Quota};

test_support::on_every_store!(
    shorter_window_keeps_what_a_longer_one_needs,
    removed_override_leaves_the_log,
);

const SECOND: Duration = Duration::from_secs(1);

fn policy(quotas: &str) -> Policy {
    quotas.parse::<Policy>().unwrap().named("user").keep_for(SECOND * 5)
}

fn limiter(quotas: &str, store: &(impl Store + Clone)) -> Limiter {
    Limiter::new(policy(quotas), store.clone())
}

/// Returns the places that are left, or the time to wait.
async fn check(limiter: &Limiter, key: &str) -> Result<u32, Duration> {
    match limiter.check(key).await.unwrap() {
        Decision::Admitted(admitted) => Ok(admitted.remaining()),
        Decision::Denied(denied) => Err(denied.retry_after()),
    }
}

async fn shorter_window_keeps_what_a_longer_one_needs(store: impl Store + Clone) {
    // One quota, and several.
    let plans = [("alice", "2/1s", "3/5s"), ("bob", "2/500ms,2/1s", "3/4s,3/5s")]
        .map(|(key, short, long)| (key, limiter(short, &store), limiter(long, &store)));
    for (key, _, long) in &plans {
        assert_eq!((check(long, key).await, check(long, key).await), (Ok(2), Ok(1)));
    }
    sleep(SECOND + SECOND / 5).await;
    for (key, short, long) in &plans {
        assert_eq!(check(short, key).await, Ok(1), "only its own window counts");
        let wait = check(long, key).await.expect_err("three are in five seconds");
        assert!(SECOND * 3 < wait && wait < SECOND * 4, "{wait:?}");
        assert_eq!(check(short, key).await, Ok(0));
        assert!(check(short, key).await.is_err());
    }
    // The log is kept for the longer window, although the shorter one was used last.
    sleep(SECOND + SECOND / 5).await;
    for (key, short, long) in &plans {
        assert!(check(long, key).await.is_err());
        assert_eq!(check(short, key).await, Ok(1));
    }
}

async fn removed_override_leaves_the_log(store: impl Store + Clone) {
    let users = Overrides::new(Policy::new("user").quota(Quota::new(3, SECOND * 60)));
    let of = |key: &str| Limiter::new(users.get(&key.into()).expect("a policy"), store.clone());
    for _ in 0..2 {
        assert!(check(&of("alice"), "alice").await.is_ok());
    }
    users.set("alice", "9/1s".parse().unwrap()).unwrap();
    sleep(SECOND + SECOND / 5).await;
    assert_eq!(check(&of("alice"), "alice").await, Ok(8));
    users.remove("alice");
    assert!(check(&of("alice"), "alice").await.is_err(), "three are in a minute");
}

/// The uses of a log come from different processes, and the long window is not used for a while.
#[tokio::test]
async fn each_process_counts_what_others_admit() {
    let redis = test_support::Redis::start().await;
    let process = async |quotas| limiter(quotas, &redis.store_without_deny_cache().await);
    assert_eq!(check(&process("3/5s").await, "alice").await, Ok(2));
    sleep(SECOND * 2).await;
    assert_eq!(check(&process("9/1s").await, "alice").await, Ok(8));
    assert_eq!(check(&process("9/1s").await, "alice").await, Ok(7));
    assert!(check(&process("3/5s").await, "alice").await.is_err(), "three are in five seconds");
    sleep(SECOND * 7 / 2).await;
    assert_eq!(check(&process("3/5s").await, "alice").await, Ok(0), "two are in five seconds");
    let ttl_ms: i64 = redis.run(&["PTTL", "tsw:{=alice}:user:5s"]).await;
    assert!((5_000..=6_001).contains(&ttl_ms), "{ttl_ms}");
}

/// Random checks and cancellations under policies with different windows, by several processes.
mod random {
    use std::fmt::Write;

    use test_support::Redis;
    use tokio::task::JoinSet;
    use tower_sliding_window::{Admitted, MemoryStore};

    use super::*;

    const KEYS: u64 = 500;
    const ROUNDS: usize = 40;
    const POLICIES: [&str; 5] = ["4/1s", "5/2s", "7/4s", "3/700ms,6/1500ms", "2/1s,8/3100ms"];

    #[tokio::test(flavor = "multi_thread")]
    async fn each_window_in_use_is_exact_on_redis() {
        let redis = Redis::start().await;
        let mut stores = Vec::new();
        for _ in 0..8 {
            stores.push(redis.store_without_deny_cache().await);
        }
        each_window_in_use_is_exact(&stores).await;
    }

    #[tokio::test(start_paused = true)]
    async fn each_window_in_use_is_exact_in_process() {
        each_window_in_use_is_exact(&[MemoryStore::new()]).await;
    }

    async fn each_window_in_use_is_exact(stores: &[impl Store + Clone]) {
        let mut keys = JoinSet::new();
        for key in 0..KEYS {
            keys.spawn(one_key(key, stores.to_vec()));
        }
        let tested: usize = keys.join_all().await.iter().sum();
        assert!(tested > KEYS as usize * ROUNDS / 3, "only {tested} checks were comparable");
    }

    /// Returns how many decisions were compared with the quotas.
    async fn one_key(key: u64, stores: Vec<impl Store + Clone>) -> usize {
        let mut random = fastrand::Rng::with_seed(key);
        let name = format!("key-{key}");
        // A few policies for each key, so that each is sometimes unused for a while.
        let policies: Vec<Policy> =
            (0..random.usize(2..=4)).map(|_| policy(random.choice(POLICIES).unwrap())).collect();
        let mut admitted: Vec<(Duration, Admitted, Limiter)> = Vec::new();
        let (mut story, mut tested) = (String::new(), 0);
        for _ in 0..ROUNDS {
            let pause = if random.u8(0..8) == 0 { 0..2_000 } else { 0..250 };
            sleep(Duration::from_millis(random.u64(pause))).await;
            let chosen = random.usize(0..policies.len());
            let limiter =
                Limiter::new(policies[chosen].clone(), random.choice(&stores).unwrap().clone());
            if random.u8(0..8) == 0 && !admitted.is_empty() {
                let (at, cancelled, by) = admitted.swap_remove(random.usize(0..admitted.len()));
                by.cancel(&cancelled).await.unwrap();
                writeln!(story, "cancels {at:?}").unwrap();
                continue;
            }
            let decision = limiter.check(name.as_str()).await.unwrap();
            let at = match &decision {
                Decision::Admitted(it) => it.timestamp().unwrap(),
                Decision::Denied(it) => it.timestamp().unwrap(),
            };
            let in_window = |window: Duration| {
                admitted.iter().filter(move |(before, ..)| *before + window > at).count()
            };
            let mut quotas = policies[chosen].quotas().iter();
            let fits = quotas.all(|quota| in_window(quota.window()) < quota.limit() as usize);
            writeln!(story, "{at:?}: {} {}", policies[chosen], decision.is_admitted()).unwrap();
            assert_eq!(decision.is_admitted(), fits, "{name}\n{story}");
            tested += 1;
            if let Decision::Admitted(it) = decision {
                admitted.push((at, it, limiter));
            }
        }
        tested
    }
}
