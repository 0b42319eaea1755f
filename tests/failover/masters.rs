//! A server that is not the master any more, or not yet.

use crate::*;

async fn follow(replica: &Redis, master: &Redis) {
    replica.command(&format!("REPLICAOF 127.0.0.1 {}", master.port())).await;
    replica.says("replication", "master_link_status:up").await;
}

/// The server has the same process and the mark again, and has lost what its replica did not have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_there_and_back_is_a_loss() {
    let cases = ["nothing", "the connection breaks", "it is used as a replica"];
    join_all(cases.map(async |meanwhile| {
        let (first, second) = (Redis::start().await, Redis::start().await);
        let ours = limiter(user(5), &store(first.url()).await);
        assert!(admit(&ours, "bob").await);
        follow(&second, &first).await;
        second.command("REPLICAOF NO ONE").await;
        for _ in 0..5 {
            assert!(admit(&ours, "alice").await);
        }
        follow(&first, &second).await;
        assert_eq!(first.entries(LOG).await, 0, "they are lost");
        let begin = Instant::now();
        while meanwhile == "it is used as a replica" && begin.elapsed().as_millis() < 1_500 {
            admit(&ours, "bob").await;
            sleep(Duration::from_millis(20)).await;
        }
        first.command("REPLICAOF NO ONE").await;
        if meanwhile == "the connection breaks" {
            first.command("CLIENT KILL TYPE normal").await;
        }
        if meanwhile != "it is used as a replica" {
            notice_a_loss(&ours).await;
        }
        assert!(!admit(&ours, "alice").await, "{meanwhile}");
        assert_eq!(first.entries(LOG).await, 5);
    }))
    .await;
}

/// As in a failover by hand. A connection to such a server is none, although it replies to a PING.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_whose_writes_are_paused_costs_one_wait() {
    let (redis, ours) = near(100_000).await;
    assert!(admit(&ours, "alice").await);
    redis.command("CLIENT PAUSE 3000 WRITE").await;
    let (begin, mut slow) = (Instant::now(), Vec::new());
    while begin.elapsed() < Duration::from_millis(2_500) {
        let sent = Instant::now();
        assert!(admit(&ours, "alice").await);
        slow.extend(Some(sent.elapsed()).filter(|it| *it > Duration::from_millis(400)));
        sleep(Duration::from_millis(5)).await;
    }
    assert!(slow.len() <= 1, "{slow:?}");
    until_redis_decides(&ours).await;
}

/// Each Sentinel, or the master that they name.
#[tokio::test]
async fn error_through_sentinels_names_the_server() {
    // Nobody has these ports.
    let [first, second, master] = [1, 2, 3].map(|port| format!("127.0.0.1:{port}"));
    let error_of = async |urls: Vec<String>, name: &str| {
        let servers = RedisServers::sentinel(urls, name).unwrap();
        RedisStore::connect(servers).await.unwrap_err().to_string()
    };
    let gone = [&first, &second].map(|address| format!("redis://{address}"));
    let error = error_of(gone.to_vec(), MASTER).await;
    for address in [first, second] {
        assert!(error.contains(&format!("{address}: ")), "{error}");
    }
    let sentinel = Sentinel::start(3).await;
    let error = error_of(vec![sentinel.server.url()], MASTER).await;
    assert!(error.contains(&format!("{master}: ")), "{error}");
    let error = error_of(vec![sentinel.server.url()], "another").await;
    assert!(error.contains(&format!("127.0.0.1:{}: ", sentinel.server.port())), "{error}");
}

/// The Sentinels can't reach the old master, which does not know that it was replaced. Or it may not write, because it
/// has lost its replicas. Nobody checks, but for the application's own commands, or there are checks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_master_is_left() {
    join_all([("0", true), ("1", true), ("0", false)].map(async |(replicas, checks)| {
        let (old, new) = (Redis::start().await, Redis::start().await);
        let sentinel = Sentinel::start(old.port()).await;
        let servers = RedisServers::sentinel([sentinel.server.url()], MASTER).unwrap();
        let store = store(servers).await;
        let (ours, commands) = (limiter(user(1_000), &store), store.commands());
        assert!(admit(&ours, "alice").await);
        sentinel.name(&new).await;
        old.run::<()>(&["CONFIG", "SET", "min-replicas-to-write", replicas]).await;
        eventually(&format!("the new master is used: {replicas}, {checks}"), async || {
            if checks {
                // What the old one has admitted counts.
                let decided_by = decided_by(&ours, "alice").await;
                return decided_by == REDIS && new.entries(LOG).await > old.entries(LOG).await;
            }
            let _ = commands.query::<redis::Value>(redis::cmd("SET").arg("x").arg(1)).await;
            new.run::<bool>(&["EXISTS", "x"]).await
        })
        .await;
    }))
    .await;
}

/// Two Sentinels of five still name the old master, and one of them hangs: what most of them name counts, at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_sentinel_does_not_lead_to_an_old_master() {
    let (old, new) = (Redis::start().await, Redis::start().await);
    let mut sentinels = Vec::new();
    for master in [&old, &new, &new, &old, &new] {
        sentinels.push(Sentinel::start(master.port()).await);
    }
    sentinels[3].server.signal("STOP");
    let servers = RedisServers::sentinel(sentinels.iter().map(|it| it.server.url()), MASTER);
    let begin = Instant::now();
    let ours = limiter(user(1_000), &store(servers.unwrap()).await);
    assert!(admit(&ours, "alice").await);
    assert!(begin.elapsed() < Duration::from_millis(900), "it waited for the one that hangs");
    for _ in 0..2 {
        sleep(Duration::from_millis(1_100)).await;
        assert!(admit(&ours, "alice").await);
    }
    assert_eq!((old.entries(LOG).await, new.entries(LOG).await), (0, 3));
}
