//! Tests a log that policies with different windows share: random requests under a test clock.

use fastrand::Rng;
use redis::AsyncCommands;
use redis::aio::ConnectionManager;
use test_support::Redis;
use uuid::Uuid;

use super::*;
use crate::quota::Quota;
use crate::redis::EXPIRES_LATER_MS;
use crate::store::Admission;

const LOG: &str = "clock:{=alice}:user";
const RUNS: u64 = 1_000;
const STEPS: usize = 40;
/// Decided by `admit.lua`, or with windows of fractions of a second by `admit_all.lua`.
const POLICIES: [&str; 8] =
    ["1/1s", "3/1s", "2/2s", "5/3s", "3/4s", "2/700ms,4/1500ms", "3/2500ms", "4/3100ms,3/1s"];
/// The longest window of any policy.
const LONGEST_US: u64 = 4_000_000;
const START_US: u64 = 1_790_000_000_123_456;

struct Entry {
    at_us: u64,
    check: Check,
    /// Whether the log must have it: it is in a window in use.
    is_needed: bool,
}

/// One log, what was done to it, and since when each policy is in use.
struct Shared {
    connection: ConnectionManager,
    store: DirectStore,
    random: Rng,
    now_us: u64,
    /// The latest instant before the clock stepped back.
    latest_us: u64,
    policies: Vec<(Arc<Policy>, Option<u64>)>,
    entries: Vec<Entry>,
    story: Vec<String>,
}

impl Shared {
    async fn new(connection: &ConnectionManager, policies: &[&str], random: Rng) -> Self {
        let policy = |text: &&str| (Arc::new(text.parse::<Policy>().unwrap().named("user")), None);
        let mut shared = Self {
            connection: connection.clone(),
            store: DirectStore::with_clock(connection.clone(), "clock"),
            random,
            now_us: 0,
            latest_us: 0,
            policies: policies.iter().map(policy).collect(),
            entries: Vec::new(),
            story: Vec::new(),
        };
        shared.connection.del::<_, ()>(LOG).await.unwrap();
        shared.set_clock(START_US).await;
        shared
    }

    async fn set_clock(&mut self, now_us: u64) {
        self.now_us = now_us;
        let fields = [("s", now_us / 1_000_000), ("us", now_us % 1_000_000)];
        let mut commands = redis::pipe();
        commands.hset_multiple("clock", &fields).ignore().pttl(LOG).cmd("TIME");
        let (left_ms, time): (i64, (u64, u64)) =
            commands.query_async(&mut self.connection).await.unwrap();
        assert!(left_ms != -1, "the log has a TTL: {:#?}", self.story);
        self.latest_us = self.latest_us.max(now_us);
        let real_us = time.0 * 1_000_000 + time.1;
        if left_ms > 0 {
            let expires_us = real_us + left_ms as u64 * 1_000 - EXPIRES_LATER_MS * 1_000;
            let last_us = self.latest_us + LONGEST_US + 1_100_000;
            assert!(expires_us <= last_us, "the TTL: {:#?}", self.story);
            if expires_us <= now_us {
                self.connection.del::<_, ()>(LOG).await.unwrap();
            }
        }
        self.forget();
    }

    /// Forgets what no window in use needs.
    fn forget(&mut self) {
        let (now_us, entries) = (self.now_us, &mut self.entries);
        let mut longest_us = 0;
        for (policy, used_us) in &mut self.policies {
            let window_us = policy.longest_window_us();
            let is_needed = |it: &Entry| it.is_needed && it.at_us + window_us > now_us;
            used_us.take_if(|us| *us + window_us <= now_us || !entries.iter().any(is_needed));
            longest_us = longest_us.max(used_us.map_or(0, |_| window_us));
        }
        entries.iter_mut().for_each(|it| it.is_needed &= it.at_us + longest_us > now_us);
    }

    fn choose(&mut self) -> usize {
        self.random.usize(0..self.policies.len())
    }

    fn log(&self, policy: usize) -> LogId {
        LogId::new(self.policies[policy].0.clone(), "alice")
    }

    async fn step(&mut self) {
        self.forget();
        match self.random.u8(0..24) {
            0..10 => {
                let (policy, is_check) = (self.choose(), self.random.u8(0..10) > 0);
                self.check(policy, is_check).await;
            }
            10..12 if !self.entries.is_empty() => {
                let at = self.random.usize(0..self.entries.len());
                let cancelled = self.entries.swap_remove(at);
                self.story.push(format!("cancel {}", cancelled.at_us));
                self.store.settle(&cancelled.check, 0).await.unwrap();
            }
            12..15 => self.restore().await,
            15 => {
                let back_us = [1, 300, 1_000, 1_500, 100_000, 3_000_000];
                let back_us = *self.random.choice(&back_us).unwrap();
                self.story.push(format!("clock -{back_us}"));
                self.set_clock(self.now_us - back_us).await;
            }
            16..20 if !self.entries.is_empty() => {
                // About when an entry leaves a window.
                let policy = self.choose();
                let entry = self.random.choice(&self.entries).unwrap();
                let leaves_us = entry.at_us + self.policies[policy].0.longest_window_us();
                let now_us = leaves_us - 1 + self.random.u64(0..3);
                if now_us > self.now_us {
                    self.story.push(format!("clock {now_us}"));
                    self.set_clock(now_us).await;
                }
            }
            _ => {
                let step_us = [1, 999, 20_000, 300_000, 2_500_000][self.random.usize(0..5)];
                let step_us = self.random.u64(0..=step_us);
                self.story.push(format!("clock +{step_us}"));
                self.set_clock(self.now_us + step_us).await;
            }
        }
    }

    /// Checks a request, or peeks, so many milliseconds after the start.
    async fn check_at(&mut self, at_ms: u64, policy: usize, record: bool) -> bool {
        self.set_clock(START_US + at_ms * 1_000).await;
        self.check(policy, record).await
    }

    /// Checks a request under a policy, or peeks. Returns whether it is admitted.
    async fn check(&mut self, chosen: usize, record: bool) -> bool {
        let log = self.log(chosen);
        let policy = log.policy.clone();
        let mut check = Check::new([log]);
        check.wants_reset = self.random.bool();
        let outcome = match record {
            true => self.store.admit(&check).await.unwrap(),
            false => self.store.peek(&check).await.unwrap(),
        };
        let word = if record { "check" } else { "peek" };
        self.story.push(format!("{}: {word} {policy}: {}", self.now_us, outcome.admitted));
        let fits = |quota: &Quota, all: bool| {
            let since_us = self.now_us - quota.window_us();
            let counts = |it: &&Entry| it.at_us > since_us && (all || it.is_needed);
            self.entries.iter().filter(counts).count() < quota.limit() as usize
        };
        if outcome.admitted {
            let fits = policy.quotas().iter().all(|quota| fits(quota, false));
            assert!(fits, "never too many: {:#?}", self.story);
            if record {
                let at_us = micros(outcome.timestamp.unwrap());
                self.entries.push(Entry { at_us, check, is_needed: true });
            }
        } else {
            let is_full = policy.quotas().iter().any(|quota| !fits(quota, true));
            assert!(is_full, "never too few: {:#?}", self.story);
        }
        if record {
            self.policies[chosen].1 = Some(self.now_us);
        }
        outcome.admitted
    }

    /// Uses one policy until no other one can be in use, and expects that the log has the entries of
    /// its window only.
    async fn settle_on_one(&mut self) {
        self.policies.truncate(1);
        let window_us = self.policies[0].0.longest_window_us();
        let end_us = self.now_us + 20_000_000;
        while self.now_us < end_us {
            self.set_clock(self.now_us + window_us / 3).await;
            self.check(0, true).await;
        }
        let newest_us = self.entries.iter().map(|it| it.at_us).max().unwrap();
        let old = self.connection.zcount::<_, _, _, usize>(LOG, 0, newest_us - window_us - 1_000);
        assert_eq!(old.await.unwrap(), 0, "expired entries: {:#?}", self.story);
    }

    /// Restores a new admission, or one that the log has or had.
    async fn restore(&mut self) {
        let chosen = self.choose();
        let log = self.log(chosen);
        let known = self.random.usize(0..=2 * self.entries.len());
        let (index, age_us) = match self.entries.get(known) {
            Some(it) if it.at_us <= self.now_us => (known, self.now_us - it.at_us),
            Some(_) => return,
            None => {
                let age_us = self.random.u64(0..4_000_000);
                let mut check = Check::new([log.clone()]);
                check.id = Uuid::from_u128(self.random.u128(..));
                let at_us = self.now_us - age_us;
                self.entries.push(Entry { at_us, check, is_needed: false });
                (self.entries.len() - 1, age_us)
            }
        };
        let entry = &mut self.entries[index];
        self.story.push(format!("restore {} under {}", entry.at_us, log.policy));
        let admission = Admission::new(entry.check.id, 1, Duration::from_micros(age_us));
        self.store.restore(&log, &LogSnapshot::new(vec![admission])).await.unwrap();
        if age_us < log.policy.longest_window_us() {
            entry.is_needed = true;
            self.policies[chosen].1 = Some(self.now_us);
        }
    }
}

#[tokio::test]
async fn each_window_in_use_is_exact() {
    let server = Redis::start().await;
    let connection = server.connection().await;
    for seed in 0..RUNS {
        let mut random = Rng::with_seed(seed);
        let policies = random.choose_multiple(POLICIES, 3);
        let mut shared = Shared::new(&connection, &policies, random).await;
        shared.story.push(format!("seed {seed}"));
        for _ in 0..STEPS {
            shared.step().await;
        }
        if seed % 4 == 0 {
            shared.settle_on_one().await;
        }
    }
}

/// The longest window had been out of use. Its denial keeps the log, although other windows have marks.
#[tokio::test]
async fn denial_takes_the_longest_window_into_use() {
    let server = Redis::start().await;
    let policies = ["9/1s", "9/2s", "2/4s"];
    let mut shared = Shared::new(&server.connection().await, &policies, Rng::new()).await;
    for (policy, at_ms) in [(2, 0), (0, 100), (1, 4_500), (0, 4_600), (0, 5_200), (0, 5_300)] {
        assert!(shared.check_at(at_ms, policy, true).await);
    }
    assert!(!shared.check_at(5_400, 2, true).await);
    assert!(shared.check_at(7_400, 0, true).await);
    assert!(!shared.check_at(7_450, 2, true).await);
}

/// A peek removes the last admissions, and leaves the marks.
#[tokio::test]
async fn marks_without_admissions_keep_no_log() {
    let server = Redis::start().await;
    let mut shared = Shared::new(&server.connection().await, &["5/1s", "5/4s"], Rng::new()).await;
    for (policy, at_ms, record) in
        [(1, 0, true), (0, 100, true), (0, 4_300, false), (0, 4_400, true), (0, 4_500, true)]
    {
        // Each setting of the clock looks at the TTL.
        assert!(shared.check_at(at_ms, policy, record).await);
    }
    shared.set_clock(START_US + 6_600_000).await;
    assert!(!shared.connection.exists::<_, bool>(LOG).await.unwrap(), "{:#?}", shared.story);
}
