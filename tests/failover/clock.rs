//! Redis's clock steps: a step back never over-admits, and a step forward counts as time.

use std::time::UNIX_EPOCH;

use tempfile::TempDir;

use crate::*;

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

    /// Sets the server's clock, and waits until the server goes by it.
    ///
    /// Valkey 9.1 looks at the clock only when a millisecond has passed without a command, and
    /// counts on from there by the processor's clock.
    async fn set(&self, offset_us: i64) {
        std::fs::write(self.files.path().join("offset"), format!("{offset_us}\n")).unwrap();
        eventually("the clock obeys", async || {
            let (s, us): (i64, i64) = self.process.run(&["TIME"]).await;
            let now_us = UNIX_EPOCH.elapsed().unwrap().as_micros() as i64;
            (s * 1_000_000 + us - now_us - offset_us).abs() < SECOND
        })
        .await;
    }

    async fn limiter(&self) -> Limiter {
        let store = self.process.store_without_deny_cache().await;
        // What this process knows of its own admissions must not help.
        Limiter::new(Quota::per_minute(5), store).failure_policy(FailurePolicy::Closed)
    }
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

#[tokio::test]
async fn clock_step_back_never_over_admits() {
    let redis = ClockedRedis::start().await;
    let limiter = redis.limiter().await;
    for _ in 0..3 {
        assert!(admit(&limiter, "alice").await);
    }
    redis.set(-90_000_000).await;
    let (passed, wait) = fill(&limiter).await;
    assert_eq!(passed, 2, "the three are still in the window");
    let told = wait.as_secs();
    assert!((148..=150).contains(&told), "the oldest leaves when the clock gets there: {told}");
    redis.set(0).await;
    let (passed, wait) = fill(&limiter).await;
    assert_eq!(passed, 0, "all five came within this minute");
    assert!((55..=60).contains(&wait.as_secs()), "{wait:?}");
    let measured = "0 too many of 5 a minute, 90 s back and 90 s forward";
    fault::report("clock_step_back_never_over_admits", "0", measured);
}

#[tokio::test]
async fn clock_step_forward_counts_as_time() {
    let redis = ClockedRedis::start().await;
    let limiter = redis.limiter().await;
    assert_eq!(fill(&limiter).await.0, 5);
    redis.set(30_000_000).await;
    let (passed, wait) = fill(&limiter).await;
    assert_eq!(passed, 0);
    assert!((28..=30).contains(&wait.as_secs()), "{wait:?}");
    redis.set(MINUTE).await;
    assert_eq!(fill(&limiter).await.0, 5);
    let measured = "5 too many in the minute before and after a step of a minute";
    fault::report("clock_step_forward_counts_as_time", "the limit", measured);
}

/// A ban was lifted while the clock was ahead. A ban of an outage after that was not lifted.
#[tokio::test]
async fn ban_lifted_before_a_step_back_lifts_no_later_one() {
    let redis = ClockedRedis::start().await;
    let far = Far::from(&redis.process).await;
    let policy = strict(user(1), "1/10m:1h");
    let ours = limiter(&policy, &far.store);
    let bans = Bans::new(policy, redis.process.store().await);
    redis.set(60 * MINUTE).await;
    bans.impose("mallory", Duration::from_secs(60), "by mistake").await.unwrap();
    bans.lift("mallory").await.unwrap();
    redis.set(0).await;
    far.cut().await;
    assert!(admit(&ours, "mallory").await);
    assert!(!admit(&ours, "mallory").await, "a strike, and a ban");
    far.mend().await;
    redis.process.has_entries("tsw:{=mallory}:user:1h", 1).await;
    eventually("it stands", async || bans.get("mallory").await.unwrap().is_some()).await;
}

/// Another process has banned a key, as the limiter knows. Then the clock steps back, such as to that of a replica that
/// takes over, and the ban is lifted. Or this process meets no check of the key after that, before it writes what a new
/// master may lack.
#[tokio::test]
async fn ban_lifted_after_a_step_back_stays_lifted() {
    join_all([true, false].map(async |is_met| {
        let mut redis = ClockedRedis::start().await;
        let policy = strict(user(5), "1/10m:1h");
        let ours = limiter(&policy, &redis.process.store().await);
        let bans = Bans::new(policy, redis.process.store().await);
        bans.impose("mallory", HOUR, "by mistake").await.unwrap();
        assert!(!admit(&ours, "mallory").await, "banned");
        redis.set(-MINUTE).await;
        if is_met {
            bans.lift("mallory").await.unwrap();
            eventually("it is lifted", async || admit(&ours, "mallory").await).await;
            redis.process.kill();
            sleep(Duration::from_millis(1_100)).await;
        } else {
            sleep(Duration::from_millis(100)).await;
            bans.lift("mallory").await.unwrap();
            redis.process.command("DEL tsw:mark").await;
            sleep(Duration::from_millis(1_100)).await;
            assert!(admit(&ours, "alice").await);
            sleep(Duration::from_millis(300)).await;
        }
        assert!(admit(&ours, "mallory").await, "it was lifted, {is_met}");
    }))
    .await;
}
