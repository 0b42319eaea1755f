//! Checks of concurrent callers, which go to Redis in one script call.

use std::ops::Range;

use crate::*;

const A_SECOND: Duration = Duration::from_secs(1);

/// Returns the check of one request, which an outage answers with an error.
fn check(key: impl Into<String>) -> Check {
    let policy = Arc::new(Policy::new("user").quota(Quota::per_minute(5)));
    let mut check = Check::new([LogId::new(policy, key.into())]);
    check.on_failure = FailurePolicy::Closed;
    check
}

type Sent = JoinHandle<Result<(Check, Outcome), StoreError>>;

fn send(store: &RedisStore, check: Check) -> Sent {
    let outcome = store.admit(&check);
    tokio::spawn(async move { Ok((check, outcome.await?)) })
}

async fn assert_all_admitted(sent: impl IntoIterator<Item = Sent>) {
    for sent in join_all(sent).await {
        assert!(sent.unwrap().unwrap().1.admitted);
    }
}

/// Sends checks while two calls are under way, so that they go together.
async fn together(redis: &Redis, store: &RedisStore, checks: Vec<Check>) -> Vec<Sent> {
    redis.run::<()>(&["CLIENT", "PAUSE", "20000", "WRITE"]).await;
    let held = ["alone", "first"].map(|key| send(store, check(key)));
    redis.holds_back(1).await;
    let sent = checks.into_iter().map(|check| send(store, check)).collect();
    tokio::task::yield_now().await;
    redis.run::<()>(&["CLIENT", "UNPAUSE"]).await;
    assert_all_admitted(held).await;
    sent
}

/// Returns how many calls of scripts an action takes.
async fn evalsha_count(redis: &Redis, action: impl Future<Output = ()>) -> usize {
    let before = redis.call_count("evalsha").await;
    action.await;
    (redis.call_count("evalsha").await - before) as usize
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn busy_process_sends_no_check_alone() {
    let redis = Redis::start().await;
    let store = patient().connect(redis.url()).await.unwrap();
    let round = async |users: Range<u32>| {
        let store = store.clone();
        let checks = async move {
            assert_all_admitted(users.map(|user| send(&store, check(format!("user-{user}")))))
                .await;
        };
        // On the only worker, so that all checks are ready before the first one runs.
        evalsha_count(&redis, async { tokio::spawn(checks).await.unwrap() }).await
    };
    for users in [0..10, 10..20, 20..21, 21..31] {
        assert_eq!(round(users).await, 1);
    }
}

/// Neither its numbers nor those of its reply fit on the stack of Lua at once, nor with those of others.
#[tokio::test]
async fn request_of_many_logs_spoils_no_call() {
    let redis = Redis::start().await;
    let store = patient().connect(redis.url()).await.unwrap();
    let small = (0..20).map(|number| check(format!("user-{number}")));
    let policy = check("alice").logs()[0].policy.clone();
    let logs = (0..5_000).map(|number| LogId::new(policy.clone(), format!("bulk-{number}")));
    let checks = small.clone().take(10).chain([Check::new(logs)]).chain(small.skip(10)).collect();
    assert_all_admitted(together(&redis, &store, checks).await).await;
    assert_eq!(redis.entries("tsw:{=bulk-4999}:user:60s").await, 1);
}

/// The caller of each leaves after its first poll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settlements_are_made_without_their_callers_and_in_order() {
    let redis = Redis::start().await;
    let policy = Policy::new("user").quota(Quota::per_minute(10_000)).budget();
    let limiter = Limiter::new(policy, patient().connect(redis.url()).await.unwrap());
    let settling = limiter.clone();
    let settled = tokio::spawn(async move {
        for _ in 0..300 {
            let admitted = admit_cost(&settling, 9).await;
            for cost in [7, 3] {
                let mut settled = tokio_test::task::spawn(settling.settle(&admitted, cost));
                // Nearly always pending: on a busy machine the reply may be there.
                let _ = settled.poll();
            }
        }
    });
    settled.await.unwrap();
    let left = async || limiter.peek("alice").await.unwrap().remaining();
    eventually("each costs 3", async || left().await == 10_000 - 900).await;
}

#[tokio::test]
async fn checks_of_all_kinds_share_a_call_and_are_independent() {
    let redis = Redis::start().await;
    let store = patient().deny_cache(false).connect(redis.url()).await.unwrap();
    redis.run::<()>(&["SET", "tsw:{=user-7}:user:61s", "no log"]).await;
    let of_kind = |number: u32| {
        let quota = Quota::new(2 + number % 3, Duration::from_secs(60 + u64::from(number % 2)));
        let policy = Arc::new(Policy::new("user").quota(quota));
        let mut check = Check::new([LogId::new(policy, format!("user-{number}"))]);
        check.wants_reset = number.is_multiple_of(4);
        check.on_failure = FailurePolicy::Closed;
        check
    };
    let checks = (0..24).map(of_kind).collect();
    let mut admitted = Vec::new();
    let outcomes = async {
        for (number, sent) in together(&redis, &store, checks).await.into_iter().enumerate() {
            match sent.await.unwrap() {
                Ok((check, outcome)) => {
                    assert!(outcome.admitted && outcome.timestamp.is_some() && number != 7);
                    let quota = check.logs()[0].policy.quotas()[0];
                    assert_eq!(outcome.logs()[0].quotas()[0].remaining(), quota.limit() - 1);
                    admitted.push(check);
                }
                Err(error) => {
                    assert!(!error.to_string().contains("user-7"), "{error}");
                    let StoreError::Refused { code, .. } = error else { panic!("{error}") };
                    assert_eq!((number, &*code), (7, "WRONGTYPE"));
                }
            }
        }
    };
    let calls = evalsha_count(&redis, outcomes).await;
    assert!(calls <= 4, "{calls}");

    let cancel = async |checks: &[Check]| {
        let cancelled = join_all(checks.iter().map(|check| store.settle(check, 0))).await;
        for (check, cancelled) in checks.iter().zip(cancelled) {
            let is_broken = check.logs()[0].key == "user-7".into();
            assert_eq!(cancelled.unwrap_or_default(), !is_broken);
        }
    };
    let some = admitted.split_off(5);
    assert!(evalsha_count(&redis, cancel(&some)).await <= 4);
    // The error of one log spares the others. How often the store tries that one again is not counted.
    admitted.push(of_kind(7));
    cancel(&admitted).await;
    let not_cancelled =
        ["tsw:{=alone}:user:60s", "tsw:{=first}:user:60s", "tsw:{=user-7}:user:61s"];
    assert_eq!(redis.keys().await, not_cancelled);
    assert_eq!(redis.run::<String>(&["GET", "tsw:{=user-7}:user:61s"]).await, "no log");
}

/// Whatever they count, and also when their slots have moved to another node.
#[tokio::test]
async fn checks_for_one_node_of_a_cluster_share_calls() {
    const USERS: usize = 200;
    let cluster = Cluster::start().await;
    let store = patient().deny_cache(false).connect(cluster.servers()).await.unwrap();
    let policy = || Policy::new("user").quota(Quota::per_minute(2)).quota(Quota::per_hour(3));
    let policies = [
        policy(),
        policy().budget(),
        policy().distinct(),
        policy().in_flight(),
        policy().penalty("5/1h:1h".parse().unwrap()),
    ];
    let policies = policies.map(Arc::new);
    let name = |user: usize| {
        let log = policies[user % policies.len()].log_name();
        format!("tsw:{{=user-{user}}}:{log}")
    };
    let check = |user: usize, round: usize| {
        let log = LogId::new(policies[user % policies.len()].clone(), format!("user-{user}"));
        let mut check = Check::new([log.with_value(format!("value-{round}"))]);
        check.on_failure = FailurePolicy::Closed;
        // So that a call has the new log first.
        check.wants_reset = true;
        check
    };
    let calls = async || cluster.call_count("evalsha").await as usize;
    // Returns the checks with their outcomes.
    let round = async |round: usize| {
        let sent = join_all((0..USERS).map(|user| send(&store, check(user, round)))).await;
        sent.into_iter().map(|sent| sent.unwrap())
    };
    let (broken, before) = (USERS - 5, calls().await);
    let node = cluster.node_of(&name(broken));
    node.run::<()>(&["SET", &name(broken), "no log"]).await;
    for (user, outcome) in round(0).await.enumerate() {
        match outcome {
            Ok((_, outcome)) => assert!(outcome.admitted && user != broken),
            Err(error) => {
                assert!(error.to_string().contains("WRONGTYPE") && user == broken, "{error}");
            }
        }
    }
    let shared = calls().await - before;
    assert!(shared <= USERS / 4, "{shared} calls");
    node.run::<()>(&["DEL", &name(broken)]).await;

    // A slot moves. Another one has begun to: a log that it has is on the old node, and a new one on the other.
    let (moved, moving) = (7, 35);
    cluster.move_key(&name(moved), Cluster::next(&name(moved))).await;
    cluster.begin_to_move(&name(moving), Cluster::next(&name(moving))).await;
    let new = Arc::new(Policy::new("new").quota(Quota::per_hour(1)));
    let new = send(&store, Check::new([LogId::new(new, format!("user-{moving}"))]));
    let admitted = round(1).await.map(|it| it.unwrap());
    let (checks, outcomes): (Vec<_>, Vec<_>) = admitted.unzip();
    assert!(outcomes.iter().all(|outcome| outcome.admitted));
    assert_all_admitted([new]).await;
    for (user, outcome) in round(2).await.enumerate() {
        assert_eq!(outcome.unwrap().1.admitted, user == broken, "{user}");
    }

    let before = calls().await;
    for cancelled in join_all(checks.iter().map(|check| store.settle(check, 0))).await {
        cancelled.unwrap();
    }
    let shared = calls().await - before;
    assert!(shared <= USERS / 2, "{shared} calls");
    for (user, outcome) in round(3).await.enumerate() {
        let is_kept = policies[user % policies.len()].counts() == Counts::Distinct;
        assert_eq!(outcome.unwrap().1.admitted, !is_kept, "{user}");
    }
}

#[tokio::test]
async fn check_that_is_dropped_is_not_sent() {
    let redis = Redis::start().await;
    let store = patient().connect(redis.url()).await.unwrap();
    redis.run::<()>(&["CLIENT", "PAUSE", "20000", "WRITE"]).await;
    let held = ["alone", "first"].map(|key| send(&store, check(key)));
    tokio::task::yield_now().await;
    let dropped = [(); 10].map(|()| send(&store, check("dropped")));
    tokio::task::yield_now().await;
    dropped.iter().for_each(JoinHandle::abort);
    let last = send(&store, check("last"));
    tokio::task::yield_now().await;
    redis.run::<()>(&["CLIENT", "UNPAUSE"]).await;
    assert_all_admitted(held.into_iter().chain([last])).await;
    assert_eq!(redis.keys().await.len(), 3);
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Sends checks one after the other. Only the first may have to wait for its time limit.
fn checks_go_on(servers: &Runtime, store: &RedisStore) {
    let checks = async {
        for number in 0..20 {
            assert_all_admitted([send(store, check(format!("new-{number}")))]).await;
        }
    };
    let done = servers.block_on(async { timeout(8 * A_SECOND, checks).await });
    done.expect("no check waits for the task that is lost");
}

#[test]
fn batch_outlives_its_runtime() {
    let (servers, first) = (runtime(), runtime());
    let redis = servers.block_on(Redis::start());
    let store = servers.block_on(patient().connect(redis.url())).unwrap();
    servers.block_on(redis.run::<()>(&["CLIENT", "PAUSE", "60000", "WRITE"]));
    let send_on = |runtime: &Runtime, key: &str| {
        let _entered = runtime.enter();
        send(&store, check(key))
    };
    let _alone = send_on(&servers, "alone");
    servers.block_on(redis.holds_back(1));
    let _taken = send_on(&first, "taken");
    std::thread::sleep(A_SECOND / 10);
    let queued = send_on(&servers, "queued");
    std::thread::sleep(A_SECOND / 10);
    first.shutdown_background();
    servers.block_on(redis.run::<()>(&["CLIENT", "UNPAUSE"]));
    // No other request comes that would start another task.
    let queued = async { timeout(8 * A_SECOND, assert_all_admitted([queued])).await };
    servers.block_on(queued).expect("the task is gone");
    checks_go_on(&servers, &store);
}

#[test]
fn unpolled_batch_delays_no_other() {
    let servers = runtime();
    let redis = servers.block_on(Redis::start());
    let store = RedisStore::builder().response_timeout(A_SECOND).connect(redis.url());
    let store = servers.block_on(store).unwrap();
    let unpolled = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    unpolled.block_on(async {
        redis.run::<()>(&["CLIENT", "PAUSE", "20000", "WRITE"]).await;
        let _held = ["1", "2", "3"].map(|key| send(&store, check(key)));
        sleep(A_SECOND / 10).await;
        redis.run::<()>(&["CLIENT", "UNPAUSE"]).await;
    });
    // Nothing polls that runtime any more, and its task has taken requests.
    checks_go_on(&servers, &store);
    drop(unpolled);
}
