//! Redis's clock steps: a step back never over-admits, and a step forward counts as time.

use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use tempfile::TempDir;
use test_support::fault::Fault;
use test_support::requests::{ok, request, send};
use test_support::{Redis, patient};
use tower::{Layer, service_fn};
use tower_sliding_window::{
    Decision, FailurePolicy, Limiter, Policy, Quota, SlidingWindowLayer, key,
};

const MINUTE: i64 = 60_000_000;
/// How near the server's clock must be to what the test has set.
const SECOND: i64 = 1_000_000;

/// A server whose clock the test sets.
struct ClockedRedis {
    process: Redis,
    files: TempDir,
}

impl ClockedRedis {
    async fn start() -> Self {
        let files = tempfile::tempdir().unwrap();
        let (library, offset) = (files.path().join("clock.so"), files.path().join("offset"));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/failover/clock.c");
        let arguments = ["-shared", "-fPIC", "-O2", source, "-o"];
        let status = Command::new("cc").args(arguments).arg(&library).status();
        assert!(status.expect("cc, which links Rust programs").success());
        std::fs::write(&offset, "0\n").unwrap();
        let environment = [
            ("LD_PRELOAD", library.to_str().unwrap()),
            ("CLOCK_OFFSET_FILE", offset.to_str().unwrap()),
        ];
        let process = Redis::start_in(&environment, &[]).await;
        let redis = Self { process, files };
        redis.set(-MINUTE).await;
        redis.set(0).await;
        redis
    }

    async fn time_us(&self) -> i64 {
        let (s, us): (i64, i64) = self.process.run(&["TIME"]).await;
        s * 1_000_000 + us
    }

    /// Sets the server's clock, and waits until the server goes by it.
    ///
    /// Valkey 9.1 looks at the clock only when a millisecond has passed without a command, and
    /// counts on from there by the processor's clock.
    async fn set(&self, offset_us: i64) {
        std::fs::write(self.files.path().join("offset"), format!("{offset_us}\n")).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let ahead_us = self.time_us().await - wall_clock_us();
            if (ahead_us - offset_us).abs() < SECOND {
                return;
            }
            assert!(Instant::now() < deadline, "the clock does not obey: {ahead_us} us ahead");
        }
    }

    async fn limiter(&self, policy: Policy) -> Limiter {
        let store = patient().deny_cache(false).connect(self.process.url()).await.unwrap();
        // What this process knows of its own admissions must not help.
        Limiter::new(policy, store).failure_policy(FailurePolicy::Closed)
    }
}

fn wall_clock_us() -> i64 {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    i64::try_from(since_1970.as_micros()).unwrap()
}

/// Checks until denied; returns how many passed and how long the wait is.
async fn fill(limiter: &Limiter) -> (u32, Duration) {
    let mut passed = 0;
    loop {
        match limiter.check("alice").await.unwrap() {
            Decision::Admitted(_) => passed += 1,
            Decision::Denied(denied) => return (passed, denied.retry_after()),
        }
    }
}

/// One quota, which the shorter script decides if no timestamp is wanted, and several.
fn policies() -> [Policy; 2] {
    let user = Policy::new("user").quota(Quota::per_minute(5));
    [user.clone(), Policy::new("users").quota(Quota::per_second(100)).quota(Quota::per_minute(5))]
}

#[tokio::test]
async fn clock_step_back_never_over_admits() {
    let redis = ClockedRedis::start().await;
    for policy in policies() {
        redis.set(0).await;
        let limiter = redis.limiter(policy).await;
        for _ in 0..3 {
            assert!(limiter.check("alice").await.unwrap().is_admitted());
        }
        redis.set(-90_000_000).await;
        let (passed, wait) = fill(&limiter).await;
        assert_eq!(passed, 2, "the three are still in the window");
        let told = wait.as_secs();
        assert!((148..=150).contains(&told), "the oldest leaves when the clock gets there: {told}");
    }
    Fault {
        client_sees: "earlier admissions stay in the window longer, by the length of the step; the \
                      wait includes it",
        added_latency: "none",
        ..Fault::new(
            18,
            "Redis's clock steps back, and forward again later",
            "clock_step_back_never_over_admits",
        )
    }
    .write_row("0", "0 too many of 5 a minute, 90 s back and 90 s forward");
}

#[tokio::test]
async fn clock_steps_forget_no_admission() {
    let redis = ClockedRedis::start().await;
    for policy in policies() {
        redis.set(0).await;
        let limiter = redis.limiter(policy).await;
        for _ in 0..3 {
            assert!(limiter.check("alice").await.unwrap().is_admitted());
        }
        redis.set(-90_000_000).await;
        assert_eq!(fill(&limiter).await.0, 2);
        redis.set(0).await;
        let (passed, wait) = fill(&limiter).await;
        assert_eq!(passed, 0, "all five came within this minute");
        assert!((55..=60).contains(&wait.as_secs()), "{wait:?}");
    }
}

#[tokio::test]
async fn clock_step_forward_counts_as_time() {
    let redis = ClockedRedis::start().await;
    for policy in policies() {
        redis.set(0).await;
        let limiter = redis.limiter(policy).await;
        assert_eq!(fill(&limiter).await.0, 5);
        redis.set(30_000_000).await;
        let (passed, wait) = fill(&limiter).await;
        assert_eq!(passed, 0);
        assert!((28..=30).contains(&wait.as_secs()), "{wait:?}");
        redis.set(MINUTE).await;
        assert_eq!(fill(&limiter).await.0, 5);
    }
    Fault {
        client_sees: "entries leave their windows earlier, by the length of the step",
        added_latency: "none",
        ..Fault::new(19, "Redis's clock steps forward", "clock_step_forward_counts_as_time")
    }
    .write_row("the limit", "5 too many in the minute before and after a step of a minute");
}

/// The layer wants no timestamp, so its commonest requests go through the shorter script.
#[tokio::test]
async fn short_script_obeys_the_clock_too() {
    let redis = ClockedRedis::start().await;
    let store = patient().deny_cache(false).connect(redis.process.url()).await.unwrap();
    let service = SlidingWindowLayer::new(Quota::per_minute(5), key::constant("all"), store)
        .failure_policy(FailurePolicy::Closed)
        .layer(service_fn(ok));
    let fill = async || {
        let mut passed = 0;
        while passed < 3 && send(&service, request(&[])).await.status == 200 {
            passed += 1;
        }
        passed
    };
    assert_eq!(fill().await, 3);
    redis.set(-90_000_000).await;
    assert_eq!(fill().await, 2);
    redis.set(0).await;
    assert_eq!(fill().await, 0, "all five came within this minute");
}
