//! Bans while Redis does not answer, and when it answers again.

use crate::*;

fn policy() -> PolicyHandle {
    strict(user(50), "3/10m:1h")
}

/// A server and two processes: what each decides with, and what it bans with.
struct Two {
    redis: Redis,
    ours: Limiter,
    our_bans: Bans,
    theirs: Limiter,
    their_bans: Bans,
}

impl Two {
    async fn on(redis: Redis) -> Self {
        Self::with(store(redis.url()).await, redis).await
    }

    async fn with(our_store: RedisStore, redis: Redis) -> Self {
        let (ours, our_bans) = (limiter(policy(), &our_store), Bans::new(policy(), our_store));
        let store = store(redis.url()).await;
        let (theirs, their_bans) = (limiter(policy(), &store), Bans::new(policy(), store));
        Self { redis, ours, our_bans, theirs, their_bans }
    }
}

/// Bans a key for an hour, of which a process learns.
async fn ban(key: &str, bans: &Bans, process: &Limiter) {
    bans.impose(key, HOUR, "spam").await.unwrap();
    assert!(!admit(process, key).await, "and so it is known here");
}

/// Lets what is kept for a second be forgotten, and the next check look for a loss.
async fn a_second() {
    sleep(Duration::from_millis(1_100)).await;
}

/// What is known of bans holds in an outage, whatever a policy without a penalty admits meanwhile.
#[tokio::test]
async fn ban_holds_in_an_outage_unless_it_was_lifted() {
    let redis = Redis::start().await;
    let store = store(redis.url()).await;
    let Two { mut redis, ours, our_bans, their_bans, .. } = Two::with(store.clone(), redis).await;
    for (bans, banned, lifted) in [(&our_bans, "mallory", "eve"), (&their_bans, "trudy", "oscar")] {
        ban(banned, bans, &ours).await;
        ban(lifted, bans, &ours).await;
        bans.lift(lifted).await.unwrap();
    }
    assert!(admit(&ours, "oscar").await, "and so it is known here");
    our_bans.impose("peggy", Duration::from_secs(2), "for a while").await.unwrap();
    // A policy without a penalty says nothing about bans.
    our_bans.impose("victor", HOUR, "sells accounts").await.unwrap();
    assert!(admit(&limiter(user(50), &store), "victor").await);
    redis.kill();
    for user in ["mallory", "trudy", "victor"] {
        assert!(!admit(&ours, user).await, "{user}");
    }
    for user in ["eve", "oscar", "alice"] {
        assert!(admit(&ours, user).await, "{user}");
    }
    // A lift holds too, although Redis has not heard of it.
    assert!(our_bans.lift("trudy").await.is_err());
    assert!(admit(&ours, "trudy").await);
    eventually("a ban ends here as in Redis", async || admit(&ours, "peggy").await).await;
}

/// What another process lifts in an outage stays lifted. What this one bans is written, raises the level, and does not follow
/// from its share of the quota.
#[tokio::test]
async fn outage_leaves_the_bans_that_it_should() {
    let redis = Redis::start().await;
    let far = Far::from(&redis).await;
    let two = Two::with(far.store.clone(), redis).await;
    ban("mallory", &two.their_bans, &two.ours).await;
    let brief = Policy::new("brief").quota(Quota::new(1, Duration::from_secs(1)));
    let jobs = Policy::new("jobs").quota(Quota::new(1, Duration::from_millis(1_500))).in_flight();
    let shared = Policy::new("shared").quota(Quota::per_hour(10));
    let policies = [(brief, "1/10m:2s,1h"), (shared, "1/10m:1h"), (jobs, "1/10m:1h")];
    let policies = policies.map(|(policy, penalty)| strict(policy, penalty));
    let [levels, shares, runs] = policies.each_ref().map(|it| limiter(it, &far.store));
    // In an outage each of five processes admits a fifth.
    let shares = shares.failure_policy(FailurePolicy::local(5));
    let permit = runs.acquire("mallory", Duration::ZERO).await.unwrap();

    far.cut().await;
    assert!(!admit(&two.ours, "mallory").await);
    two.their_bans.lift("mallory").await.unwrap();
    for admitted in [true, true, false] {
        assert_eq!(admit(&shares, "alice").await, admitted);
    }
    // The request in flight renews its place, whatever its key is banned for.
    sleep(Duration::from_millis(700)).await;
    let denied = runs.check("mallory").await.unwrap();
    assert_eq!(verdict(&denied), (false, HERE));
    assert!(denied.usage().banned_for().is_some());
    // At the end: a ban that is over is not written.
    assert!(admit(&levels, "mallory").await);
    let brief = banned_for(&levels, "mallory").await;
    assert!(brief.is_some_and(|left| left <= Duration::from_secs(2)));

    far.mend().await;
    assert!(admit(&two.ours, "mallory").await, "it was lifted");
    assert!(two.their_bans.get("mallory").await.unwrap().is_none());
    let third = shares.check("alice").await.unwrap();
    assert_eq!(verdict(&third), (true, REDIS), "the third of ten: {third:?}");
    sleep(Duration::from_millis(700)).await;
    let of_jobs = Bans::new(&policies[2], two.redis.store().await);
    assert!(of_jobs.get("mallory").await.unwrap().is_some(), "Redis knows the ban");
    permit.release().await;
    assert!(!admit(&runs, "mallory").await, "banned for an hour");
    let is_known = async || two.redis.keys().await.iter().any(|key| key.ends_with(":brief:ban"));
    eventually("the ban is written", is_known).await;
    sleep(Duration::from_millis(2_100)).await;
    assert!(admit(&levels, "mallory").await);
    let next = banned_for(&levels, "mallory").await;
    assert!(next.is_some_and(|left| left > HOUR / 2), "the next level");
}

/// Redis restarts with all of its data, and is then gone. Another process has made a ban shorter, and lifted one and once
/// more to be sure.
#[tokio::test]
async fn ban_shortened_or_lifted_elsewhere_stays_so() {
    let Two { mut redis, ours, our_bans, theirs, their_bans } =
        Two::on(Redis::start_durable().await).await;
    our_bans.impose("oscar", HOUR, "by mistake").await.unwrap();
    for was_there in [true, false] {
        assert_eq!(their_bans.lift("oscar").await.unwrap(), was_there);
    }
    for user in ["mallory", "trudy"] {
        ban(user, &their_bans, &ours).await;
        their_bans.lift(user).await.unwrap();
    }
    their_bans.impose("mallory", HOUR / 2, "as it should be").await.unwrap();
    for _ in 0..50 {
        assert!(admit(&theirs, "trudy").await);
    }
    let is_short = async || banned_for(&ours, "mallory").await.is_some_and(|it| it <= HOUR / 2);
    assert!(is_short().await);
    assert_eq!(banned_for(&ours, "trudy").await, None, "full, and not banned");
    a_second().await;
    redis.restart().await;
    until_redis_decides(&ours).await;
    assert!(is_short().await, "after a restart");
    assert!(admit(&ours, "oscar").await, "it was lifted");
    redis.kill();
    assert!(is_short().await, "in an outage");
    assert_eq!(banned_for(&ours, "trudy").await, None, "in an outage");
}

/// Redis loses a ban again and again. It is known before a check has written it. The log of the banned key and its ban are
/// written once after a loss, and not again for each request.
#[tokio::test]
async fn ban_outlives_the_memory_of_redis() {
    let redis = Redis::start().await;
    let ours = RedisStore::connect(redis.url()).await.unwrap();
    let Two { mut redis, ours, our_bans, their_bans, .. } = Two::with(ours, redis).await;
    for _ in 0..20 {
        assert!(admit(&ours, "mallory").await);
    }
    ban("mallory", &our_bans, &ours).await;
    for _ in 0..2 {
        redis.restart().await;
        until_redis_decides(&ours).await;
        let again = our_bans.impose_if_longer("mallory", HOUR, "spam").await.unwrap();
        assert!(!again.is_new, "it stands");
    }
    redis.restart().await;
    until_redis_decides(&ours).await;
    // What was known from before is forgotten.
    a_second().await;
    let calls = async || redis.call_count("evalsha").await + redis.call_count("eval").await;
    let (before, began) = (calls().await, Instant::now());
    for _ in 0..100 {
        assert!(banned_for(&ours, "mallory").await.is_some_and(|left| left > HOUR * 9 / 10));
    }
    let (made, took) = (calls().await - before, began.elapsed());
    assert!(made <= 5 + 3 * took.as_secs(), "{made} calls in {took:?}");
    eventually("the other process finds Redis", async || their_bans.get("mallory").await.is_ok())
        .await;
    assert!(their_bans.get("mallory").await.unwrap().is_some(), "Redis knows the ban");
    redis.restart().await;
    until_redis_decides(&ours).await;
    assert!(our_bans.get("mallory").await.unwrap().is_some(), "as a check would say");
}

/// A check is admitted, and its reply waits to be read. Meanwhile this process bans the key by hand, or another of its checks
/// brings the ban, or Redis fails and this process bans the key for its strikes.
#[tokio::test]
async fn ban_outlives_an_earlier_admission() {
    join_all(["by hand", "by strikes", "in an outage"].map(async |how| {
        let mut redis = Redis::start().await;
        let policy = Policy::new("user").quota(Quota::new(2, Duration::from_secs(1)));
        let policy = strict(policy, "1/10m:1h");
        let store = store(redis.url()).await;
        let (limiter, bans) = (limiter(&policy, &store), Bans::new(&policy, store));
        let mut early = task::spawn(limiter.check("mallory"));
        assert_pending!(early.poll());
        redis.has_entries("tsw:{=mallory}:user:1s", 1).await;
        match how {
            "by hand" => drop(bans.impose("mallory", HOUR, "sells accounts").await.unwrap()),
            _ => {
                if how == "in an outage" {
                    redis.kill();
                    assert!(admit(&limiter, "mallory").await, "the first one is not known");
                }
                assert!(admit(&limiter, "mallory").await, "as far as is known {how}");
                assert!(banned_for(&limiter, "mallory").await.is_some(), "a strike, and a ban");
            }
        }
        // Until the log has room, so that the admission stands.
        a_second().await;
        assert!(early.await.unwrap().is_admitted(), "before the ban {how}");
        redis.kill();
        assert!(!admit(&limiter, "mallory").await, "banned for an hour {how}");
    }))
    .await;
}

/// A settlement in the other log of the check frees places there, and says nothing of the ban.
#[tokio::test]
async fn ban_is_noted_beside_a_settlement_in_another_log() {
    let user = strict(user(9), "3/10m:1h");
    let (mut redis, process, limiter) = far(&user).await;
    let all = PolicyHandle::new(Policy::new("all").quota(Quota::per_hour(9)).budget());
    let other = limiter.check_all([(&all, "all")]).await.unwrap();
    let theirs = Bans::new(&user, redis.store().await);
    theirs.impose("mallory", HOUR, "spam").await.unwrap();
    let mallory = async || limiter.check_all([(&user, "mallory"), (&all, "all")]).await.unwrap();
    process.proxy.set(Fault::Delay(Duration::from_millis(100)));
    let settled = async {
        sleep(Duration::from_millis(20)).await;
        limiter.settle(other.admitted().unwrap(), 2).await.unwrap()
    };
    let (denied, _) = tokio::join!(mallory(), settled);
    assert!(denied.usage().banned_for().is_some());
    redis.kill();
    assert!(!mallory().await.is_admitted(), "banned for an hour");
}

/// Redis has lost a ban and admits a request before the process knows of the loss.
#[tokio::test]
async fn ban_stands_for_a_request_that_redis_admits_after_a_loss() {
    let Two { redis, ours, our_bans, .. } = Two::on(Redis::start().await).await;
    our_bans.impose("alice", HOUR, "spam").await.unwrap();
    redis.run::<()>(&["FLUSHALL"]).await;
    // Redis counts it before the loss is noticed, and its reply is read later.
    let early = unread_check(&redis, &ours, 1).await;
    notice_a_flush(&redis, &ours).await;
    let early = early.await.unwrap().is_admitted();
    assert_eq!([early, admit(&ours, "alice").await], [false, false]);
}

/// Redis lifts a ban, and its reply is lost. A repetition would find none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_reply_to_a_lift_denies_no_ban() {
    let (_redis, far, _) = far(policy()).await;
    let bans = Bans::new(policy(), far.store.clone());
    bans.impose("mallory", HOUR, "spam").await.unwrap();
    assert!(!bans.lift("somebody else").await.unwrap(), "Redis has the script");
    far.proxy.drop_replies_to("mallory", 1);
    assert!(bans.lift("mallory").await.is_err());
}

/// A key is banned in an outage, and its quota then gets a longer window: another log, and the same ban.
#[tokio::test]
async fn ban_in_an_outage_outlives_a_longer_window() {
    let policy = Policy::new("user").quota(Quota::new(1, Duration::from_secs(1)));
    let policy = strict(policy, "1/10m:1h");
    let (_redis, far, limiter) = far(&policy).await;
    far.cut().await;
    assert!(admit(&limiter, "mallory").await);
    assert!(banned_for(&limiter, "mallory").await.is_some());
    policy.set(Quota::new(5, Duration::from_secs(10))).unwrap();
    assert!(banned_for(&limiter, "mallory").await.is_some(), "bans stay in any case");
    // By now the process looks for Redis every half second.
    sleep(Duration::from_millis(1_500)).await;
    far.proxy.set(Fault::None);
    eventually("Redis decides", async || {
        let decision = limiter.check("mallory").await.unwrap();
        assert!(!decision.is_admitted(), "banned for an hour");
        decision.decided_by() == REDIS
    })
    .await;
}

/// Redis restarts, with or without its data. A process that has only met the ban does not know why and for how long it was
/// imposed, and writes first what is lost.
#[tokio::test]
async fn ban_of_another_process_is_the_same_after_a_restart() {
    for is_durable in [true, false] {
        let redis = if is_durable { Redis::start_durable().await } else { Redis::start().await };
        let Two { mut redis, ours, theirs, their_bans, .. } = Two::on(redis).await;
        their_bans.impose("mallory", HOUR, "sells accounts").await.unwrap();
        sleep(Duration::from_millis(100)).await;
        assert!(!admit(&ours, "mallory").await && !admit(&theirs, "mallory").await);
        redis.restart().await;
        until_redis_decides(&ours).await;
        assert!(!admit(&ours, "mallory").await);
        until_redis_decides(&theirs).await;
        // Who has imposed it restores the reason. Where nothing was lost, there is no need to.
        assert!(is_durable || !admit(&theirs, "mallory").await);
        let ban = their_bans.get("mallory").await.unwrap().unwrap();
        let again = their_bans.impose_if_longer("mallory", HOUR, "sells accounts").await.unwrap();
        assert_eq!((&*ban.reason, again.is_new), ("sells accounts", false), "{is_durable}");
    }
}

/// Redis loses bans, which the process finds within a second of use: by the peek of a dashboard, or by a check that meets no
/// ban. Another process lifts one of them before that, and imposes one for less. Of one the loss leaves what it was before it
/// was made longer, as if the master had not sent that to the replica.
#[tokio::test]
async fn ban_outlives_a_loss_unless_it_was_lifted_since() {
    join_all([(false, false), (true, false), (false, true)].map(async |(peeks, has_looked)| {
        let Two { redis, ours, our_bans, their_bans, .. } = Two::on(Redis::start().await).await;
        assert!(admit(&ours, "mallory").await);
        let shortened = "tsw:{=victor}:user:ban";
        our_bans.impose("victor", Duration::from_secs(60), "spam").await.unwrap();
        let until: String = redis.run(&["HGET", shortened, "until"]).await;
        for user in ["mallory", "oscar", "peggy", "victor"] {
            ban(user, &our_bans, &ours).await;
        }
        ban("trudy", &their_bans, &ours).await;
        a_second().await;
        if has_looked {
            // The next look is a second later. What is checked until then finds no ban.
            assert!(admit(&ours, "bob").await);
            sleep(Duration::from_millis(200)).await;
        }
        let mut lost = redis.keys().await;
        lost.retain(|key| key != shortened);
        let lost = ["DEL", "tsw:mark"].into_iter().chain(lost.iter().map(String::as_str));
        redis.run::<i64>(&Vec::from_iter(lost)).await;
        redis.run::<i64>(&["HSET", shortened, "until", &until]).await;
        assert!(!their_bans.lift("oscar").await.unwrap());
        their_bans.impose("peggy", Duration::from_secs(60), "spam").await.unwrap();
        for user in ["mallory", "trudy", "peggy", "victor"] {
            match peeks {
                true => drop(ours.peek(user).await.unwrap()),
                false => drop(ours.check(user).await.unwrap()),
            }
        }
        assert!(admit(&ours, "alice").await);
        for user in ["mallory", "trudy", "peggy", "victor"] {
            let left = async || banned_for(&ours, user).await.unwrap_or_default();
            eventually("it is known again", async || left().await > HOUR / 2).await;
        }
        for _ in 0..2 {
            assert!(admit(&ours, "oscar").await, "it was lifted");
            a_second().await;
        }
    }))
    .await;
}

/// Whether Redis has lost a ban is not known, because that reply is lost. So the other ban in the outcome holds in the outage
/// all the same.
#[tokio::test]
async fn ban_beside_a_lifted_one_is_known_if_the_look_fails() {
    let user = policy();
    let (redis, far, limiter) = far(&user).await;
    let ip = Policy::new("ip").quota(Quota::per_hour(50)).penalty(Penalty::manual());
    let (ip, theirs) = (PolicyHandle::new(ip), store(redis.url()).await);
    let (users, ips) = (Bans::new(&user, theirs.clone()), Bans::new(&ip, theirs));
    users.impose("mallory", HOUR, "by mistake").await.unwrap();
    a_second().await;
    // The next look is a second later.
    assert!(!admit(&limiter, "mallory").await, "and so it is known here");
    users.lift("mallory").await.unwrap();
    ips.impose("::1", HOUR, "spam").await.unwrap();
    far.proxy.drop_replies_to("tsw:mark", 1);
    let both = limiter.check_all([(&user, "mallory"), (&ip, "::1")]).await.unwrap();
    assert!(both.usage().banned_for().is_some() && far.proxy.dropped() == 1);
    far.cut().await;
    assert!(!limiter.check_all([(&ip, "::1")]).await.unwrap().is_admitted());
}

/// The process may not read the mark by which a loss is known.
#[tokio::test]
async fn ban_lifted_elsewhere_is_over_for_a_user_of_few_rights() {
    let redis = Redis::start().await;
    redis.run::<()>(&["ACL", "SETUSER", "few", "on", ">secret", "~*", "+@all", "-getex"]).await;
    let few = store(redis.url().replace("redis://", "redis://few:secret@")).await;
    let Two { mut redis, ours, their_bans, .. } = Two::with(few, redis).await;
    ban("mallory", &their_bans, &ours).await;
    their_bans.lift("mallory").await.unwrap();
    let (looks, began) = (redis.call_count("set").await, Instant::now());
    for _ in 0..20 {
        assert!(admit(&ours, "mallory").await);
    }
    let (made, took) = (redis.call_count("set").await - looks, began.elapsed());
    assert!(made <= 2 + took.as_secs(), "{made} looks in {took:?}");
    redis.kill();
    assert!(admit(&ours, "mallory").await);
}
