//! Tests of the interleavings that `redis.rs` and `reconcile.rs` name, and of `reconcile.lua`.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::thread;

use fastrand::Rng;
use redis::Cmd;
use test_support::clock::Clock;
use test_support::proxy::{Fault, Proxy};
use test_support::warnings::Warnings;
use test_support::{Redis, eventually};
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};
use tokio_test::{assert_pending, task};
use uuid::Uuid;

use super::journal::{Origin, RequestState, State, Writer};
use super::*;
use crate::quota::Quota;
use crate::redis::{BatchedRequest, Scripts};

const LIMIT: u32 = 5;
const HOUR: Duration = Duration::from_secs(3_600);

fn log(key: impl ToString) -> LogId {
    let policy = Policy::new("user").quota(Quota::per_hour(LIMIT));
    LogId::new(Arc::new(policy), key.to_string())
}

/// A log whose entries have costs, as the random reconciliations change them.
fn budget() -> LogId {
    let policy = Policy::new("user").quota(Quota::per_hour(LIMIT)).budget();
    LogId::new(Arc::new(policy), "alice")
}

fn check(key: impl ToString) -> Check {
    Check::new([log(key)])
}

fn name(key: &str) -> String {
    format!("tsw:{{={key}}}:user:1h")
}

fn request(check: impl Into<Arc<Check>>, mode: Mode) -> CheckRequest {
    CheckRequest { check: check.into(), mode, turns: 0 }
}

fn decided(reply: CheckReply) -> Outcome {
    match reply {
        CheckReply::Decided(outcome) => outcome,
        CheckReply::SendAgain(_) => panic!("it has to be sent again"),
    }
}

async fn store(url: String) -> RedisStore {
    RedisStore::builder().deny_cache(false).connect(url).await.unwrap()
}

/// Starts a Redis, and a store on it.
async fn start() -> (Redis, RedisStore) {
    let server = Redis::start().await;
    let store = store(server.url()).await;
    (server, store)
}

/// The same, behind a network that may fail.
async fn far() -> (Redis, Proxy, RedisStore) {
    let server = Redis::start().await;
    let proxy = Proxy::to(server.port()).await;
    let store = store(proxy.url()).await;
    (server, proxy, store)
}

impl RedisStore {
    /// Starts a Redis, and returns a store whose scripts read a clock that the test moves. It remembers no denials.
    pub(in crate::store) async fn with_clock() -> (Self, Clock) {
        let clock = Clock::on_redis().await;
        let url = clock.redis().unwrap().url();
        let builder = Self::builder().prefix("clock").deny_cache(false);
        let servers = RedisServers::one(url).unwrap();
        let store = builder.build(servers, Scripts::with_clock("clock")).unwrap();
        store.0.client.connect().await.unwrap();
        (store, clock)
    }

    /// Makes the journal know of a loss of a log.
    fn lose(&self, log: &LogId, losses: u64) {
        let known = self.0.local.see_loss(log, losses);
        self.0.journal.with(|state| state.lose(log, known));
    }

    /// Writes what the journal has, and returns how many places a log has left.
    async fn remaining_after_write(&self, log: &LogId) -> u32 {
        self.ensure_task();
        self.settled_journal().await;
        let peeked = Store::peek(self, &Check::new([log.clone()])).await.unwrap();
        peeked.logs()[0].quotas()[0].remaining()
    }

    async fn admit_one(&self, check: &Check) -> bool {
        Store::admit(self, check).await.unwrap().admitted
    }

    /// Decides as in an outage.
    fn decide_as_in_an_outage(&self, check: &Check) -> bool {
        self.decide_without_redis(check, StoreError::Unavailable).unwrap().admitted
    }

    /// Sends checks in one call, in their order.
    pub(in crate::store) async fn admit_in_one_call(
        &self,
        checks: &[Check],
    ) -> Vec<Result<Outcome, StoreError>> {
        let requests: Vec<_> =
            checks.iter().map(|check| request(check.clone(), Mode::New)).collect();
        let replies = self.0.checks.call(requests.iter()).await.unwrap();
        replies.into_iter().map(|reply| reply.map(decided)).collect()
    }

    /// Sends a check as after a lost reply.
    pub(in crate::store) fn send_again(&self, check: &Check) -> StoreFuture<Outcome> {
        let (this, check) = (self.clone(), Arc::new(check.clone()));
        StoreFuture::later(async move { this.check_once(check, Mode::Again).await })
    }

    async fn settled_journal(&self) {
        eventually("all is written", async || self.0.journal.is_empty()).await;
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn penalized(key: &str) -> LogId {
    let policy = Policy::new("user").quota(Quota::per_hour(LIMIT));
    LogId::new(Arc::new(policy.penalty("1/1h:1h".parse().unwrap())), key)
}

/// Claims the write of a log.
fn claim(store: &RedisStore, log: &LogId) -> Writer {
    let claim = store.0.journal.with(|state| state.claim(log, LIMIT as usize, Instant::now()));
    claim.unwrap().1.unwrap()
}

/// Half of the requests go to Redis, and the others are decided here.
#[test]
fn last_place_is_taken_once() {
    const THREADS: usize = 4;
    let runtime = runtime();
    let (_server, store) = runtime.block_on(start());
    let together = Barrier::new(THREADS);
    for round in 0..300 {
        for _ in 1..LIMIT {
            assert!(runtime.block_on(store.admit_one(&check(round))));
        }
        let one = |number: usize| {
            let store = store.clone();
            let beside = |when| log(format!("{when} {round} {number}"));
            let check = Check::new([beside("before"), log(round), beside("after")]);
            together.wait();
            match number % 2 {
                0 => runtime.block_on(async { store.decide_as_in_an_outage(&check) }),
                _ => runtime.block_on(store.admit_one(&check)),
            }
        };
        let passed = thread::scope(|scope| {
            let threads: Vec<_> =
                (0..THREADS).map(|number| scope.spawn(move || one(number))).collect();
            threads.into_iter().map(|it| it.join().unwrap()).filter(|it| *it).count()
        });
        assert!(passed <= 1, "{passed} took the last place, in round {round}");
    }
}

#[test]
fn cancelled_request_stays_cancelled() {
    let runtime = runtime();
    let (server, store) = runtime.block_on(start());
    for round in 0..200 {
        let key = round.to_string();
        let cancelled = check(&key);
        runtime.block_on(async { assert!(store.decide_as_in_an_outage(&cancelled)) });
        let together = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                together.wait();
                runtime.block_on(Store::settle(&store, &cancelled, 0)).unwrap();
            });
            together.wait();
            runtime.block_on(store.admit_one(&check(&key)));
        });
        runtime.block_on(store.settled_journal());
        let entries = runtime.block_on(server.entries(&name(&key)));
        assert_eq!(entries, 1, "only the other request is there, in round {round}");
    }
}

/// Another runtime has written what a writer at rest has, and a request was cancelled since. The writer has not begun, or
/// waits for a connection.
#[test]
fn writer_that_was_at_rest_brings_nothing_back() {
    let play = |waits: bool| {
        let one = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let other = runtime();
        let server = other.block_on(Redis::start());
        let proxy = other.block_on(Proxy::to(server.port()));
        let store = RedisStore::builder().deny_cache(false).connect_lazy(proxy.url()).unwrap();
        if waits {
            proxy.set(Fault::Stall);
        }
        let cancelled = check("alice");
        one.block_on(async {
            assert!(store.decide_as_in_an_outage(&cancelled));
            assert_pending!(task::spawn(store.reconcile(&cancelled.logs)).poll());
            if waits {
                sleep(Duration::from_millis(100)).await;
            }
        });
        proxy.set(Fault::None);
        let is_decided_there = async || {
            let decided =
                timeout(Duration::from_secs(5), Store::admit(&store, &check("alice"))).await;
            decided.expect("within five seconds").unwrap().decided_by == DecidedBy::Store
        };
        other.block_on(eventually("Redis decides again", is_decided_there));
        let entries = || other.block_on(server.entries(&name("alice")));
        let before = entries();
        assert!(other.block_on(Store::settle(&store, &cancelled, 0)).unwrap());
        assert_eq!(entries(), before - 1);
        one.block_on(async { sleep(Duration::from_millis(300)).await });
        assert_eq!(entries(), before - 1, "stays cancelled: {waits}");
    };
    thread::scope(|scope| {
        scope.spawn(|| play(false));
        play(true);
    });
}

/// All requests share it, and some thousand have come in the outage.
#[tokio::test]
async fn distant_redis_decides_about_a_busy_log_within_a_second() {
    let (_server, proxy, store) = far().await;
    let policy = Arc::new(Policy::new("user").quota(Quota::per_hour(100_000)));
    let check = || Check::new([LogId::new(policy.clone(), "all")]);
    assert!(store.admit_one(&check()).await);
    for _ in 0..3_000 {
        assert!(store.decide_as_in_an_outage(&check()));
    }
    proxy.set(Fault::Delay(Duration::from_millis(250)));
    let outcome = Store::admit(&store, &check()).await.unwrap();
    assert_eq!(outcome.decided_by, DecidedBy::Store);
    assert_eq!(outcome.logs()[0].quotas()[0].remaining(), 100_000 - 3_002);
}

/// After an outage of many busy logs, the calls that write them wait for each other.
#[tokio::test]
async fn check_of_a_log_that_waits_too_long_for_its_write_is_decided_here() {
    let (_server, store) = start().await;
    assert!(store.decide_as_in_an_outage(&check("alice")));
    let writer = claim(&store, &log("alice"));
    let mut waits = task::spawn(Store::admit(&store, &check("alice")));
    assert_pending!(waits.poll());
    store.0.journal.with(|state| state.finish(&writer, Err(StoreError::Overloaded)));
    assert_eq!(waits.await.unwrap().decided_by, DecidedBy::LocalLog);
}

/// What comes to be written while a check waits does not concern it.
#[tokio::test]
async fn check_does_not_wait_for_later_changes() {
    let (_server, proxy, store) = far().await;
    let policy = Arc::new(Policy::new("user").quota(Quota::per_hour(100_000)));
    let check = || Check::new([LogId::new(policy.clone(), "all")]);
    let admitted: Vec<_> = (0..200).map(|_| check()).collect();
    for check in &admitted {
        assert!(store.admit_one(check).await);
    }
    proxy.set(Fault::Delay(Duration::from_millis(10)));
    assert!(store.decide_as_in_an_outage(&check()));
    let cancelling = store.clone();
    let task = tokio::spawn(async move {
        for check in admitted {
            Store::settle(&cancelling, &check, 0).await.unwrap();
        }
    });
    let outcome = timeout(Duration::from_secs(1), Store::admit(&store, &check())).await;
    assert_eq!(outcome.expect("in a second").unwrap().decided_by, DecidedBy::Store);
    task.await.unwrap();
}

/// More at once than may wait are no silence: Redis is well, and knows what other processes have admitted. If it has replied to
/// none of them for a second, it is an outage.
#[tokio::test]
async fn burst_above_what_may_wait_is_no_outage() {
    let (_server, store) = start().await;
    let (check, now) = (Arc::new(check("alice")), Instant::now());
    let send = |now| store.0.checks.send(request(check.clone(), Mode::Peek), now);
    let waiting: Vec<_> = (0..65_536).map(|_| send(now)).collect();
    let late = send(now).await;
    assert!(matches!(late, Err(StoreError::Overloaded)), "{:?}", late.err());
    let silent = send(now + Duration::from_secs(2)).await;
    assert!(matches!(silent, Err(StoreError::Unavailable)), "{:?}", silent.err());
    drop(waiting);
}

/// The reply to a renewal is lost, and its repetition meets an overload: the request still runs. A new one has no place yet,
/// whatever this process knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_that_meets_an_overload_keeps_its_place() {
    for is_new in [false, true] {
        let server = Redis::start().await;
        let proxy = Proxy::to(server.port()).await;
        // A busy machine may take its time to connect again, which is no outage.
        let ours =
            RedisStore::builder().deny_cache(false).response_timeout(Duration::from_secs(10));
        let ours = ours.connect(proxy.url()).await.unwrap();
        let theirs = store(server.url()).await;
        let policy = Policy::new("runs").quota(Quota::per_hour(1)).in_flight();
        let log = LogId::new(Arc::new(policy), "alice");
        let running = Check::new([log.clone()]);
        assert!(if is_new { &theirs } else { &ours }.admit_one(&running).await);
        let next = if is_new { Check::new([log]) } else { running };
        proxy.set(Fault::Delay(Duration::from_millis(200)));
        proxy.drop_replies_to("=alice", 1);
        let decided = tokio::spawn(Store::admit(&ours, &next));
        let (other, mut waiting) = (Arc::new(check("bob")), Vec::new());
        while !decided.is_finished() {
            tokio::task::yield_now().await;
            let more = if waiting.len() < 65_536 { 65_536 } else { 128 };
            for _ in 0..more {
                let request = request(other.clone(), Mode::Peek);
                waiting.push(ours.0.checks.send(request, Instant::now()));
            }
        }
        proxy.set(Fault::None);
        drop(waiting);
        let is_admitted = decided.await.unwrap().is_ok_and(|outcome| outcome.admitted);
        assert!(!(is_new && is_admitted), "two run");
        ours.settled_journal().await;
        assert_eq!(server.entries("tsw:{=alice}:runs:1h:in_flight").await, 1);
    }
}

/// A denial is read after the ban was lifted. It must not bring the ban back here.
#[tokio::test]
async fn late_denial_brings_no_lifted_ban_back() {
    let (server, store) = start().await;
    let (log, minute) = (penalized("mallory"), Duration::from_secs(60));
    Store::impose(&store, &log, minute, "by hand", false).await.unwrap();
    let looks = server.call_count("hmget").await;
    let mut late = task::spawn(Store::admit(&store, &Check::new([log.clone()])));
    assert_pending!(late.poll());
    eventually("Redis has denied", async || server.call_count("hmget").await > looks).await;
    assert!(Store::lift(&store, &log).await.unwrap());
    assert!(!late.await.unwrap().admitted);
    assert!(store.0.local.standing_ban(&log).is_none());
}

/// The key has another policy of that name, with logs of its own, as by an override.
#[tokio::test]
async fn late_denial_under_another_retention_brings_no_lifted_ban_back() {
    let server = Redis::start().await;
    let store = store(server.url()).await;
    let (log, minute) = (penalized("mallory"), Duration::from_secs(60));
    let longer = Policy::clone(&log.policy).quota(Quota::per_day(9));
    let of_key = LogId::new(Arc::new(longer), "mallory");
    Store::impose(&store, &log, minute, "by hand", false).await.unwrap();
    let looks = server.call_count("hmget").await;
    let mut late = task::spawn(Store::admit(&store, &Check::new([of_key.clone()])));
    assert_pending!(late.poll());
    eventually("Redis has denied", async || server.call_count("hmget").await > looks).await;
    assert!(Store::lift(&store, &log).await.unwrap());
    assert!(!late.await.unwrap().admitted);
    assert!(store.0.local.standing_ban(&of_key).is_none());
}

/// Code that blocks the runtime, or a machine that stands still. Redis replies all the time, and nobody has asked it.
#[tokio::test]
async fn delay_of_this_process_is_no_outage() {
    let server = Redis::start().await;
    let [ours, theirs] = [store(server.url()).await, store(server.url()).await];
    for _ in 0..LIMIT {
        assert!(theirs.admit_one(&check("alice")).await);
    }
    let next = || {
        let mut next = task::spawn(Store::admit(&ours, &check("alice")));
        assert_pending!(next.poll());
        next
    };
    // More than go in one call.
    let all: Vec<_> = (0..100).map(|_| next()).collect();
    thread::sleep(Duration::from_millis(1_200));
    for next in all {
        let outcome = next.await.unwrap();
        assert_eq!((outcome.admitted, outcome.decided_by), (false, DecidedBy::Store));
    }
}

/// It would name a time at which the request that was written back is still there.
#[tokio::test]
async fn denial_from_before_a_write_back_is_not_repeated() {
    let server = Redis::start().await;
    let theirs = store(server.url()).await;
    let ours = RedisStore::connect(server.url()).await.unwrap();
    for _ in 0..LIMIT {
        assert!(theirs.admit_one(&check("alice")).await);
        sleep(Duration::from_millis(20)).await;
    }
    let free_at = async || {
        let denial = Store::admit(&ours, &check("alice")).await.unwrap();
        denial.timestamp.unwrap() + denial.logs()[0].quotas()[0].wait()
    };
    let first_leaves_at = free_at().await;
    assert!(ours.decide_as_in_an_outage(&check("alice")));
    ours.settled_journal().await;
    let second_leaves_at = free_at().await;
    assert!(second_leaves_at > first_leaves_at + Duration::from_millis(10));
}

/// A route whose policy has no penalty shares the log of one that has one. An earlier ban of the key was lifted.
#[tokio::test]
async fn ban_is_written_back_beside_a_policy_without_a_penalty() {
    let (server, store) = start().await;
    let strict = penalized("mallory");
    Store::lift(&store, &strict).await.unwrap();
    sleep(2 * requests::USUAL_DELAY).await;
    Store::impose(&store, &strict, HOUR, "by hand", false).await.unwrap();
    assert!(!store.admit_one(&Check::new([strict.clone()])).await);
    server.run::<i64>(&["DEL", "tsw:{=mallory}:user:ban"]).await;
    sleep(Duration::from_millis(2)).await;
    store.0.health.record_loss();
    sleep(Duration::from_millis(2)).await;
    assert!(store.decide_as_in_an_outage(&check("mallory")));
    assert!(!store.admit_one(&Check::new([strict])).await);
    assert_eq!(server.run::<i64>(&["EXISTS", "tsw:{=mallory}:user:ban"]).await, 1);
}

/// As those that bring a ban in Redis do.
#[tokio::test]
async fn strikes_from_before_a_ban_of_an_outage_do_not_count_after_it() {
    let (_server, store) = start().await;
    let quota = Quota::new(1, Duration::from_millis(50));
    let policy = Policy::new("strict").quota(quota).penalty("2/1h:1s,1h".parse().unwrap());
    let check = || Check::new([LogId::new(Arc::new(policy.clone()), "mallory")]);
    let strike = async || {
        let mut denied = Store::admit(&store, &check()).await.unwrap();
        while denied.admitted {
            denied = Store::admit(&store, &check()).await.unwrap();
        }
        denied.logs()[0].ban().strike()
    };
    assert_eq!(strike().await, Strike::Counted);
    let is_banned = || store.0.local.standing_ban(&check().logs[0]).is_some();
    while !is_banned() {
        store.decide_as_in_an_outage(&check());
        sleep(Duration::from_millis(10)).await;
    }
    store.settled_journal().await;
    assert!(Store::ban(&store, &check().logs[0]).await.unwrap().is_some());
    sleep(Duration::from_millis(1_100)).await;
    assert_eq!(strike().await, Strike::Counted);
}

/// The requests of a busy key are settled all the time, so a ban that another process has lifted may be known here for long.
#[tokio::test]
async fn outcome_that_brings_nothing_new_costs_no_look() {
    let (server, proxy, store) = far().await;
    let log = penalized("mallory");
    Store::impose(&store, &log, HOUR, "by hand", false).await.unwrap();
    server.run::<()>(&["DEL", "tsw:{=mallory}:user:ban"]).await;
    proxy.set(Fault::Delay(Duration::from_millis(50)));
    let looks = server.call_count("set").await;
    for _ in 0..LIMIT {
        let mut late = task::spawn(Store::admit(&store, &Check::new([log.clone()])));
        assert_pending!(late.poll());
        store.0.denials.forget(std::slice::from_ref(&log));
        assert!(late.await.unwrap().admitted);
    }
    let made = server.call_count("set").await - looks;
    assert!(made <= 1, "{made} looks");
}

/// A ban comes to be written, for a reply is read after a loss, while an earlier ban of the key is being written.
#[tokio::test]
async fn longer_ban_is_written_after_the_write_of_a_shorter_one() {
    let (server, store) = start().await;
    let log = penalized("mallory");
    Store::impose(&store, &log, Duration::from_secs(60), "by hand", false).await.unwrap();
    let until = ["HGET", "tsw:{=mallory}:user:ban", "until"];
    let shorter_us: u64 = server.run(&until).await;
    store.0.journal.with(|state| state.ban(&log, HOUR));
    let writer = claim(&store, &log);
    let mut write = task::spawn(store.clone().run_writer(writer));
    assert_pending!(write.poll());
    let (sent, remaining) = (Instant::now(), HOUR);
    store.0.health.record_loss();
    let longer = Ban { remaining, reason: "again".to_owned(), ..Ban::default() };
    store.see_ban(&log, &longer, sent);
    write.await;
    // No check brings it about.
    let is_written = async || server.run::<u64>(&until).await > shorter_us + 1_800_000_000;
    eventually("the longer one is written", is_written).await;
}

/// The reply to who imposes it is read after this process has lifted it.
#[tokio::test]
async fn ban_that_is_lifted_beside_its_imposition_stays_lifted() {
    let (server, store) = start().await;
    let log = penalized("mallory");
    let looks = server.call_count("hmget").await;
    let mut imposed = task::spawn(store.impose_once(&log, HOUR, "by hand", false));
    assert_pending!(imposed.poll());
    eventually("Redis has it", async || server.call_count("hmget").await > looks).await;
    assert!(Store::lift(&store, &log).await.unwrap());
    imposed.await.unwrap();
    assert!(store.0.local.standing_ban(&log).is_none());
}

/// The reply to who writes a ban again is read after this process has lifted the ban.
#[tokio::test]
async fn ban_that_is_lifted_beside_its_write_stays_lifted() {
    let server = Redis::start().await;
    let store = store(server.url()).await;
    let (log, hour) = (penalized("mallory"), Duration::from_secs(3_600));
    Store::impose(&store, &log, hour, "by hand", false).await.unwrap();
    store.0.journal.with(|state| state.ban(&log, hour));
    let looks = server.call_count("hmget").await;
    let mut write = task::spawn(store.clone().run_writer(claim(&store, &log)));
    assert_pending!(write.poll());
    eventually("Redis has it", async || server.call_count("hmget").await > looks).await;
    assert!(Store::lift(&store, &log).await.unwrap());
    write.await;
    assert!(store.0.local.standing_ban(&log).is_none());
}

/// The replies to who meets a ban, who imposes it and who writes it again are read after Redis has lost it.
#[tokio::test]
async fn ban_that_is_lost_before_its_reply_is_read_is_written_again() {
    for how in ["meets", "imposes", "writes"] {
        let server = Redis::start().await;
        let (store, theirs) = tokio::join!(store(server.url()), store(server.url()));
        let log = penalized("mallory");
        let impose = async |store: &RedisStore| {
            store.impose_once(&log, HOUR, "by hand", false).await.unwrap();
        };
        let lose = async || server.run::<()>(&["DEL", "tsw:{=mallory}:user:ban"]).await;
        match how {
            "meets" => impose(&theirs).await,
            "writes" => {
                impose(&store).await;
                lose().await;
                store.0.journal.with(|state| state.ban(&log, HOUR));
            }
            _ => {}
        }
        let looks = server.call_count("hmget").await;
        let mut reply = task::spawn(async {
            match how {
                "meets" => assert!(!store.admit_one(&Check::new([log.clone()])).await),
                "writes" => store.clone().run_writer(claim(&store, &log)).await,
                _ => impose(&store).await,
            }
        });
        assert_pending!(reply.poll());
        let is_there =
            async || server.run::<i64>(&["EXISTS", "tsw:{=mallory}:user:ban"]).await == 1;
        let is_run = async || is_there().await && server.call_count("hmget").await > looks;
        eventually("Redis has it", is_run).await;
        lose().await;
        store.0.health.record_loss();
        sleep(Duration::from_millis(2)).await;
        reply.await;
        eventually(how, is_there).await;
        assert!(!store.admit_one(&Check::new([log.clone()])).await);
    }
}

/// Adds entries to a log, each of a number with a cost and an age in seconds. Without a cost it is no budget.
async fn fill(server: &Redis, log: &str, entries: &[(u32, u32, u32)]) {
    let fill = "local now_us, id, sum = redis.call('TIME')[1] * 1000000, 0, 0
        for a = 1, #ARGV, 3 do
          local cost, at_us = tonumber(ARGV[a + 1]), now_us - ARGV[a + 2] * 1000000
          for _ = 1, ARGV[a] do
            id, sum = id + 1, sum + cost
            local entry = string.format('%016d', id) .. (cost > 0 and struct.pack('>d', cost) or '')
            redis.call('ZADD', KEYS[1], at_us + id, entry)
          end
        end
        if sum > 0 then redis.call('ZADD', KEYS[1], string.format('%.0f', -1 - sum), '') end";
    let numbers = entries.iter().flat_map(|(count, cost, age)| [count, cost, age]);
    let numbers: Vec<String> = numbers.map(u32::to_string).collect();
    let arguments = numbers.iter().map(String::as_str);
    let command: Vec<&str> = ["EVAL", fill, "1", log].into_iter().chain(arguments).collect();
    server.run::<()>(&command).await;
}

/// What Redis stands still for is bounded for a call, whatever each of its requests may read and remove.
#[tokio::test]
async fn requests_of_a_call_share_what_it_reads_and_removes() {
    let (server, store) = start().await;
    let quota = Quota::per_minute(4_000_000_000);
    let (plain, costs) = (Policy::new("plain").quota(quota), Policy::new("costs").quota(quota));
    let [plain, costs] = [plain, costs.budget()].map(Arc::new);
    let [of_plain, of_costs, live] =
        ["tsw:{=alice}:plain:60s", "tsw:{=alice}:costs:60s:budget", "tsw:{=bob}:costs:60s:budget"];
    fill(&server, of_plain, &[(20_000, 0, 70)]).await;
    fill(&server, of_costs, &[(20_000, 1, 70)]).await;
    fill(&server, live, &[(4_000, 1_000_000, 0)]).await;
    let call = async |policy: &Arc<Policy>, key: &str, cost| {
        let check = Arc::new(Check::new([LogId::new(policy.clone(), key)]).at_cost(cost));
        let requests: Vec<_> = (0..32).map(|_| request(check.clone(), Mode::Peek)).collect();
        store.0.checks.call(requests.iter()).await.unwrap()
    };
    for (policy, name) in [(&plain, of_plain), (&costs, of_costs)] {
        call(policy, "alice", 1).await;
        let removed = 20_000 - server.entries(name).await;
        assert!((256..=1_300).contains(&removed), "{name}: {removed}");
    }
    // The wait of one reads 3,000 entries.
    let denials = call(&costs, "bob", 3_000_000_000).await;
    let sent_again =
        denials.iter().filter(|it| matches!(it, Ok(CheckReply::SendAgain(None)))).count();
    assert_eq!(sent_again, 31, "for their waits");
    // Others that read few are not sent again for it.
    fill(&server, "tsw:{=carol}:costs:60s:budget", &[(1, 1, 70)]).await;
    let request = |key: &str, cost| {
        let check = Check::new([LogId::new(costs.clone(), key)]).at_cost(cost);
        request(check, Mode::New)
    };
    let requests = [request("bob", 3_000_000_000), request("carol", 1)];
    let replies = store.0.checks.call(requests.iter()).await.unwrap();
    let [Ok(CheckReply::Decided(bob)), Ok(CheckReply::Decided(carol))] = &replies[..] else {
        panic!("{replies:?}")
    };
    assert_eq!((bob.admitted, carol.admitted), (false, true));
    // Nor are those that are sent again behind others once more.
    let mut again = request("carol", 1);
    (again.turns, again.mode) = (1, Mode::Peek);
    assert!(again.shape() < request("bob", 1).shape());
}

/// Redis counts what is in a window again bit by bit, too.
#[tokio::test]
async fn budget_is_exact_and_blocks_nothing_after_the_clock_has_stepped_back() {
    let (store, mut clock) = RedisStore::with_clock().await;
    let policy = "1000000/1s, 2000000/1h".parse::<Policy>().unwrap().named("costs").budget();
    let log = LogId::new(Arc::new(policy), "alice");
    for _ in 0..100 {
        let checks: Vec<_> = (0..32).map(|_| Check::new([log.clone()])).collect();
        store.admit_in_one_call(&checks).await;
        clock.advance(Duration::from_secs(10)).await;
    }
    let check = Check::new([log]);
    let left = async || {
        let peeked = Store::peek(&store, &check).await.unwrap();
        [0, 1].map(|quota| peeked.logs()[0].quotas()[quota].remaining())
    };
    assert_eq!(left().await, [1_000_000, 2_000_000 - 3_200]);
    clock.step_back(Duration::from_secs(900)).await;
    let requests = [request(check.clone(), Mode::Peek)];
    let replies = store.0.checks.call(requests.iter()).await.unwrap();
    assert!(matches!(&replies[..], [Ok(CheckReply::SendAgain(None))]), "{replies:?}");
    // Those of the last 90 calls.
    assert_eq!(left().await, [1_000_000 - 90 * 32, 2_000_000 - 3_200]);
}

/// Another request of its call has read so much that its own budget is not read.
#[tokio::test]
async fn denial_behind_one_that_reads_much_is_sent_again_for_its_wait() {
    let (server, store) = start().await;
    let policy = "1000/60s, 5000/24h".parse::<Policy>().unwrap().named("tokens").budget();
    let policy = Arc::new(policy.penalty("3/24h:1h".parse().unwrap()));
    fill(&server, "tsw:{=bob}:tokens:24h:budget", &[(4_999, 1, 7_200)]).await;
    fill(&server, "tsw:{=alice}:tokens:24h:budget", &[(400, 10, 7_200), (9, 110, 0)]).await;
    let [bob, alice] =
        ["bob", "alice"].map(|key| Check::new([LogId::new(policy.clone(), key)]).at_cost(1000));
    // Counts out what has left the short window.
    Store::peek(&store, &alice).await.unwrap();
    let requests = [request(bob, Mode::New), request(alice.clone(), Mode::New)];
    let replies = store.0.checks.call(requests.iter()).await.unwrap();
    let Ok(CheckReply::SendAgain(Some(denial))) = &replies[1] else { panic!("{replies:?}") };
    assert_eq!((denial.admitted, denial.logs()[0].ban().strike()), (false, Strike::None));
    let denied = Store::admit(&store, &alice).await.unwrap();
    let (day, ban) = (denied.logs()[0].quotas()[1], denied.logs()[0].ban());
    assert!(day.wait() > Duration::from_secs(21 * 3600) && day.remaining() == 10, "{denied:?}");
    let episode = Duration::from_micros(ban.episode_us);
    assert_eq!((ban.strike(), episode), (Strike::Counted, Duration::from_secs(24 * 3600)));
}

/// The journal says of the request only that Redis has it, unless it was lost: before it was settled or since. Or Redis loses
/// what a writer has just written, before the writer has its reply.
#[tokio::test]
async fn request_that_is_settled_or_written_beside_a_loss_is_restored() {
    for (how, places) in [("settled after it", 2), ("settled before it", 2), ("written", 4)] {
        let (server, store) = start().await;
        let check = Check::new([budget()]).at_cost(4);
        assert!(store.admit_one(&check).await);
        server.run::<()>(&["FLUSHALL"]).await;
        match how {
            "settled after it" => {
                store.lose(&budget(), 1);
                assert!(Store::settle(&store, &check, 2).await.unwrap());
            }
            "settled before it" => {
                store.0.local.settle_here(&check, 2);
                let settle = |state: &mut State| state.settle(&check, |_| 2, Instant::now());
                store.0.journal.with(settle).unwrap();
                store.lose(&budget(), 1);
            }
            _ => {
                store.lose(&budget(), 1);
                let writer = claim(&store, &budget());
                store.write_to_redis(&writer).await.unwrap();
                server.run::<()>(&["FLUSHALL"]).await;
                store.lose(&budget(), 2);
                store.0.journal.with(|state| state.finish(&writer, Ok(())));
            }
        }
        assert_eq!(store.remaining_after_write(&budget()).await, LIMIT - places, "{how}");
    }
}

/// As those of a Cluster do until it is known which node has which slot.
#[tokio::test(start_paused = true)]
async fn request_that_goes_alone_waits_for_its_turn() {
    let servers = RedisServers::cluster(["redis://127.0.0.1:1"]).unwrap();
    let store = RedisStore::connect_lazy(servers).unwrap();
    let breaker = store.0.client.breaker_of(None);
    let mut places = Vec::new();
    for _ in 0..64 {
        places.push(breaker.place().await.unwrap());
    }
    let began = Instant::now();
    let request = request(check("alice"), Mode::New);
    store.0.checks.send(request, began).await.unwrap_err();
    assert_eq!(began.elapsed().as_secs(), 1, "all places are taken");
}

/// As if its Redis was overloaded: a check takes no longer than another one may wait.
#[tokio::test]
async fn check_is_not_sent_again_for_longer_than_a_second() {
    let (server, proxy, store) = far().await;
    let policy = Policy::new("costs").quota(Quota::per_minute(5)).budget();
    let check = Check::new([LogId::new(Arc::new(policy), "alice")]);
    let name = "tsw:{=alice}:costs:60s:budget";
    fill(&server, name, &[(100_000, 1, 70)]).await;
    proxy.set(Fault::Delay(Duration::from_millis(50)));
    let warnings = Warnings::listen();
    let refused = Store::admit(&store, &check).await;
    assert!(matches!(refused, Err(StoreError::Overloaded)), "{:?}", refused.map(|it| it.admitted));
    assert!(warnings.lines()[0].contains("Redis is overloaded"), "{:?}", warnings.lines());
    // What another log denies, or a ban, needs no sum.
    for _ in 0..LIMIT {
        assert!(store.admit_one(&self::check("alice")).await);
    }
    let banned = penalized("bob");
    Store::impose(&store, &banned, Duration::from_secs(60), "by hand", false).await.unwrap();
    for denies in [log("alice"), banned] {
        let both = Check::new([check.logs[0].clone(), denies]);
        let calls = server.call_count("evalsha").await;
        assert!(!Store::admit(&store, &both).await.unwrap().admitted);
        assert!(server.call_count("evalsha").await > calls + 5, "for how long it is denied");
    }
    // Also if Redis takes no writes, so that nothing is counted out, or is gone before it is known for how long.
    let mut both = Check::new([check.logs[0].clone(), log("alice")]);
    both.on_failure = FailurePolicy::Open;
    proxy.set(Fault::None);
    server.cannot_save().await;
    let calls = server.call_count("evalsha").await;
    assert!(!Store::admit(&store, &both).await.unwrap().admitted);
    assert_eq!(server.call_count("evalsha").await, calls + 1, "no call gets any further");
    server.run::<()>(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]).await;
    proxy.set(Fault::Delay(Duration::from_millis(50)));
    let cut = async {
        sleep(Duration::from_millis(250)).await;
        proxy.set(Fault::Cut);
    };
    let (denied, ()) = tokio::join!(Store::admit(&store, &both), cut);
    assert!(!denied.unwrap().admitted, "a denial stands whatever fails after it");
    proxy.set(Fault::None);
    eventually("it is connected", async || Store::peek(&store, &check).await.is_ok()).await;
    assert!(store.admit_one(&check).await, "most of them were counted out");
    assert_eq!(server.entries(name).await, 2, "with the sums");
}

/// In a long outage ever new keys are banned for a short time.
#[tokio::test(start_paused = true)]
async fn bans_that_are_over_are_not_kept_for_a_write() {
    let builder = RedisStore::builder().local_capacity(64);
    let store = builder.connect_lazy("redis://127.0.0.1:1").unwrap();
    // A request that stays noted until the end of the outage.
    assert!(store.decide_as_in_an_outage(&check("alice")));
    sleep(Duration::from_secs(1)).await;
    let quota = Quota::new(1, Duration::from_millis(100));
    let policy =
        Arc::new(Policy::new("strict").quota(quota).penalty("1/1s:1s decay 1s".parse().unwrap()));
    for round in 0..50 {
        for number in 0..32 {
            let check = Check::new([LogId::new(policy.clone(), format!("{round} {number}"))]);
            for _ in 0..2 {
                store.decide_as_in_an_outage(&check);
            }
        }
        sleep(Duration::from_secs(4)).await;
    }
    let noted = store.0.journal.with(State::all_logs).len();
    assert!(noted <= 5 * 64, "{noted} logs are noted");
}

/// Redis refuses to add an entry, and need add none for the other log of the call.
#[tokio::test]
async fn full_redis_makes_a_cancellation_beside_another_log() {
    let (server, store) = start().await;
    let alice = check("alice");
    assert!(store.admit_one(&alice).await);
    server.run::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let request = |key: &str, id, places, origin| ReconcileRequest {
        log: log(key),
        requests: vec![(id, RequestState { initial: 1, places, at: Instant::now(), origin })],
        longest_delay: Duration::ZERO,
    };
    let requests = [
        request("bob", Uuid::new_v4(), 1, Origin::Here),
        request("alice", alice.id, 0, Origin::Kept),
    ];
    let replies = store.0.reconciles.call(requests.iter()).await.unwrap();
    let [Err(StoreError::Refused { code, .. }), Ok(cancelled)] = &replies[..] else {
        panic!("one of the two logs");
    };
    assert!(code == "OOM" && cancelled.had, "{code}");
    assert_eq!(server.entries(&name("alice")).await, 0);
}

/// One of two logs is in a journal that has no more room. The request has its room there.
#[tokio::test]
async fn settlement_of_what_a_full_journal_has_is_made() {
    let server = Redis::start().await;
    let builder = RedisStore::builder().deny_cache(false).local_capacity(1);
    let store = builder.connect(server.url()).await.unwrap();
    let both = Check::new([log("alice"), log("bob")]);
    assert!(store.admit_one(&both).await);
    store.0.journal.with(|state| {
        let others = (0..2).map(|_| check("carol"));
        others.for_each(|it| state.settle(&it, |_| 0, Instant::now()).unwrap());
    });
    store.lose(&both.logs[0], 1);
    assert!(Store::settle(&store, &both, 0).await.unwrap());
    assert_eq!(server.entries(&name("bob")).await, 0);
    store.settled_journal().await;
    assert_eq!(server.entries(&name("alice")).await, 0);
}

/// Its call goes beside that of the newest one, which Redis serves first.
#[tokio::test]
async fn settlement_that_is_late_is_made_anew() {
    let (_server, store) = start().await;
    let check = Check::new([budget()]).at_cost(4);
    assert!(store.admit_one(&check).await);
    store.0.local.settle_here(&check, 3);
    let mut late = task::spawn(store.clone().settle_in_redis(check.clone(), 3, true));
    assert_pending!(late.poll());
    store.0.local.settle_here(&check, 1);
    assert!(late.await.unwrap());
    assert_eq!(store.remaining_after_write(&budget()).await, LIMIT - 1);
}

/// It was sent on a connection that was given up, and arrives after the process has decided, and has written that.
#[tokio::test]
async fn check_that_runs_after_its_write_back_counts_once() {
    let (server, store) = start().await;
    let costs = Policy::new("costs").quota(Quota::per_hour(20)).quota(Quota::per_minute(20));
    let costs = LogId::new(Arc::new(costs.budget()), "alice");
    let banned = Policy::new("once").quota(Quota::per_hour(1)).penalty("1/1h:1h".parse().unwrap());
    let banned = LogId::new(Arc::new(banned), "alice");
    let check = Check::new([log("alice"), costs.clone(), banned.clone()]).at_cost(6);
    let plain = ["ZRANGE", &name("alice"), "0", "-1", "WITHSCORES"];
    let mut entries = Vec::new();
    let run = async |check: Check| {
        let request = request(check, Mode::New);
        decided(store.0.checks.call([request].iter()).await.unwrap().remove(0).unwrap())
    };
    for check in [check.clone(), check.clone(), check.part(|index| index == 0)] {
        assert!(run(check).await.admitted);
        entries.push(server.run::<Vec<redis::Value>>(&plain).await);
    }
    assert_eq!(entries[0], entries[2], "it leaves no later");
    assert!(Store::ban(&store, &banned).await.unwrap().is_none(), "it has met its own entry");
    let alone = Check::new([costs.clone()]);
    let late = alone.at_cost(6);
    for _ in 0..2 {
        assert!(run(late.clone()).await.admitted);
    }
    let peeked = Store::peek(&store, &alone).await.unwrap();
    let left = peeked.logs()[0].quotas().iter().map(|quota| quota.remaining());
    assert_eq!(left.collect::<Vec<_>>(), [8, 8]);
}

/// The reply of Redis about it is read after a decision here.
#[tokio::test]
async fn value_stays_for_as_long_as_it_was_last_seen() {
    let store = RedisStore::connect_lazy("redis://127.0.0.1:1").unwrap();
    let policy = Policy::new("peers").quota(Quota::per_hour(LIMIT)).distinct();
    let log = LogId::new(Arc::new(policy), "alice").with_value("bob");
    let now = Instant::now();
    for (at, origin) in [(now, Origin::Here), (now - Duration::from_secs(1), Origin::Redis)] {
        store.0.journal.with(|state| state.admit(&Check::new([log.clone()]), at, origin));
    }
    let [(_, noted)] = claim(&store, &log).requests[..] else { panic!("one value") };
    assert_eq!(noted.at, now);
}

/// Returns the places of each request in the log that the random reconciliations change.
async fn entries(store: &RedisStore) -> BTreeMap<Uuid, u32> {
    let all = Cmd::zrange_withscores("clock:{=alice}:user:1h:budget", 0, -1);
    let found: Vec<(Vec<u8>, f64)> = store.commands().query(&all).await.unwrap();
    let (mut places, mut timestamps) = (BTreeMap::<Uuid, f64>::new(), BTreeMap::new());
    for (entry, at) in found.iter().skip(1) {
        let id = Uuid::from_slice(&entry[..16]).unwrap();
        // What was settled is next to its entry.
        assert_eq!(timestamps.insert(id, *at).unwrap_or(*at), *at);
        *places.entry(id).or_default() += f64::from_be_bytes(*entry.last_chunk().unwrap());
    }
    let sum: f64 = places.values().sum();
    assert!(found.first().is_none_or(|(_, score)| *score == -1.0 - sum && sum > 0.0));
    places.into_iter().map(|(id, cost)| (id, cost as u32)).collect()
}

/// Random reconciliations and resets, compared with what they should leave.
///
/// A call that was under way for long looks younger than it is. If it says that Redis had a request, a reset may have removed
/// it. And Redis may have dropped what was about to expire when it was sent, or have lost it: then too many would be admitted
/// without it.
#[tokio::test]
async fn reconciliation_leaves_what_is_known() {
    let ((store, mut clock), mut random) = (RedisStore::with_clock().await, Rng::with_seed(7));
    let log = budget();
    let ids: Vec<Uuid> = (1..9).map(Uuid::from_u128).collect();
    let reconcile = async |id, places, age, origin, longest_delay| {
        let at = Instant::now() - age;
        let requests = vec![(id, RequestState { initial: 1, places, at, origin })];
        let request = ReconcileRequest { log: log.clone(), requests, longest_delay };
        store.0.reconciles.send(request, Instant::now()).await.unwrap();
    };
    for (age, count) in [(HOUR, 0), (HOUR - HOUR / 100, 1)] {
        reconcile(Uuid::new_v4(), 1, age, Origin::Redis, HOUR / 20).await;
        assert_eq!(entries(&store).await.len(), count);
    }
    Store::reset(&store, &log).await.unwrap();
    let (mut model, mut reset_at) = (BTreeMap::<Uuid, u32>::new(), clock.now());
    for step in 0..3_000 {
        clock.advance(Duration::from_micros(random.u64(1..20_000_000))).await;
        if random.u8(0..20) == 0 {
            Store::reset(&store, &log).await.unwrap();
            model.clear();
            reset_at = clock.now();
            continue;
        }
        let id = *random.choice(&ids).unwrap();
        let (places, age) = (random.u32(0..5), HOUR.mul_f64(random.f64() * 1.25));
        let origin = *random.choice(&[Origin::Here, Origin::Redis, Origin::Kept]).unwrap();
        let longest_delay = *random.choice(&[Duration::ZERO, HOUR / 20]).unwrap();
        let admitted_at = clock.now() - age;
        let sure_at =
            admitted_at - if origin == Origin::Redis { longest_delay } else { Duration::ZERO };
        // What is far from the boundaries, because the ages are those of the real clock.
        let is_near = |one: Duration, other| one.abs_diff(other) < Duration::from_secs(5);
        if is_near(sure_at, reset_at) || is_near(age, HOUR) {
            continue;
        }
        reconcile(id, places, age, origin, longest_delay).await;
        let is_wanted = origin != Origin::Kept && age < HOUR && sure_at > reset_at;
        if places == 0 {
            model.remove(&id);
        } else if model.contains_key(&id) || is_wanted {
            model.insert(id, places);
        }
        assert_eq!(entries(&store).await, model, "step {step}: {places} {age:?} {origin:?}");
    }
}
