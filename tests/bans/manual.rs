//! Bans that are imposed and lifted by hand.

use crate::*;

test_support::on_every_store!(
    manual_ban_only_lengthens_until_lifted,
    stricter_penalty_of_two_applies,
    a_ban_by_hand_needs_no_strikes,
    pardoned_key_begins_anew,
    ban_that_would_not_be_enforced_is_an_error;
    without_deny_cache:
    strikes_count_for_as_long_as_each_penalty_says,
    policy_without_a_penalty_keeps_strikes_and_level,
);

tokio::task_local! {
    static OPERATOR: &'static str;
}

/// An operator who hangs up changes no ban without a trace. One who waits is known to the closure.
#[tokio::test]
async fn event_comes_although_the_caller_has_left() {
    let redis = Redis::start().await;
    let store = redis.store().await;
    let limiter = Limiter::new(policy(), store.clone());
    let events = Arc::new(Mutex::new(Vec::new()));
    let heard = events.clone();
    let bans = Bans::new(policy(), store);
    let bans = bans.on_event(move |_| heard.lock().unwrap().push(OPERATOR.try_get().ok()));
    let mut impose = task::spawn(bans.impose("mallory", Duration::from_secs(60), "spam"));
    assert_pending!(impose.poll());
    drop(impose);
    eventually("it is imposed", async || events.lock().unwrap().len() == 1).await;
    assert!(!admit(&limiter, "mallory").await, "remembered for a second");
    let mut lift = task::spawn(bans.lift("mallory"));
    assert_pending!(lift.poll());
    let is_lifted = async || !redis.keys().await.iter().any(|key| key.ends_with(":ban"));
    eventually("Redis has lifted it", is_lifted).await;
    drop(lift);
    assert!(admit(&limiter, "mallory").await);
    eventually("it is lifted", async || events.lock().unwrap().len() == 2).await;
    OPERATOR.scope("eve", bans.impose("mallory", Duration::from_secs(60), "spam")).await.unwrap();
    OPERATOR.scope("eve", bans.lift("mallory")).await.unwrap();
    assert_eq!(*events.lock().unwrap(), [None, None, Some("eve"), Some("eve")]);
}

/// As a lift, a pardon that has begun is finished: otherwise the log is empty, and the ban stands.
#[tokio::test]
async fn pardon_is_finished_although_the_caller_has_left() {
    let redis = Redis::start().await;
    let store = redis.store().await;
    assert!(Limiter::new(policy(), store.clone()).check("mallory").await.unwrap().is_admitted());
    let bans = Bans::new(policy(), store);
    bans.impose("mallory", Duration::from_secs(3_600), "by hand").await.unwrap();
    let mut pardon = task::spawn(bans.pardon("mallory"));
    assert_pending!(pardon.poll());
    let is_empty = async || !redis.keys().await.iter().any(|key| key.ends_with(":1s"));
    eventually("the log is empty", is_empty).await;
    drop(pardon);
    sleep(Duration::from_millis(500)).await;
    assert_eq!(bans.get("mallory").await.unwrap(), None);
}

async fn manual_ban_only_lengthens_until_lifted(store: impl Store + Clone) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let heard = events.clone();
    let bans = Bans::new(policy(), store.clone());
    let bans = bans.on_event(move |event| heard.lock().unwrap().push(event.clone()));
    let limiter = Limiter::new(policy(), store);
    assert_eq!(bans.get("mallory").await.unwrap(), None);
    assert!(!bans.lift("mallory").await.unwrap());

    let minute = Duration::from_secs(60);
    let ban = bans.impose("mallory", minute, "sells accounts").await.unwrap();
    assert_eq!((ban.remaining, &*ban.reason), (minute, "sells accounts"));
    let shorter = bans.impose("mallory", minute / 2, "again").await.unwrap();
    assert!(shorter.remaining > minute / 2 && shorter.reason == "sells accounts");
    let longer = bans.impose("mallory", minute * 2, "again").await.unwrap();
    assert_eq!((longer.remaining, &*longer.reason), (minute * 2, "again"));
    bans.impose("a}%7Db*\n{", minute, "strange").await.unwrap();

    assert!(!admit(&limiter, "mallory").await);
    let listed = bans.list().await.unwrap();
    let listed: Vec<_> =
        listed.iter().map(|(key, ban)| (key.as_bytes(), ban.reason.clone())).collect();
    assert_eq!(listed, [(&b"mallory"[..], "again".into()), (&b"a}%7Db*\n{"[..], "strange".into())]);

    assert!(bans.lift("mallory").await.unwrap());
    assert_eq!(bans.get("mallory").await.unwrap(), None);
    assert_eq!(bans.list().await.unwrap().len(), 1);
    sleep(Duration::from_millis(1_050)).await; // as long as another process may remember it
    assert!(admit(&limiter, "mallory").await);
    let events = events.lock().unwrap();
    assert_eq!(events.len(), 4, "two that lengthened, a stranger's, and a lifted one");
    assert!(matches!(events[3], BanEvent::Lifted { .. }));
}

fn with_penalty(quota: Quota, penalty: &str) -> PolicyHandle {
    PolicyHandle::new(Policy::new("user").quota(quota).penalty(penalty.parse().unwrap()))
}

async fn stricter_penalty_of_two_applies(store: impl Store + Clone) {
    let [lax, strict] = ["5/1d:1h", "1/1h:2h"].map(|it| with_penalty(Quota::per_hour(1), it));
    // Without a penalty: the first one has the same log, and the second one another.
    let [plain, other] = [Quota::per_hour(1), Quota::per_minute(100)]
        .map(|quota| PolicyHandle::new(Policy::new("user").quota(quota)));
    let limiter = Limiter::new(&lax, store);
    for (key, pairs) in [
        ("alice", [&lax, &strict]),
        ("bob", [&strict, &lax]),
        ("carol", [&plain, &strict]),
        ("dave", [&strict, &plain]),
        ("erin", [&other, &strict]),
    ] {
        let check = async || limiter.check_all(pairs.map(|it| (it, key))).await.unwrap();
        assert!(check().await.is_admitted());
        let banned = check().await.usage().banned_for();
        assert!(banned > Some(Duration::from_secs(7_000)), "{key}: {banned:?}");
    }
}

/// A check under another penalty makes the store forget no strike.
async fn strikes_count_for_as_long_as_each_penalty_says(store: impl Store + Clone) {
    let [long, short] = ["3/1h:1h", "3/2050ms:1h"]
        .map(|penalty| Limiter::new(with_penalty(Quota::per_second(1), penalty), store.clone()));
    for (limiter, pause_ms, is_ban) in
        [(&long, 1_050, false), (&long, 2_100, false), (&short, 2_500, false), (&long, 0, true)]
    {
        assert_eq!(run_into(limiter).await.1.is_some(), is_ban, "{pause_ms}");
        sleep(Duration::from_millis(pause_ms)).await;
    }
}

async fn a_ban_by_hand_needs_no_strikes(store: impl Store + Clone) {
    let policy = || Policy::new("user").quota(Quota::per_minute(1)).penalty(Penalty::manual());
    let limiter = Limiter::new(policy(), store.clone());
    assert!(admit(&limiter, "mallory").await);
    for _ in 0..200 {
        let decision = limiter.check("mallory").await.unwrap();
        assert!(!decision.is_admitted() && decision.usage().bans().count() == 0);
    }
    let bans = Bans::new(policy(), store);
    assert!(!bans.lift("mallory").await.unwrap(), "no strike was counted");
    let longest = bans.impose("trudy", Duration::MAX, "for ever").await.unwrap().remaining;
    assert_eq!(longest, Duration::from_secs(365 * 24 * 3600));
    assert!(limiter.check("trudy").await.unwrap().usage().banned_for().is_some());
}

async fn pardoned_key_begins_anew(store: impl Store + Clone) {
    let user = Policy::new("user").quota(Quota::per_hour(1)).penalty("1/1d:1h,2h".parse().unwrap());
    let (user, other) = (PolicyHandle::new(user), Policy::new("other").quota(Quota::per_hour(5)));
    let (limiter, bans) = (Limiter::new(&user, store.clone()), Bans::new(&user, store.clone()));
    let other = Limiter::new(other, store);
    let banned_for = async || {
        assert!(admit(&other, "alice").await);
        assert!(admit(&limiter, "alice").await);
        let denied = limiter.check("alice").await.unwrap();
        denied.usage().banned_for().unwrap().as_secs_f64().round()
    };
    let first = banned_for().await;
    bans.lift("alice").await.unwrap();
    assert!(!admit(&limiter, "alice").await, "its log is full");
    assert!(bans.pardon("alice").await.unwrap());
    assert_eq!(banned_for().await, first, "its level is the first one again");
    assert_eq!(other.peek("alice").await.unwrap().remaining(), 3, "that of another policy stays");
    assert!(!bans.pardon("bob").await.unwrap());
}

/// The table of ban records is full, and a client that is denied sends on and on.
#[tokio::test(start_paused = true)]
async fn full_table_of_bans_admits_nothing() {
    let store = MemoryStore::with_capacity(2);
    let bans = Bans::new(policy(), store.clone());
    for key in ["x", "y"] {
        bans.impose(key, Duration::from_secs(60), "by hand").await.unwrap();
    }
    let limiter = Limiter::new(policy(), store);
    let (warnings, (recorded, _recorder)) = (Warnings::listen(), RecordedMetrics::listen());
    for lines in [1, 2] {
        for _ in 0..1_000 {
            let _ = limiter.check("mallory").await.unwrap();
        }
        assert_eq!(warnings.lines().len(), lines, "no flood of warnings");
        advance(Duration::from_secs(1)).await;
    }
    assert!(warnings.lines()[1].contains("strikes=997"), "{:?}", warnings.lines());
    assert_eq!(recorded.count("sliding_window_strikes_lost_total{}"), 998);
    for on_failure in [FailurePolicy::default(), FailurePolicy::Open, FailurePolicy::Closed] {
        let limiter = limiter.clone().failure_policy(on_failure);
        limiter.reset("mallory").await.unwrap();
        for admitted in [true, true, false, false] {
            let decision = limiter.check("mallory").await.unwrap();
            let decided = (decision.is_admitted(), decision.decided_by());
            assert_eq!(decided, (admitted, DecidedBy::Store));
        }
    }
}

/// A ban is read and imposed through a log of the same name whose policy has no penalty.
async fn policy_without_a_penalty_keeps_strikes_and_level(store: impl Store + Clone) {
    let limiter = Limiter::new(policy(), store.clone());
    let plain = LogId::new(Arc::new(Policy::new("user").quota(Quota::per_second(2))), "mallory");
    assert_eq!(run_into(&limiter).await, (Strike::Counted, None));
    assert_eq!(store.ban(&plain).await.unwrap(), None);
    sleep(Duration::from_millis(1_050)).await;
    assert_eq!(run_into(&limiter).await.0, Strike::Banned, "the first strike still counts");
    let three_seconds = Duration::from_secs(3);
    let _ = store.impose(&plain, three_seconds, "by hand", false).await.unwrap();
    sleep(Duration::from_millis(3_050)).await;
    assert_eq!(provoke(&limiter).await, three_seconds, "the next level");
}

async fn ban_that_would_not_be_enforced_is_an_error(store: impl Store + Clone) {
    let handle = PolicyHandle::new(policy());
    let bans = Bans::new(&handle, store);
    handle.set(Policy::new("user").quota(Quota::per_second(2))).unwrap();
    let minute = Duration::from_secs(60);
    let error = bans.impose("mallory", minute, "spam").await.unwrap_err();
    assert!(error.to_string().contains("Policy::penalty"), "{error}");
    assert_eq!(error.retry_after(), None);
    handle.set(policy()).unwrap();
    assert_eq!(bans.get("mallory").await.unwrap(), None);
    assert_eq!(bans.impose("mallory", minute, "spam").await.unwrap().remaining, minute);
}

/// A key that keeps just below the count makes its strikes last. Then they are bounded.
#[tokio::test]
async fn every_key_of_a_ban_expires_after_the_level() {
    let redis = Redis::start().await;
    let store = redis.store_without_deny_cache().await;
    let limiter = Limiter::new(policy(), store.clone());
    let day = Duration::from_secs(24 * 3600);
    let ttl_s = async || redis.run::<u64>(&["TTL", "tsw:{=mallory}:user:ban"]).await;
    provoke(&limiter).await;
    assert!(ttl_s().await.abs_diff(day.as_secs()) < 600, "a level a day");
    Bans::new(policy(), store).impose("mallory", 10 * day, "by hand").await.unwrap();
    assert!(ttl_s().await > 11 * day.as_secs() - 600);
    let strikes = "tsw:{=trudy}:user:strikes";
    let fill = "for n = 1, 300 do redis.call('ZADD', KEYS[1], n, n) end";
    redis.run::<()>(&["EVAL", fill, "1", strikes]).await;
    for _ in 0..3 {
        let _ = limiter.check("trudy").await.unwrap();
    }
    assert_eq!(redis.entries(strikes).await, 100);
    for key in redis.keys().await {
        let ttl_ms: i64 = redis.run(&["PTTL", &key]).await;
        assert!(ttl_ms > 0, "{key} stays for ever");
    }
}

/// A store of one's own may keep no bans.
#[tokio::test]
async fn store_without_bans_says_so() {
    let store = StubStore(|_: &Check| StoreFuture::ready(Err(StoreError::Unavailable)));
    let bans = Bans::new(policy(), store);
    let unsupported = |error| matches!(error, StoreError::Unsupported { what: "bans" });
    assert!(unsupported(bans.get("alice").await.unwrap_err()));
    assert!(unsupported(bans.impose("alice", Duration::from_secs(60), "").await.unwrap_err()));
    assert!(unsupported(bans.lift("alice").await.unwrap_err()));
    assert!(unsupported(bans.list().await.unwrap_err()));
}
