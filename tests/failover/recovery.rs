//! What happens when Redis answers again: it decides at once, and what other processes did in the
//! meantime stays done.

use crate::*;

/// What this process has admitted before the reset by another is gone. What it has admitted after it counts, also if the
/// replies to the write-back take longer than the time between the two, or if the clock of the server steps back.
#[tokio::test]
async fn reset_elsewhere_in_outage_stays_reset() {
    let (redis, process, ours) = far(user(3)).await;
    let theirs = limiter(user(3), &store(redis.url()).await);
    ours.reset("dave").await.unwrap();
    // The clock of the server steps back: the mark then lies in its future.
    let mark = "tsw:{=dave}:user:1h:reset";
    let reset_us: u64 = redis.run::<String>(&["GET", mark]).await.parse().unwrap();
    let future_us = (reset_us + 600_000_000).to_string();
    redis.run::<String>(&["SET", mark, &future_us, "KEEPTTL"]).await;
    process.cut().await;
    for _ in 0..3 {
        assert!(admit(&ours, "alice").await && admit(&ours, "bob").await);
    }
    assert!(!admit(&ours, "alice").await);
    // Longer than any reply takes: how old a request is, is not known better than that.
    sleep(Duration::from_millis(600)).await;
    theirs.reset("alice").await.unwrap();
    theirs.reset("carol").await.unwrap();
    sleep(Duration::from_millis(100)).await;
    for _ in 0..3 {
        assert!(admit(&ours, "carol").await && admit(&ours, "dave").await);
    }
    process.proxy.set(Fault::Delay(Duration::from_millis(250)));
    until_redis_decides(&ours).await;
    process.mend().await;
    for (user, left) in [("alice", 3), ("bob", 0), ("carol", 0), ("dave", 0)] {
        let log = format!("tsw:{{={user}}}:user:1h");
        redis.has_entries(&log, 3 - left).await;
        for limiter in [&ours, &theirs] {
            assert_eq!(self::left(limiter, user).await as usize, left, "{user}");
        }
    }
    for _ in 0..2 {
        assert!(!admit(&ours, "dave").await, "three were admitted in the outage");
    }
    assert_eq!(redis.entries("tsw:{=dave}:user:1h").await, 3);
    process.cut().await;
    for (user, passes) in [("alice", true), ("bob", false), ("carol", false), ("dave", false)] {
        assert_eq!(admit(&ours, user).await, passes, "{user}, as this process knows it");
    }
}

/// What an outage decides is another question than what Redis has lost.
#[tokio::test]
async fn loss_of_data_is_made_good_under_every_failure_policy() {
    for on_failure in [FailurePolicy::default(), FailurePolicy::Open, FailurePolicy::Closed] {
        let mut redis = Redis::start().await;
        let store = store(redis.url()).await;
        let [limiter, bans] = [user(6).into(), strict(user(1), "1/1h:1h")]
            .map(|it| limiter(it, &store).failure_policy(on_failure));
        for _ in 0..4 {
            assert!(admit(&limiter, "alice").await);
        }
        assert!(admit(&bans, "mallory").await && !admit(&bans, "mallory").await);
        redis.restart().await;
        until_redis_decides(&limiter).await;
        let mut more = 0;
        for _ in 0..6 {
            more += usize::from(admit(&limiter, "alice").await);
        }
        assert_eq!((more, redis.entries(LOG).await), (2, 6), "{on_failure}");
        let banned = bans.peek("mallory").await.unwrap().banned_for();
        assert!(banned.is_some(), "{on_failure}");
    }
}

/// A reply from before a loss is received after the loss was noticed, and after the log was
/// reconciled. It counts, unless another request has its place.
#[tokio::test]
async fn late_reply_from_before_a_loss_is_written_back() {
    join_all([2, 4].map(async |limit| {
        let (redis, limiter) = near(limit).await;
        assert!(admit(&limiter, "alice").await);
        let late = unread_check(&redis, &limiter, 2).await;
        redis.run::<()>(&["FLUSHALL"]).await;
        notice_a_flush(&redis, &limiter).await;
        assert!(admit(&limiter, "alice").await);
        assert_eq!(redis.entries(LOG).await, 2, "the first and the third");
        let counts = late.await.unwrap().is_admitted();
        assert_eq!(counts, limit == 4, "the second");
        let mut total = 2 + u32::from(counts);
        for _ in 0..4 {
            total += u32::from(admit(&limiter, "alice").await);
        }
        assert_eq!(total, limit);
    }))
    .await;
}

/// Two replies from around a loss, of which the one from before it is read first. Redis has counted each of them alone.
#[tokio::test]
async fn late_reply_read_before_a_later_one_does_not_share_its_place() {
    let (redis, limiter) = near(1).await;
    let late = unread_check(&redis, &limiter, 1).await;
    redis.run::<()>(&["FLUSHALL"]).await;
    notice_a_flush(&redis, &limiter).await;
    // The loss is noticed, and this process knows of no admission of alice.
    let later = unread_check(&redis, &limiter, 1).await;
    let late = late.await.unwrap().is_admitted();
    let later = later.await.unwrap().is_admitted();
    assert!(!(late && later), "both were admitted under a limit of one");
}

/// Checks of one log, all begun after a loss was noticed. One of them takes note of the loss of the
/// log, and before it tells the journal, another goes to Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_check_overtakes_the_reconciliation() {
    const KEYS: usize = 300;
    let (redis, process, limiter) = far(user(1)).await;
    for round in 0..4 {
        for key in 0..KEYS {
            assert!(admit(&limiter, &format!("{round}-{key}")).await);
        }
        process.cut().await;
        redis.run::<()>(&["FLUSHALL"]).await;
        process.mend().await;
        let checks = (0..KEYS).flat_map(|key| [key; 6]).map(|key| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.check(format!("{round}-{key}")).await })
        });
        let decisions = join_all(checks.collect::<Vec<_>>()).await;
        let decisions = decisions.into_iter().map(|it| it.unwrap().unwrap());
        assert_eq!(decisions.filter(Decision::is_admitted).count(), 0, "round {round}");
    }
}

/// Logs that can't be written, however many they are, delay the write-back of all others: of 128 logs in half a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_that_cannot_be_written_delay_no_other() {
    const KEYS: usize = 4_000;
    let (redis, process, limiter) = far(user(1)).await;
    for key in (0..KEYS).step_by(4) {
        redis.run::<()>(&["LPUSH", &format!("tsw:{{=user-{key}}}:user:1h"), "x"]).await;
    }
    process.cut().await;
    for key in 0..KEYS {
        assert!(admit(&limiter, &format!("user-{key}")).await);
    }
    process.mend().await;
    let written = async || redis.keys().await.iter().filter(|it| it.contains("user-")).count();
    let all = async || {
        while written().await < KEYS {
            sleep(Duration::from_millis(20)).await;
        }
    };
    let in_time = timeout(Duration::from_secs(5), all()).await;
    assert!(in_time.is_ok(), "{} are written, 5 s after Redis is back", written().await);
    // When no other one is left, each round begins with some of these.
    let log = "tsw:{=user-40}:user:1h";
    redis.run::<()>(&["DEL", log]).await;
    redis.has_entries(log, 1).await;
}

/// The connection breaks while a check is under way, and Redis has lost all when the check is sent again.
#[tokio::test]
async fn repeated_check_does_not_pass_because_of_a_loss() {
    for on_failure in [FailurePolicy::Closed, FailurePolicy::default()] {
        let redis = Redis::start().await;
        let limiter = limiter(user(1), &patient_store(redis.url()).await);
        let limiter = limiter.failure_policy(on_failure);
        assert!(admit(&limiter, "alice").await);
        redis.run::<()>(&["CLIENT", "PAUSE", "60000", "WRITE"]).await;
        let check = tokio::spawn(async move { limiter.check("alice").await });
        redis.holds_back(1).await;
        let clients: String = redis.run(&["CLIENT", "LIST"]).await;
        let is_held_back = |line: &&str| line.contains(" flags=b ");
        let held_back = clients.lines().find(is_held_back).unwrap().split([' ', '=']).nth(1);
        let mut connection = redis.connection().await.unwrap();
        let flush = tokio::spawn(async move {
            redis::cmd("FLUSHALL").exec_async(&mut connection).await.unwrap();
        });
        redis.holds_back(2).await;
        redis.run::<i64>(&["CLIENT", "KILL", "ID", held_back.unwrap()]).await;
        sleep(Duration::from_millis(200)).await;
        redis.run::<()>(&["CLIENT", "UNPAUSE"]).await;
        flush.await.unwrap();
        let result = check.await.unwrap();
        assert!(!result.as_ref().is_ok_and(Decision::is_admitted), "{on_failure:?}: {result:?}");
    }
}

/// As with the setting `timeout` of Redis. What comes next need not be a check.
#[tokio::test]
async fn connection_that_was_closed_while_idle_fails_no_call() {
    let redis = Redis::start().await;
    let policy = PolicyHandle::new(user(5).penalty(Penalty::manual()));
    // Each on a connection of its own.
    let stores = join_all([(); 8].map(|()| store(redis.url()))).await;
    let limiters: Vec<_> = stores.iter().map(|it| limiter(&policy, it)).collect();
    let budget = limiter(user(5).budget(), &stores[2]);
    let bans: Vec<_> = stores.into_iter().map(|it| Bans::new(&policy, it)).collect();
    for limiter in [&limiters[0], &budget] {
        assert!(admit(limiter, "alice").await);
    }
    // Long enough that the connections were of use.
    sleep(Duration::from_millis(600)).await;
    redis.command("CLIENT KILL TYPE normal SKIPME yes").await;
    sleep(Duration::from_millis(50)).await;
    assert_eq!(left(&limiters[0], "alice").await, 4);
    assert_eq!(limiters[1].explain("alice").await.unwrap().decided_by, REDIS);
    // A call counts out what has left of a budget before it is explained.
    assert_eq!(budget.explain("alice").await.unwrap().decided_by, REDIS);
    bans[3].impose("alice", HOUR, "by mistake").await.unwrap();
    assert!(bans[4].get("alice").await.unwrap().is_some());
    assert_eq!(bans[5].list().await.unwrap().len(), 1);
    limiters[6].reset("alice").await.unwrap();
    assert!(bans[7].lift("alice").await.unwrap());
}

/// Logs that take many calls to write, or have high costs, are written whole, and Redis decides about them again at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_logs_are_written_whole_after_a_loss() {
    let mut redis = Redis::start().await;
    let policies = [user(3_000).into(), user(4_000_000_000).budget().into()];
    let policies: [PolicyHandle; 2] = policies;
    let (ours, theirs) = (store(redis.url()).await, store(redis.url()).await);
    let [requests, tokens] = policies.each_ref().map(|it| limiter(it, &ours));
    for _ in 0..1_500 {
        assert!(admit(&requests, "alice").await && admit(&requests, "alice").await);
        admit_cost(&tokens, 2_000_000).await;
    }
    redis.restart().await;
    for limiter in [&requests, &tokens] {
        until_redis_decides_about("alice", limiter).await;
    }
    assert_eq!(redis.entries(LOG).await, 3_000);
    let [requests, tokens] = policies.each_ref().map(|it| limiter(it, &theirs));
    assert!(!admit(&requests, "alice").await);
    let left = left(&tokens, "alice").await;
    assert!((999_999_900..1_000_000_000).contains(&left), "{left}");
}
