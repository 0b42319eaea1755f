//! Windows on a Cluster: when nodes fail or slots move, and when callers leave.

use crate::*;

/// Starts a Cluster, and a limiter on it.
async fn start(limit: u32) -> (Cluster, Limiter) {
    let cluster = Cluster::start().await;
    let limiter = limiter(user(limit), &store(cluster.servers()).await);
    (cluster, limiter)
}

/// Checks alice five times: all pass, or none does.
async fn five_of_alice(limiter: &Limiter, pass: bool) {
    for _ in 0..5 {
        assert_eq!(admit(limiter, "alice").await, pass);
    }
}

/// All nodes are silent, so that the connection is given up. One of them is empty when the next one is made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_emptied_without_a_connection_never_over_admits() {
    let (mut cluster, limiter) = start(5).await;
    let owner = cluster.owner(LOG).await;
    five_of_alice(&limiter, true).await;
    cluster.nodes.iter().for_each(|node| node.signal("STOP"));
    decides(DecidedBy::LocalLog, &limiter, &["1", "2", "3", "4", "5"].map(String::from)).await;
    cluster.nodes[owner].restart().await;
    cluster.nodes.iter().for_each(|node| node.signal("CONT"));
    eventually("Redis decides", async || {
        let decision = limiter.check("alice").await.unwrap();
        assert!(!decision.is_admitted());
        decision.decided_by() == DecidedBy::Store
    })
    .await;
}

/// Returns the Redis key of the log of a key.
fn log_of(key: &str) -> String {
    format!("tsw:{{={key}}}:user:1h")
}

/// Keys of a node, and keys of the others.
async fn keys_of(cluster: &Cluster, node: usize) -> (Vec<String>, Vec<String>) {
    let (mut of_it, mut others) = (Vec::new(), Vec::new());
    for number in 0..60 {
        let key = format!("key-{number}");
        match cluster.owner(&log_of(&key)).await == node {
            true => of_it.push(key),
            false => others.push(key),
        }
    }
    (of_it, others)
}

/// A Cluster, a store that has used its second node, keys of that one, and keys of the others.
async fn steady_cluster(timeout: Duration) -> (Cluster, RedisStore, Vec<String>, Vec<String>) {
    let cluster = Cluster::start().await;
    let store = RedisStore::builder().deny_cache(false).response_timeout(timeout);
    let store = store.connect(cluster.servers()).await.unwrap();
    let (of_it, others) = keys_of(&cluster, 1).await;
    decides(DecidedBy::Store, &limiter(user(1_000), &store), &of_it).await;
    (cluster, store, of_it, others)
}

async fn decides(by: DecidedBy, limiter: &Limiter, keys: &[String]) {
    for key in keys {
        assert_eq!(limiter.check(key.as_str()).await.unwrap().decided_by(), by, "{key}");
    }
}

pub(crate) async fn until_redis_decides(limiter: &Limiter, key: &str) {
    eventually("Redis decides", async || {
        limiter.check(key).await.unwrap().decided_by() == DecidedBy::Store
    })
    .await;
}

fn all_at_once(by: DecidedBy, limiter: &Limiter, keys: &[String]) -> JoinSet<()> {
    let mut all = JoinSet::new();
    for key in keys.iter().cloned() {
        let limiter = limiter.clone();
        all.spawn(async move { decides(by, &limiter, &[key]).await });
    }
    all
}

/// The other nodes do not notice meanwhile, also of what the application itself asks the node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_node_costs_its_timeout_once() {
    const TIMEOUT: Duration = Duration::from_secs(3);
    let (cluster, store, of_it, others) = steady_cluster(TIMEOUT).await;
    let limiter = limiter(user(9), &store);
    cluster.nodes[1].signal("STOP");
    all_at_once(DecidedBy::LocalLog, &limiter, &of_it).join_all().await;
    let start = Instant::now();
    decides(DecidedBy::LocalLog, &limiter, &of_it).await;
    limiter.explain(&*of_it[0]).await.unwrap();
    assert!(start.elapsed() < TIMEOUT, "none of them has waited for the node");
    for _ in 0..6 {
        let reply = store.commands().query::<u64>(redis::cmd("ZCARD").arg(log_of(&of_it[0]))).await;
        assert!(reply.is_err(), "the node is silent");
    }
    decides(DecidedBy::Store, &limiter, &others).await;
    cluster.nodes[1].signal("CONT");
    until_redis_decides(&limiter, &of_it[0]).await;
    assert_eq!(limiter.peek(&*of_it[1]).await.unwrap().remaining(), 6, "both were written back");
}

/// The node is killed while it is in use, or hangs from the start of the process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_nodes_decide_beside_a_dead_one() {
    for is_killed in [true, false] {
        let mut cluster = Cluster::start().await;
        let (of_it, others) = keys_of(&cluster, 1).await;
        if !is_killed {
            cluster.nodes[1].signal("STOP");
        }
        let limiter = limiter(user(1_000), &store(cluster.servers()).await);
        if is_killed {
            decides(DecidedBy::Store, &limiter, &of_it).await;
            cluster.nodes[1].kill();
        }
        for _ in 0..10 {
            let waiting = all_at_once(DecidedBy::LocalLog, &limiter, &of_it);
            decides(DecidedBy::Store, &limiter, &others).await;
            sleep(Duration::from_millis(200)).await;
            waiting.join_all().await;
        }
        let (one, other) = (&cluster.nodes[0], &cluster.nodes[2]);
        let questions =
            one.call_count("cluster|slots").await + other.call_count("cluster|slots").await;
        assert!(questions < 200, "{questions} questions who has the slots of {} keys", of_it.len());
        match is_killed {
            true => cluster.nodes[1].start_again(),
            false => cluster.nodes[1].signal("CONT"),
        }
        until_redis_decides(&limiter, &of_it[0]).await;
        if !is_killed {
            decides(DecidedBy::Store, &limiter, &of_it[1..]).await;
        }
    }
}

/// More resets are asked of a node than are under way at once. They last for longer than another call
/// would wait for one of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resets_on_a_silent_node_delay_no_call_to_another() {
    let (cluster, store, of_it, others) = steady_cluster(Duration::from_secs(3)).await;
    let limiter = limiter(user(1_000), &store);
    cluster.nodes[1].signal("STOP");
    let mut slow = JoinSet::new();
    for key in (0..10).flat_map(|_| of_it.clone()) {
        let limiter = limiter.clone();
        slow.spawn(async move { drop(limiter.reset(key).await) });
    }
    sleep(Duration::from_millis(50)).await;
    let explained = limiter.explain(&*others[0]).await.unwrap();
    assert_eq!(explained.decided_by, DecidedBy::Store);
}

/// A slot has moved from one node to another while a third one hangs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_that_has_moved_is_found_beside_a_silent_node() {
    let (cluster, store, of_it, mut others) = steady_cluster(fault::TIMEOUT).await;
    let limiter = limiter(user(1_000), &store);
    decides(DecidedBy::Store, &limiter, &others).await;
    let moved = others.pop().unwrap();
    cluster.move_key(&log_of(&moved), 2 - cluster.owner(&log_of(&moved)).await).await;
    cluster.nodes[1].signal("STOP");
    let of_it = all_at_once(DecidedBy::LocalLog, &limiter, &of_it);
    for _ in 0..10 {
        decides(DecidedBy::Store, &limiter, std::slice::from_ref(&moved)).await;
        decides(DecidedBy::Store, &limiter, &others).await;
        sleep(Duration::from_millis(100)).await;
    }
    of_it.join_all().await;
}

/// A slot is on its way to a new node, which has the log already. It is not used for a few seconds, and restarts empty.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newcomer_that_restarts_empty_never_over_admits() {
    let (mut cluster, limiter) = start(5).await;
    let to = cluster.add_primary().await;
    cluster.begin_to_move(LOG, to).await;
    five_of_alice(&limiter, true).await;
    assert_eq!(cluster.nodes[to].keys().await, [LOG]);
    for number in 0..30 {
        let _ = limiter.check(format!("other-{number}")).await.unwrap();
        sleep(Duration::from_millis(100)).await;
    }
    cluster.nodes[to].restart().await;
    cluster.serves_every_slot(&[0, 1, 2, to]).await;
    for pause_ms in [0, 300, 300, 300] {
        sleep(Duration::from_millis(pause_ms)).await;
        assert!(!admit(&limiter, "alice").await);
    }
}

/// A log has expired, but for its last second, and its slot is on its way. The node refuses the log as soon as its entries are
/// removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_log_of_a_slot_that_moves_harms_no_other() {
    // So few entries are removed all at once, and so many by their number.
    for length in [1, 257] {
        let (cluster, limiter) = start(1).await;
        let limiter = limiter.failure_policy(FailurePolicy::Closed);
        let second = Policy::new("user").quota(Quota::new(300, Duration::from_secs(1)));
        let [two, second] = [user(300), second].map(PolicyHandle::new);
        let (mut keys, _) = keys_of(&cluster, 1).await;
        let expired = [keys.pop().unwrap(), keys.pop().unwrap()];
        let mut all = JoinSet::new();
        for key in expired.iter().cycle().take(2 * length).cloned() {
            let (limiter, two, second) = (limiter.clone(), two.clone(), second.clone());
            all.spawn(async move {
                limiter.check_all([(&two, &*key), (&second, &*key)]).await.unwrap().is_admitted()
            });
        }
        assert!(all.join_all().await.into_iter().all(|is_admitted| is_admitted));
        for key in &expired {
            cluster.begin_to_move(&log_of(key), 0).await;
        }
        sleep(Duration::from_millis(1_400)).await;
        // The log of the hour has the request only if it passes.
        let both = limiter.check_all([(&two, &*expired[0]), (&second, &*expired[0])]).await;
        let entries = cluster.nodes[1].entries(&log_of(&expired[0])).await;
        assert_eq!(entries, length + usize::from(both.is_ok()), "{both:?}");
        // Others share the call. Those of one policy are beside each other there.
        let mut all = JoinSet::new();
        for (number, key) in keys.into_iter().enumerate() {
            let (limiter, hour) = (limiter.clone(), PolicyHandle::new(user(1)));
            let (second, expired) = (second.clone(), expired[1].clone());
            all.spawn(async move {
                if number == 10 {
                    let _ = limiter.check_all([(&second, &*expired)]).await;
                }
                limiter.check_all([(&hour, &*key)]).await.unwrap().is_admitted()
            });
        }
        assert!(all.join_all().await.into_iter().all(|is_admitted| is_admitted), "{length}");
    }
}

/// Its node refuses such a log as soon as its entries are removed, and names the other one when it is asked again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_log_of_a_slot_that_moves_is_that_of_all_processes() {
    let cluster = Cluster::start().await;
    let second = Policy::new("user").quota(Quota::new(3, Duration::from_secs(1)));
    let limiter = limiter(second, &store(cluster.servers()).await);
    let log = "tsw:{=alice}:user:1s";
    let to = cluster.next(log).await;
    assert!(admit(&limiter, "alice").await);
    cluster.begin_to_move(log, to).await;
    sleep(Duration::from_millis(1_400)).await;
    decides(DecidedBy::Store, &limiter, &["alice", "alice"].map(String::from)).await;
    assert_eq!(limiter.peek("alice").await.unwrap().remaining(), 1);
    assert_eq!(cluster.nodes[to].keys().await, [log]);
}

/// The node of a slot hangs while the slot is on its way. The log is on that node still, or on the other one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_of_a_slot_that_moves_is_written_back() {
    for is_there_before in [true, false] {
        let (cluster, limiter) = start(1_000).await;
        let (from, to) = (cluster.owner(LOG).await, cluster.next(LOG).await);
        if is_there_before {
            assert!(admit(&limiter, "alice").await);
        }
        cluster.begin_to_move(LOG, to).await;
        if !is_there_before {
            assert!(admit(&limiter, "alice").await);
        }
        cluster.nodes[from].signal("STOP");
        let alice = async || limiter.check("alice").await.unwrap().decided_by();
        assert_eq!(alice().await, DecidedBy::LocalLog);
        cluster.nodes[from].signal("CONT");
        let (mut checks, began) = (3, Instant::now());
        while alice().await != DecidedBy::Store {
            assert!(began.elapsed() < Duration::from_secs(2), "{is_there_before}");
            checks += 1;
        }
        assert_eq!(limiter.peek("alice").await.unwrap().remaining(), 1_000 - checks);
        let node = &cluster.nodes[if is_there_before { from } else { to }];
        assert_eq!(node.keys().await, [LOG]);
    }
}

/// Its node has given it up, and no other one has taken it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_of_a_slot_that_nobody_has_is_decided_here() {
    let (cluster, limiter) = start(1_000).await;
    let (slot, owner) = cluster.slot(LOG).await;
    let alice = async || limiter.check("alice").await.unwrap().decided_by();
    assert_eq!(alice().await, DecidedBy::Store);
    for node in &cluster.nodes {
        node.run::<()>(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]).await;
        node.run::<()>(&["CLUSTER", "DELSLOTS", &slot.to_string()]).await;
    }
    for _ in 0..20 {
        assert_eq!(alice().await, DecidedBy::LocalLog);
        sleep(Duration::from_millis(20)).await;
    }
    cluster.nodes[owner].run::<()>(&["CLUSTER", "ADDSLOTS", &slot.to_string()]).await;
    until_redis_decides(&limiter, "alice").await;
    assert!(limiter.peek("alice").await.unwrap().remaining() <= 978, "all are written back");
}

/// Of two nodes that hang one returns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_returns_beside_a_silent_one() {
    let (cluster, store, of_it, others) = steady_cluster(fault::TIMEOUT).await;
    let limiter = limiter(user(1_000), &store);
    decides(DecidedBy::Store, &limiter, &others).await;
    cluster.nodes.iter().for_each(|node| node.signal("STOP"));
    let all = [&of_it[..], &others].concat();
    all_at_once(DecidedBy::LocalLog, &limiter, &all).join_all().await;
    sleep(Duration::from_secs(2)).await;
    let start = Instant::now();
    cluster.nodes[1].signal("CONT");
    until_redis_decides(&limiter, &of_it[0]).await;
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    decides(DecidedBy::LocalLog, &limiter, &others).await;
}

/// A primary is cut off from the others, which go on without it, and the process reaches all of them.
///
/// Not on Valkey, where a node that forgets others has the whole Cluster forget them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_that_is_cut_off_is_not_believed() {
    let cluster = Cluster::with_replicas(1).await;
    let info: String = cluster.nodes[0].run(&["INFO", "server"]).await;
    if info.contains("valkey") {
        return eprintln!("Valkey can't be cut off");
    }
    let limiter = limiter(user(1_000), &store(cluster.servers()).await);
    let (of_it, others) = keys_of(&cluster, 0).await;
    decides(DecidedBy::Store, &limiter, &[of_it.clone(), others.clone()].concat()).await;
    let ((cut_off, rest), replica) = (cluster.nodes.split_first().unwrap(), &cluster.nodes[3]);
    // All at once: since 7.2 it tells those that it still knows to forget the others, too.
    let mut forget = redis::pipe();
    forget.atomic();
    for node in rest {
        let id: String = node.run(&["CLUSTER", "MYID"]).await;
        forget.cmd("CLUSTER").arg("FORGET").arg(id).ignore();
    }
    forget.exec_async(&mut cut_off.connection().await.unwrap()).await.unwrap();
    replica.run::<()>(&["CLUSTER", "FAILOVER", "TAKEOVER"]).await;
    let id: String = cut_off.run(&["CLUSTER", "MYID"]).await;
    for node in rest {
        node.run::<()>(&["CLUSTER", "FORGET", &id]).await;
    }
    cluster.serves_every_slot(&[1, 2, 3]).await;
    until_redis_decides(&limiter, &of_it[0]).await;
    decides(DecidedBy::Store, &limiter, &others).await;
}

/// `FLUSHALL` breaks no connection. The slot of the node's mark has moved away before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_node_gets_its_logs_back() {
    let (cluster, limiter) = start(5).await;
    let node = cluster.node_of(LOG).await;
    five_of_alice(&limiter, true).await;
    // Checks of others have the nodes looked at once a second.
    let look = async || {
        for number in 0..20 {
            let _ = limiter.check(format!("key-{number}")).await.unwrap();
            sleep(Duration::from_millis(100)).await;
        }
    };
    let mark = loop {
        look().await;
        let marks: Vec<String> = node.run(&["KEYS", "tsw:*:mark"]).await;
        if let Some(mark) = marks.into_iter().next() {
            break mark;
        }
    };
    cluster.move_key(&mark, cluster.next(&mark).await).await;
    look().await;
    node.run::<redis::Value>(&["FLUSHALL"]).await;
    look().await;
    five_of_alice(&limiter, false).await;
}

/// The node is new, and was restarted empty after it has got the log and before this process has connected to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_node_never_over_admits() {
    let mut cluster = Cluster::start().await;
    let new = cluster.add_primary().await;
    let limiter = limiter(user(5), &store(cluster.servers()).await);
    five_of_alice(&limiter, true).await;
    cluster.move_key(LOG, new).await;
    cluster.nodes[new].restart().await;
    cluster.serves_every_slot(&[0, 1, 2, new]).await;
    five_of_alice(&limiter, false).await;
    until_redis_decides(&limiter, "alice").await;
    assert_eq!(cluster.nodes[new].entries(LOG).await, 5);
}

/// Nobody has slots yet, and each check finds that out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_that_is_not_formed_is_asked_now_and_then() {
    let lone = Redis::start_with(&["--cluster-enabled", "yes"]).await;
    let servers = RedisServers::cluster([lone.url()]).unwrap();
    let limiter = limiter(user(9), &RedisStore::connect_lazy(servers).unwrap());
    let keys: Vec<_> = (0..500).map(|number| format!("key-{number}")).collect();
    all_at_once(DecidedBy::LocalLog, &limiter, &keys).join_all().await;
    let asked = lone.call_count("cluster|slots").await;
    assert!(asked < 50, "{asked} questions");
    add_all_slots(&lone).await;
    until_redis_decides(&limiter, "alice").await;
    // All keys are on one node, so checks share calls.
    let keys: Vec<_> = (0..500).map(|number| format!("other-{number}")).collect();
    let before = lone.call_count("evalsha").await;
    all_at_once(DecidedBy::Store, &limiter, &keys).join_all().await;
    let calls = lone.call_count("evalsha").await - before;
    assert!(calls < 250, "{calls} calls");
}

/// Has clients reach the second node through a proxy. Returns it, and what they connect to.
async fn node_behind_a_proxy(cluster: &Cluster) -> (Proxy, RedisServers) {
    let proxy = Proxy::to(cluster.nodes[1].port()).await;
    cluster.announce(1, proxy.port()).await;
    (proxy, RedisServers::cluster([cluster.nodes[0].url()]).unwrap())
}

/// A Cluster, the way to its second node, a limiter, keys of that node, and keys of the others.
async fn with_a_way(limit: u32) -> (Cluster, Proxy, Limiter, Vec<String>, Vec<String>) {
    let cluster = Cluster::start().await;
    let (of_it, others) = keys_of(&cluster, 1).await;
    let (proxy, servers) = node_behind_a_proxy(&cluster).await;
    let limiter = limiter(user(limit), &store(servers).await);
    (cluster, proxy, limiter, of_it, others)
}

/// The way to the node takes longer than a call follows redirections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn distant_node_names_the_one_that_gets_its_slot() {
    let (cluster, proxy, limiter, of_it, _) = with_a_way(9).await;
    decides(DecidedBy::Store, &limiter, &of_it[..1]).await;
    cluster.begin_to_move(&log_of(&of_it[1]), 0).await;
    proxy.set(Fault::Delay(Duration::from_millis(250)));
    decides(DecidedBy::Store, &limiter, &of_it[1..2]).await;
}

/// What it refuses would be refused again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_without_memory_gets_each_request_once() {
    let (cluster, limiter) = start(9).await;
    let (of_it, _) = keys_of(&cluster, 1).await;
    decides(DecidedBy::Store, &limiter, &of_it[..1]).await;
    let node = &cluster.nodes[1];
    node.run::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let before = node.call_count("evalsha").await;
    all_at_once(DecidedBy::LocalLog, &limiter, &of_it[1..]).join_all().await;
    let calls = node.call_count("evalsha").await - before;
    assert!(calls < of_it.len() as u64 / 2, "{calls} calls for {} checks", of_it.len() - 1);
}

/// A firewall has forgotten the connection to a node, which serves new ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgotten_connection_to_a_node_is_made_anew() {
    let (_cluster, proxy, limiter, of_it, others) = with_a_way(1_000_000).await;
    decides(DecidedBy::Store, &limiter, &of_it).await;
    proxy.set(Fault::Forget);
    decides(DecidedBy::LocalLog, &limiter, &of_it[..1]).await;
    let silent = Instant::now();
    until_redis_decides(&limiter, &of_it[0]).await;
    assert!(silent.elapsed() < Duration::from_secs(1), "{:?}", silent.elapsed());
    decides(DecidedBy::Store, &limiter, &others).await;
}

/// A node without a replica is dead, so the others serve nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_that_is_down_delays_no_check() {
    let mut cluster = Cluster::with_replicas(0).await;
    let limiter = limiter(user(1_000_000), &store(cluster.servers()).await);
    let (_, others) = keys_of(&cluster, 1).await;
    decides(DecidedBy::Store, &limiter, &others).await;
    cluster.nodes[1].kill();
    for node in [0, 2].map(|number| &cluster.nodes[number]) {
        let info = async || node.run::<String>(&["CLUSTER", "INFO"]).await;
        eventually("it is down", async || info().await.contains("cluster_state:fail")).await;
    }
    let start = Instant::now();
    decides(DecidedBy::LocalLog, &limiter, &others).await;
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    let refused = RedisStore::connect(cluster.servers()).await.unwrap_err();
    let named = format!("127.0.0.1:{}: the node serves nobody", cluster.nodes[0].port());
    assert!(refused.to_string().contains(&named), "{refused}");
    let lazy = self::limiter(user(9), &RedisStore::connect_lazy(cluster.servers()).unwrap());
    decides(DecidedBy::LocalLog, &lazy, &others).await;
    cluster.nodes[1].start_again();
    cluster.serves_every_slot(&[0]).await;
    until_redis_decides(&limiter, &others[0]).await;
    until_redis_decides(&lazy, &others[0]).await;
}

/// Its nodes are asked once a second, and each is one outage in the log.
#[tokio::test]
async fn cluster_that_is_gone_is_a_few_lines() {
    let mut cluster = Cluster::with_replicas(0).await;
    let limiter = limiter(user(1_000_000), &store(cluster.servers()).await);
    assert!(admit(&limiter, "alice").await);
    let warnings = Warnings::listen();
    cluster.nodes.iter_mut().for_each(Redis::kill);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(5) {
        assert!(admit(&limiter, "alice").await);
        sleep(Duration::from_millis(20)).await;
    }
    let lines = warnings.lines();
    assert!(lines.len() < 12, "{lines:?}");
    cluster.nodes.iter_mut().for_each(Redis::start_again);
    until_redis_decides(&limiter, "alice").await;
}

/// As in a container: the only node announces an address that nobody reaches from outside. Each process would decide alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_whose_nodes_are_out_of_reach_is_no_connection() {
    let announced = ["--cluster-announce-ip", "127.0.0.2", "--cluster-announce-port", "9"];
    let node = Redis::start_with(&[&["--cluster-enabled", "yes"], &announced[..]].concat()).await;
    add_all_slots(&node).await;
    let cluster = Cluster { nodes: vec![node] };
    cluster.serves_every_slot(&[0]).await;
    let error = RedisStore::connect(cluster.servers()).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains("127.0.0.2:9: "), "{error}");
}

/// Nobody checks, such as in a process of those who answer questions of users.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explanation_finds_the_replica_that_has_taken_the_place() {
    let mut cluster = Cluster::with_replicas(1).await;
    let limiter = limiter(user(9), &store(cluster.servers()).await);
    let owner = cluster.owner(LOG).await;
    assert_eq!(limiter.explain("alice").await.unwrap().decided_by, DecidedBy::Store);
    cluster.nodes[owner].kill();
    cluster.nodes[owner + 3].says("replication", "role:master").await;
    eventually("Redis explains", async || {
        let explained = limiter.explain("alice").await.unwrap();
        explained.decided_by == DecidedBy::Store
    })
    .await;
}

/// A primary stands still, its replica takes its place without the last writes, and it goes on as a replica. No connection
/// breaks.
async fn lose_last_writes(cluster: &Cluster, primary: usize) {
    let (old, new) = (&cluster.nodes[primary], &cluster.nodes[primary + 3]);
    eventually("the replica has it", async || old.run::<u64>(&["WAIT", "1", "100"]).await == 1)
        .await;
    new.run::<()>(&["CONFIG", "SET", "replica-read-only", "no"]).await;
    new.run::<redis::Value>(&["FLUSHALL"]).await;
    old.signal("STOP");
    new.says("replication", "role:master").await;
    old.signal("CONT");
    old.says("replication", "role:slave").await;
}

/// The replica that takes its place lacks admissions and a ban. Either log may be checked first, and where no node says who
/// has which slot, only the refusal of the old one tells where the new one is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replaced_node_never_over_admits_and_keeps_bans() {
    for (says_slots, ban_comes_first) in [(true, false), (true, true), (false, false)] {
        let cluster = Cluster::with_replicas(1).await;
        let store = store(cluster.servers()).await;
        let policy = with_bans("banned");
        let [limiter, banned] = [user(5).into(), policy.clone()].map(|it| limiter(&it, &store));
        let owner = cluster.owner(LOG).await;
        five_of_alice(&limiter, true).await;
        assert!(admit(&banned, "alice").await);
        let bans = Bans::new(&policy, store);
        bans.impose("alice", Duration::from_secs(3600), "spam").await.unwrap();
        if !says_slots {
            for node in &cluster.nodes {
                node.run::<()>(&["ACL", "SETUSER", "default", "-cluster"]).await;
            }
        }
        lose_last_writes(&cluster, owner).await;
        if ban_comes_first {
            assert!(!admit(&banned, "alice").await);
        }
        five_of_alice(&limiter, false).await;
        assert!(!admit(&banned, "alice").await);
    }
}

/// A policy of nine an hour whose denials bring bans.
fn with_bans(name: &str) -> PolicyHandle {
    let policy = Policy::new(name).quota(Quota::per_hour(9));
    PolicyHandle::new(policy.penalty("3/10m:1h".parse().unwrap()))
}

/// A policy that denies nothing here.
fn many() -> PolicyHandle {
    PolicyHandle::new(Policy::new("many").quota(Quota::per_hour(9_999)))
}

/// A user and an address on different nodes.
struct TwoNodes {
    cluster: Cluster,
    user: PolicyHandle,
    ip: PolicyHandle,
    limiter: Limiter,
}

impl TwoNodes {
    async fn start() -> Self {
        let builder = RedisStore::builder().deny_cache(false);
        Self::with(builder.response_timeout(Duration::from_millis(400))).await
    }

    async fn with(builder: RedisStoreBuilder) -> Self {
        let cluster = Cluster::start().await;
        let store = builder.connect(cluster.servers()).await.unwrap();
        let policy = |name: &str| PolicyHandle::new(Policy::new(name).quota(Quota::per_hour(1)));
        let (user, ip) = (policy("user"), policy("ip"));
        let two = Self { cluster, limiter: Limiter::new(&user, store), user, ip };
        assert_ne!(two.number("alice").await, two.number("bob").await);
        two
    }

    /// Returns the number of the node of a key.
    async fn number(&self, key: &str) -> usize {
        self.cluster.owner(&log_of(key)).await
    }

    async fn node(&self, key: &str) -> &Redis {
        &self.cluster.nodes[self.number(key).await]
    }

    /// Returns a key of each node. Their order is that of the nodes, too.
    async fn key_of_each(&self) -> [String; 3] {
        let mut keys = [const { String::new() }; 3];
        for key in (10..99).map(|number| format!("key-{number}")) {
            let number = self.number(&key).await;
            if keys[number].is_empty() && (number == 0 || !keys[number - 1].is_empty()) {
                keys[number] = key;
            }
        }
        keys
    }

    async fn pause(&self, key: &str, time: Duration) {
        let time_ms = time.as_millis().to_string();
        let node = self.node(key).await;
        node.run::<()>(&["CLIENT", "PAUSE", &time_ms, "ALL"]).await;
    }

    /// Checks alice and the address bob, in that order.
    async fn both(&self) -> Decision {
        self.limiter.check_all([(&self.user, "alice"), (&self.ip, "bob")]).await.unwrap()
    }

    async fn user(&self, key: &str) -> Decision {
        self.limiter.check_all([(&self.user, key)]).await.unwrap()
    }

    /// Checks both, where the address is full and replies late. Meanwhile the user's log has the request.
    async fn both_while_alice_has_a_place(&self, meanwhile: impl AsyncFnOnce()) {
        assert!(self.limiter.check_all([(&self.ip, "bob")]).await.unwrap().is_admitted());
        let node = self.node("alice").await;
        self.pause("bob", Duration::from_millis(200)).await;
        let meanwhile = async {
            node.has_entries(LOG, 1).await;
            meanwhile().await;
        };
        let (decision, ()) = tokio::join!(self.both(), meanwhile);
        assert_eq!(decision.denied().expect("the address is full").violated().count(), 1);
    }

    /// Stops the node of bob, and waits until the process knows.
    async fn without_bob(&self) {
        self.node("bob").await.signal("STOP");
        let bob = self.limiter.check_all([(&self.ip, "bob")]).await.unwrap();
        assert_eq!(bob.decided_by(), DecidedBy::LocalLog);
    }
}

/// The first node hangs, and executes the check later. Or the later one hangs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_request_is_in_all_logs_or_in_none() {
    let two = TwoNodes::start().await;
    let open = two.limiter.clone().failure_policy(FailurePolicy::Open);
    let node = two.node("alice").await;
    // It has the script, and the first call that waits there is run.
    assert!(open.check_all([(&many(), "alice")]).await.unwrap().is_admitted());
    let before = node.call_count("zadd").await;
    node.signal("STOP");
    let logs = [(&two.user, "alice"), (&two.ip, "bob")];
    let decision = open.check_all(logs).await.unwrap();
    assert_eq!(decision.decided_by(), DecidedBy::FailurePolicy);
    node.signal("CONT");
    eventually("the user has a place again", async || {
        sleep(Duration::from_millis(500)).await;
        two.limiter.peek("alice").await.is_ok_and(|it| it.remaining() == 1)
    })
    .await;
    let later = node.call_count("zadd").await;
    assert!(later > before, "it had the request");
    two.pause("bob", Duration::from_secs(1)).await;
    let decision = open.check_all(logs).await.unwrap();
    assert_eq!(decision.decided_by(), DecidedBy::FailurePolicy);
    assert!(node.call_count("zadd").await > later, "it had this one, too");
    node.has_entries(LOG, 0).await;
    two.node("bob").await.has_entries("tsw:{=bob}:ip:1h", 0).await;
}

/// A cancellation of the earlier log would arrive after the request, which the process has admitted, was written back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_rollback_undoes_no_admission() {
    let cluster = Cluster::start().await;
    let (users, addresses) = keys_of(&cluster, 1).await;
    let (alice, bob) = (&*users[0], &*addresses[0]);
    let (proxy, servers) = node_behind_a_proxy(&cluster).await;
    let builder = RedisStore::builder().deny_cache(false);
    let builder = builder.response_timeout(Duration::from_millis(400));
    let store = builder.connect(servers).await.unwrap();
    let [user, ip] = [("user", 1), ("ip", 10)]
        .map(|(name, limit)| PolicyHandle::new(Policy::new(name).quota(Quota::per_hour(limit))));
    let limiter = Limiter::new(&user, store);
    let warm = limiter.check_all([(&user, &*users[1]), (&ip, &*addresses[1])]).await.unwrap();
    assert_eq!(warm.decided_by(), DecidedBy::Store);

    let (node, log) = (&cluster.nodes[1], log_of(alice));
    let later = cluster.node_of(&log_of(bob)).await;
    later.run::<()>(&["CLIENT", "PAUSE", "1500", "ALL"]).await;
    let hold_back = async {
        node.has_entries(&log, 1).await;
        proxy.set(Fault::Forget);
    };
    let (decision, ()) = tokio::join!(limiter.check_all([(&user, alice), (&ip, bob)]), hold_back);
    let decision = decision.unwrap();
    assert_eq!((decision.is_admitted(), decision.decided_by()), (true, DecidedBy::LocalLog));
    sleep(Duration::from_secs(3)).await;
    proxy.set(Fault::None);
    sleep(Duration::from_millis(500)).await;
    assert_eq!(node.entries(&log).await, 1, "it was admitted");
}

/// A denied request leaves no value, which can't be taken out again and so is not recorded before the other log admits the
/// request. A place that it holds for a round trip is no reason for a strike of another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_that_another_node_denies_leaves_no_value_and_brings_no_ban() {
    let two = TwoNodes::start().await;
    let peers = PolicyHandle::new(Policy::new("peers").quota(Quota::per_hour(1)).distinct());
    assert!(two.limiter.check_all([(&two.ip, "bob")]).await.unwrap().is_admitted());
    let to = |peer| LogCost::from((&peers, "alice")).value(peer);
    let denied = two.limiter.check_all([to("carol"), (&two.ip, "bob").into()]).await.unwrap();
    assert!(!denied.is_admitted(), "the address is full");
    assert!(two.limiter.check_all([to("dave")]).await.unwrap().is_admitted(), "the first value");

    let strict = Policy::new("user").quota(Quota::per_hour(1));
    let strict = PolicyHandle::new(strict.penalty("1/10m:1h".parse().unwrap()));
    two.pause("bob", Duration::from_millis(200)).await;
    let meanwhile = async {
        sleep(Duration::from_millis(100)).await;
        two.limiter.check_all([(&strict, "alice")]).await.unwrap()
    };
    let both = two.limiter.check_all([(&strict, "alice"), (&two.ip, "bob")]);
    let (both, alone) = tokio::join!(both, meanwhile);
    assert!(!both.unwrap().is_admitted(), "the address is full");
    assert!(alone.is_admitted(), "{:?}", alone.usage().banned_for());
}

/// What a process knows of a ban, and the node of the ban is silent while another log denies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ban_of_a_silent_node_is_kept() {
    let two = TwoNodes::start().await;
    let strict = with_bans("ip");
    let bans = Bans::new(&strict, store(two.cluster.servers()).await);
    bans.impose("bob", Duration::from_secs(3600), "spam").await.unwrap();
    let bob = async || two.limiter.check_all([(&strict, "bob")]).await.unwrap();
    assert!(!bob().await.is_admitted(), "and so it is known here");
    assert!(two.user("alice").await.is_admitted());
    two.node("bob").await.signal("STOP");
    let both = two.limiter.check_all([(&two.user, "alice"), (&strict, "bob")]).await.unwrap();
    assert_eq!((both.is_admitted(), both.decided_by()), (false, DecidedBy::Store));
    let decision = bob().await;
    assert_eq!((decision.is_admitted(), decision.decided_by()), (false, DecidedBy::LocalLog));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolled_back_request_leaves_no_denial() {
    // With a memory of denials.
    let two = TwoNodes::with(RedisStore::builder()).await;
    two.both_while_alice_has_a_place(async || {
        assert!(!two.user("alice").await.is_admitted(), "the request has the place for now");
    })
    .await;
    assert!(two.user("alice").await.is_admitted(), "the log is empty");
}

/// The node of the user is silent when the request is rolled back, or refuses scripts. Nothing else is checked meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denial_stands_if_its_rollback_fails() {
    for refuses in [false, true] {
        let two = TwoNodes::start().await;
        let node = two.node("alice").await;
        let scripts = async |rules| node.run::<()>(&["ACL", "SETUSER", "default", rules]).await;
        two.both_while_alice_has_a_place(async || match refuses {
            true => scripts("-@scripting").await,
            false => two.pause("alice", Duration::from_secs(1)).await,
        })
        .await;
        if refuses {
            node.has_entries(LOG, 1).await;
            scripts("+@scripting").await;
        }
        node.has_entries(LOG, 0).await;
    }
}

/// The later log has recorded the request later, and keeps it for longer. The caller of its cancellation leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_is_admitted_when_its_last_log_has_it_and_cancelled_in_each() {
    let two = TwoNodes::start().await;
    two.pause("bob", Duration::from_millis(100)).await;
    let admitted = two.both().await.admitted().cloned().expect("both are empty");
    let last = two.node("bob").await;
    let entries: Vec<(Vec<u8>, u64)> =
        last.run(&["ZRANGE", "tsw:{=bob}:ip:1h", "0", "-1", "WITHSCORES"]).await;
    assert_eq!(admitted.timestamp(), Some(Duration::from_micros(entries[0].1)));
    two.pause("alice", Duration::from_millis(200)).await;
    let cancelled = timeout(Duration::from_millis(50), two.limiter.cancel(&admitted)).await;
    assert!(cancelled.is_err());
    two.node("alice").await.has_entries(LOG, 0).await;
    last.has_entries("tsw:{=bob}:ip:1h", 0).await;
}

/// A permit for a user and an address is renewed while the node of the address is silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_beside_a_silent_node_gives_up_no_place() {
    let two = TwoNodes::start().await;
    let jobs = |name: &str| Policy::new(name).quota(Quota::new(1, Duration::from_secs(3)));
    let jobs = |name: &str| PolicyHandle::new(jobs(name).in_flight());
    let (user, ip) = (jobs("user"), jobs("ip"));
    let decision = two.limiter.check_all([(&user, "alice"), (&ip, "bob")]).await.unwrap();
    let permit = two.limiter.hold(decision.admitted().unwrap());
    let node = two.node("alice").await;
    let renewed = node.call_count("zadd").await + 1;
    two.pause("bob", Duration::from_millis(2_200)).await;
    eventually("it is renewed", async || node.call_count("zadd").await == renewed).await;
    // Until the call to the other node is given up.
    sleep(Duration::from_millis(1_000)).await;
    assert_eq!(node.call_count("zrem").await, 0, "another request could take the place");
    drop(permit);
    node.has_entries("tsw:{=alice}:user:3s:in_flight", 0).await;
}

/// A request of two rules, of which the later one denies: its denial is remembered, and what it says of a ban.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denial_beside_another_rule_is_remembered() {
    let mut cluster = Cluster::start().await;
    let (user, ip) = (with_bans("user"), PolicyHandle::new(Quota::per_hour(100)));
    let limiter = Limiter::new(&user, RedisStore::connect(cluster.servers()).await.unwrap());
    let theirs = Bans::new(&user, store(cluster.servers()).await);
    theirs.impose("alice", Duration::from_secs(3600), "spam").await.unwrap();
    let both = async || limiter.check_all([(&user, "alice"), (&ip, "bob")]).await.unwrap();
    let calls = async || cluster.call_count("evalsha").await + cluster.call_count("eval").await;
    let (before, began) = (calls().await, Instant::now());
    for _ in 0..300 {
        assert!(both().await.usage().banned_for().is_some());
    }
    let (made, took) = (calls().await - before, began.elapsed());
    assert!(made <= 10 + 5 * took.as_secs(), "{made} calls in {took:?}");
    let node = cluster.owner(LOG).await;
    cluster.nodes[node].kill();
    // Until the denial in memory is over.
    sleep(Duration::from_secs(1)).await;
    let decision = both().await;
    assert_eq!((decision.is_admitted(), decision.decided_by()), (false, DecidedBy::LocalLog));
}

/// Random requests of logs in several slots: a Cluster decides as a process does, and says the same of each log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_says_what_a_process_does() {
    let cluster = Cluster::start().await;
    let redis = store(cluster.servers()).await;
    for seed in 0..20 {
        let (mut random, memory) = (fastrand::Rng::with_seed(seed), MemoryStore::new());
        let policy = |name: &str| Policy::new(format!("{name}-{seed}"));
        let policies = [
            policy("two").quota(Quota::per_hour(4)).quota(Quota::new(2, Duration::from_secs(600))),
            policy("tokens").quota(Quota::per_hour(20)).budget(),
            policy("jobs").quota(Quota::per_hour(3)).in_flight(),
        ];
        let (policies, mut admitted) = (policies.map(Arc::new), Vec::<Check>::new());
        for step in 0..60 {
            let mut log = || {
                let policy = random.choice(&policies).unwrap().clone();
                let cost = if policy.name().starts_with("tokens") { random.u32(1..8) } else { 1 };
                LogCost::new(
                    LogId::new(policy, *random.choice(&["alice", "bob", "carol"]).unwrap()),
                    cost,
                )
            };
            let mut check = Check::with_costs([log(), log(), log()]);
            check.wants_reset = true;
            // Else the local log would decide, by the same algorithm, if the Cluster refused the check.
            check.on_failure = FailurePolicy::Closed;
            if random.u8(0..4) == 0 && !admitted.is_empty() {
                let check = random.choice(&admitted).unwrap();
                let cost = *random.choice(&[0, 2, 9]).unwrap();
                let was_there = redis.settle(check, cost).await.unwrap();
                assert_eq!(was_there, memory.settle(check, cost).await.unwrap(), "{seed}, {step}");
                continue;
            }
            if random.u8(0..8) == 0 {
                redis.reset(&check.logs()[0]).await.unwrap();
                memory.reset(&check.logs()[0]).await.unwrap();
                continue;
            }
            let (said, should) = match random.u8(0..4) {
                0 => (redis.peek(&check).await.unwrap(), memory.peek(&check).await.unwrap()),
                _ => (redis.admit(&check).await.unwrap(), memory.admit(&check).await.unwrap()),
            };
            let message = format!("{seed}, {step}: {said:?} for {should:?} of {check:?}");
            assert_eq!(said.admitted, should.admitted, "{message}");
            let logs = said.logs().iter().zip(should.logs());
            for (said, should) in logs.flat_map(|(said, it)| said.quotas().iter().zip(it.quotas()))
            {
                assert_eq!(said.remaining(), should.remaining(), "{message}");
                for (said, should) in [(said.wait(), should.wait()), (said.reset(), should.reset())]
                {
                    assert!(said.abs_diff(should) < Duration::from_secs(60), "{message}");
                }
            }
            admitted.extend(Some(check).filter(|_| said.admitted));
        }
    }
}

/// Another process bans a key, which a check of it alone learns while the other part of an earlier check is under way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ban_outlives_an_earlier_check_of_two_nodes() {
    let two = TwoNodes::start().await;
    let [user, ip] = ["user", "ip"].map(with_bans);
    let bans = Bans::new(&user, store(two.cluster.servers()).await);
    let alice = async || two.limiter.check_all([(&user, "alice")]).await.unwrap();
    let node = two.node("alice").await;
    two.pause("bob", Duration::from_millis(300)).await;
    let meanwhile = async {
        node.has_entries(LOG, 1).await;
        bans.impose("alice", Duration::from_secs(3600), "spam").await.unwrap();
        assert!(!alice().await.is_admitted(), "and so it is known here");
    };
    let both = two.limiter.check_all([(&user, "alice"), (&ip, "bob")]);
    let (both, ()) = tokio::join!(both, meanwhile);
    assert!(both.unwrap().is_admitted(), "before the ban");
    node.signal("STOP");
    let decision = alice().await;
    assert_eq!((decision.is_admitted(), decision.decided_by()), (false, DecidedBy::LocalLog));
}

/// Another process lifts a ban that a check has met, while the other part of the check is under way. Then a node loses its data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ban_lifted_beside_a_check_of_two_nodes_stays_lifted() {
    let two = TwoNodes::start().await;
    let strict = with_bans("ip");
    let peers = PolicyHandle::new(Policy::new("peers").quota(Quota::per_hour(9)).distinct());
    let bans = Bans::new(&strict, store(two.cluster.servers()).await);
    bans.impose("bob", Duration::from_secs(3600), "by mistake").await.unwrap();
    assert!(bans.get("nobody").await.unwrap().is_none());
    two.pause("alice", Duration::from_millis(300)).await;
    let logs = [LogCost::from((&peers, "alice")).value("carol"), LogCost::from((&strict, "bob"))];
    let lifted = async {
        sleep(Duration::from_millis(150)).await;
        assert!(bans.lift("bob").await.unwrap());
    };
    let (both, ()) = tokio::join!(two.limiter.check_all(logs), lifted);
    assert!(!both.unwrap().is_admitted(), "before it was lifted");
    two.node("alice").await.run::<()>(&["FLUSHALL"]).await;
    sleep(Duration::from_millis(1_100)).await;
    assert!(two.user("alice").await.is_admitted());
    sleep(Duration::from_millis(300)).await;
    let decision = two.limiter.check_all([(&strict, "bob")]).await.unwrap();
    assert!(decision.is_admitted(), "{:?}", decision.usage().banned_for());
}

/// The node of alice is silent, which the process knows or not. The log of bob on the other one is full, or he is banned, as
/// Redis says, also to who only looks, and on a connection that was closed while nobody used it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_node_hides_no_denial_of_another() {
    let two = TwoNodes::start().await;
    let [theirs, ours] = [(); 2].map(|()| store(two.cluster.servers()));
    let (theirs, ours) = (theirs.await, ours.await);
    assert!(admit(&limiter(&two.ip, &theirs), "bob").await);
    let strict = with_bans("strict");
    Bans::new(&strict, theirs).impose("bob", Duration::from_secs(3600), "spam").await.unwrap();
    let many = many();
    let looks = limiter(&many, &ours).failure_policy(FailurePolicy::Open);
    // All connections are there.
    for limiter in [&two.limiter, &looks] {
        let warm = limiter.check_all([(&many, "alice"), (&many, "bob")]).await.unwrap();
        assert_eq!(warm.decided_by(), DecidedBy::Store);
    }
    two.node("alice").await.signal("STOP");
    let open = two.limiter.clone().failure_policy(FailurePolicy::Open);
    for knows in [false, true] {
        let mut all = JoinSet::new();
        for (limiter, ip) in
            [&two.limiter, &open].into_iter().flat_map(|it| [(it, &two.ip), (it, &strict)])
        {
            let (limiter, ip, many) = (limiter.clone(), ip.clone(), many.clone());
            all.spawn(async move {
                limiter.check_all([(&many, "alice"), (&ip, "bob")]).await.unwrap().is_admitted()
            });
        }
        assert_eq!(all.join_all().await, [false; 4], "knows: {knows}");
    }

    let _ = looks.check("alice").await;
    let logs = [(&many, "alice"), (&two.ip, "bob")];
    let check = Check::new(logs.map(|(policy, key)| LogId::new(policy.get(), key)));
    let looked = ours.peek(&check).await.unwrap();
    assert!(!looked.admitted, "{:?}", looked.decided_by);
    for _ in 0..3 {
        let killed = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
        two.node("bob").await.run::<u64>(&killed).await;
        // Until the denial in memory is over.
        sleep(Duration::from_millis(1_100)).await;
        assert!(!looks.check_all(logs).await.unwrap().is_admitted());
    }
}

/// What a process admits and cancels beside a silent node is in the log on the other one at once, for other processes. What
/// another process resets there is seen, also while this one decides about other keys without Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_beside_a_silent_node_is_that_of_all_processes() {
    let two = TwoNodes::start().await;
    let (keys, _) = keys_of(&two.cluster, two.number("alice").await).await;
    let (many, node) = (many(), two.node("alice").await);
    two.without_bob().await;
    // By now the process looks for the node every half second.
    sleep(Duration::from_secs(2)).await;
    for key in &keys[..4] {
        let both = two.limiter.check_all([(&two.user, &**key), (&many, "bob")]).await.unwrap();
        assert_eq!(node.entries(&log_of(key)).await, 1);
        assert!(two.limiter.cancel(both.admitted().unwrap()).await.unwrap());
        assert_eq!(node.entries(&log_of(key)).await, 0);
        sleep(Duration::from_millis(130)).await;
    }
    // The log in Redis expires, and the one of the silent node has the request.
    let short = Policy::new("short").quota(Quota::new(9, Duration::from_millis(300)));
    let both = two.limiter.check_all([(&short.into(), "alice"), (&many, "bob")]).await.unwrap();
    sleep(Duration::from_millis(500)).await;
    assert!(two.limiter.cancel(both.admitted().unwrap()).await.unwrap());

    let (others, bob) = (two.limiter.clone(), many.clone());
    let others = tokio::spawn(async move {
        while others.check_all([(&bob, "bob")]).await.is_ok() {
            tokio::task::yield_now().await;
        }
    });
    let theirs = limiter(&two.user, &store(two.cluster.servers()).await);
    for round in 0..20 {
        let beside = (round % 2 == 1).then_some((&many, "bob"));
        let logs = [(&two.user, "alice")].into_iter().chain(beside);
        let decision = two.limiter.check_all(logs).await.unwrap();
        assert!(decision.is_admitted(), "in round {round}: {:?}", decision.decided_by());
        theirs.reset("alice").await.unwrap();
    }
    others.abort();
}

/// Two services name the keys in opposite orders. All ask in one, so that of two requests one comes first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_are_asked_in_one_order_by_all() {
    let two = TwoNodes::start().await;
    assert!(two.user("alice").await.is_admitted());
    let node = two.node("bob").await;
    for logs in [[(&two.user, "alice"), (&two.ip, "bob")], [(&two.ip, "bob"), (&two.user, "alice")]]
    {
        assert!(!two.limiter.check_all(logs).await.unwrap().is_admitted());
        assert_eq!(node.call_count("zadd").await, 0, "alice is asked first");
    }
}

/// Of three logs the second one denies, and the node of the third one has just become silent. The place in the first one is
/// free again after a round trip.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rollback_waits_for_no_later_node() {
    let builder = RedisStore::builder().response_timeout(Duration::from_secs(4));
    let two = TwoNodes::with(builder.deny_cache(false)).await;
    let (keys, many) = (two.key_of_each().await, many());
    let warm = two.limiter.check_all(keys.iter().map(|key| (&many, &**key))).await.unwrap();
    assert_eq!(warm.decided_by(), DecidedBy::Store);
    assert!(two.user(&keys[1]).await.is_admitted());
    two.cluster.nodes[2].signal("STOP");
    let all = async {
        let all = two.limiter.check_all(keys.iter().map(|key| (&two.user, &**key))).await.unwrap();
        let denied = all.denied().expect("the second one is full");
        assert_eq!(all.decided_by(), DecidedBy::Store);
        assert_eq!(denied.violated().collect::<Vec<_>>(), ["user"]);
        let read: Vec<bool> = denied.usage().logs().map(|(_, it)| it.is_read()).collect();
        assert_eq!(read, [true, true, false]);
    };
    let began = Instant::now();
    let rolled_back = async {
        let node = &two.cluster.nodes[0];
        eventually("it is rolled back", async || node.call_count("zrem").await > 0).await;
        began.elapsed()
    };
    let ((), took) = tokio::join!(all, rolled_back);
    assert!(took < began.elapsed() / 2, "after {took:?} of {:?}", began.elapsed());
}

/// What a node can't be told, because it is silent or refuses it, delays nothing that another node has to know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_of_a_failing_node_delay_no_write_to_another() {
    for is_silent in [false, true] {
        let two = TwoNodes::start().await;
        let number = two.number("bob").await;
        let failing = &two.cluster.nodes[number];
        let mut there = Vec::new();
        for key in (0..6_000).map(|key| format!("key-{key}")) {
            if two.number(&key).await == number {
                there.push(key);
            }
        }
        match is_silent {
            true => failing.signal("STOP"),
            false => failing.run(&["CONFIG", "SET", "maxmemory", "1"]).await,
        }
        for key in &there {
            assert_eq!(two.user(key).await.decided_by(), DecidedBy::LocalLog);
        }
        // By now the process tries to write every half second.
        sleep(Duration::from_secs(2)).await;
        let node = two.node("alice").await;
        let scripts = async |rules| node.run::<()>(&["ACL", "SETUSER", "default", rules]).await;
        scripts("-@scripting").await;
        assert_eq!(two.user("alice").await.decided_by(), DecidedBy::LocalLog);
        scripts("+@scripting").await;
        let began = Instant::now();
        node.has_entries(LOG, 1).await;
        let took = began.elapsed();
        assert!(took < Duration::from_millis(1_500), "{took:?}, {is_silent}");
    }
}

/// Who is denied again and again is banned, whatever becomes of the node of the address. A request that Redis denies brings
/// another one no strike here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denials_beside_a_silent_node_are_strikes_of_their_own_keys() {
    let two = TwoNodes::start().await;
    let ip = many();
    assert!(two.user("alice").await.is_admitted());
    two.without_bob().await;
    for policy in [FailurePolicy::default(), FailurePolicy::Open, FailurePolicy::Closed] {
        let user = Policy::new(format!("strict-{}", policy.to_string().to_lowercase()));
        let user = user.quota(Quota::new(1, Duration::from_millis(500)));
        let user = PolicyHandle::new(user.penalty("2/10m:1h".parse().unwrap()));
        let limiter = two.limiter.clone().failure_policy(policy);
        let alone = async || limiter.check_all([(&user, "alice")]).await.unwrap();
        for _ in 0..2 {
            assert!(alone().await.is_admitted());
            // The log is full, as Redis says.
            let both = limiter.check_all([(&user, "alice"), (&ip, "bob")]).await.unwrap();
            assert!(!both.is_admitted(), "{policy}");
            sleep(Duration::from_millis(550)).await;
        }
        assert!(alone().await.usage().banned_for().is_some(), "{policy}");
    }

    let strict = Policy::new("strict").quota(Quota::per_hour(1));
    let strict = PolicyHandle::new(strict.penalty("1/10m:1h".parse().unwrap()));
    two.pause("alice", Duration::from_millis(200)).await;
    let alone = async {
        sleep(Duration::from_millis(100)).await;
        two.limiter.check_all([(&strict, "bob")]).await.unwrap()
    };
    let both = two.limiter.check_all([(&two.user, "alice"), (&strict, "bob")]);
    let (both, alone) = tokio::join!(both, alone);
    assert!(!both.unwrap().is_admitted(), "alice is full");
    assert!(alone.is_admitted(), "{:?}", alone.usage().banned_for());
}

/// What Redis denies beside a silent node is not admitted here first, and leaves nothing in the journal. A key that is denied
/// again and again costs Redis the checks of one round trip a second, also then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denials_beside_a_silent_node_cost_little() {
    let two = TwoNodes::with(RedisStore::builder()).await;
    let store = RedisStore::builder().local_capacity(100).deny_cache(false);
    let few = Limiter::new(&two.user, store.connect(two.cluster.servers()).await.unwrap());
    assert!(two.user("alice").await.is_admitted());
    let many = many();
    two.without_bob().await;
    for _ in 0..200 {
        let both = few.check_all([(&two.user, "alice"), (&many, "bob")]).await.unwrap();
        assert!(!both.is_admitted(), "alice is full, as Redis says");
    }
    let bob = few.check_all([(&many, "bob")]).await;
    assert!(bob.is_ok_and(|it| it.is_admitted()), "no request of his was admitted");
    let node = two.node("alice").await;
    let (before, began) = (node.call_count("evalsha").await, Instant::now());
    for _ in 0..200 {
        assert!(!two.both().await.is_admitted());
        // Denied by the log of this process.
        let both = two.limiter.check_all([(&many, "alice"), (&two.ip, "bob")]).await.unwrap();
        assert!(!both.is_admitted());
    }
    let (calls, took) = (node.call_count("evalsha").await - before, began.elapsed());
    assert!(calls <= 5 + 3 * took.as_secs(), "{calls} calls in {took:?}");
}

/// A check whose keys are on two silent nodes is one that Redis did not decide.
#[tokio::test]
async fn check_beside_silent_nodes_is_one_error() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let two = TwoNodes::start().await;
    let many = many();
    two.without_bob().await;
    two.node("alice").await.signal("STOP");
    let alice = two.limiter.check_all([(&many, "alice")]).await.unwrap();
    assert_eq!(alice.decided_by(), DecidedBy::LocalLog);
    let errors = || recorded.count("sliding_window_store_errors_total{kind=unavailable}");
    let before = errors();
    assert!(two.limiter.check_all([(&many, "alice"), (&many, "bob")]).await.is_ok());
    assert_eq!(errors() - before, 1);
}

/// Nor do they deny others, or bring them a strike. The journal has room for few cancellations.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_beside_a_silent_node_take_no_place() {
    let two = TwoNodes::start().await;
    two.without_bob().await;
    let node = two.node("alice").await;
    let of = |name: String| PolicyHandle::new(Policy::new(name).quota(Quota::per_hour(9_999)));
    let policies = [FailurePolicy::Closed, FailurePolicy::Open, FailurePolicy::default()];
    for (number, policy) in policies.into_iter().flat_map(|it| [it, it]).enumerate() {
        let (user, ip) = (of(format!("user-{number}")), of(format!("ip-{number}")));
        let store = RedisStore::builder().local_capacity(100).deny_cache(false);
        let store = store.connect(two.cluster.servers()).await.unwrap();
        let limiter = Limiter::new(&user, store).failure_policy(policy);
        let mut logs = [(&ip, "bob"), (&user, "alice")];
        logs.rotate_left(number % 2);
        // So that it knows of the silence.
        let _ = limiter.check_all(logs).await;
        let before = node.call_count("zadd").await;
        let mut admitted = 1;
        for _ in 0..200 {
            let decision = limiter.check_all(logs).await;
            let is_here = |it: Decision| it.is_admitted() && it.decided_by() == DecidedBy::LocalLog;
            admitted += usize::from(decision.is_ok_and(is_here));
        }
        if policy != FailurePolicy::default() {
            assert_eq!(
                node.call_count("zadd").await,
                before,
                "{policy}: none was held for a while"
            );
        }
        sleep(Duration::from_millis(500)).await;
        let places = node.entries(&format!("tsw:{{=alice}}:user-{number}:1h")).await;
        assert!(places <= admitted, "{policy}: {places} places, {admitted} admitted");
    }
}

/// Of three logs the first one has room, the second is on a node without memory, and the third is full, as Redis says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_without_memory_hides_no_denial_of_a_later_one() {
    let two = TwoNodes::start().await;
    let keys = two.key_of_each().await;
    let theirs = limiter(&two.user, &store(two.cluster.servers()).await);
    assert!(admit(&theirs, &keys[2]).await);
    two.cluster.nodes[1].run::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let all = keys.iter().map(|key| (&two.user, &**key));
    let decision = two.limiter.check_all(all).await.unwrap();
    assert!(!decision.is_admitted(), "{:?}", decision.decided_by());
}

/// A node is silent, and another one denies, as a look says. Before it is asked, so that the denial is a strike, another process
/// has reset its log, and the reply is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denied_request_whose_reply_is_lost_keeps_no_place() {
    let (cluster, proxy, limiter, of_it, others) = with_a_way(1).await;
    let (alice, bob, node) = (&*others[0], &*of_it[0], &cluster.nodes[1]);
    let (user, limiter) = (user(1).into(), limiter.failure_policy(FailurePolicy::Open));
    assert!(admit(&limiter, bob).await);
    cluster.node_of(&log_of(alice)).await.signal("STOP");
    let silent = limiter.check(alice).await.unwrap();
    assert_eq!(silent.decided_by(), DecidedBy::FailurePolicy);
    proxy.set(Fault::Delay(Duration::from_millis(250)));
    let log = log_of(bob);
    let before = node.call_count("evalsha").await;
    let reset = async {
        eventually("it is looked at", async || node.call_count("evalsha").await > before).await;
        node.run::<u64>(&["DEL", &log]).await;
        proxy.drop_replies_to(&log, 2);
    };
    let (both, ()) = tokio::join!(limiter.check_all([(&user, alice), (&user, bob)]), reset);
    assert!(!both.unwrap().is_admitted());
    assert_eq!(node.call_count("zadd").await, 2, "it had the request");
    proxy.set(Fault::None);
    node.has_entries(&log, 0).await;
}

async fn has_no_log(cluster: &Cluster) {
    for node in &cluster.nodes {
        assert_eq!(node.keys().await, [""; 0]);
    }
}

/// A node is gone, and its address is that of a node of another Cluster, which refuses its keys, or serves them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn address_that_goes_to_another_cluster_takes_no_key_along() {
    let (mut ours, proxy, limiter, of_it, others) = with_a_way(1_000_000).await;
    let theirs = Cluster::start().await;
    decides(DecidedBy::Store, &limiter, &[of_it.clone(), others.clone()].concat()).await;
    for node in &theirs.nodes[..2] {
        proxy.lead_to(node.port());
        ours.nodes[1].kill();
        for _ in 0..10 {
            decides(DecidedBy::LocalLog, &limiter, &of_it[..1]).await;
            decides(DecidedBy::Store, &limiter, &others).await;
            sleep(Duration::from_millis(200)).await;
        }
        has_no_log(&theirs).await;
        ours.nodes[1].start_again();
        proxy.lead_to(ours.nodes[1].port());
        until_redis_decides(&limiter, &of_it[0]).await;
    }
}

/// Of two servers that were named one is that of another Cluster by now, which is not believed while ours serves nobody. When
/// none of ours is there any more, it has taken their place.
#[tokio::test]
async fn named_server_of_another_cluster_is_not_believed() {
    let warnings = Warnings::listen();
    let (mut ours, theirs) = (Cluster::with_replicas(0).await, Cluster::start().await);
    let proxy = Proxy::to(ours.nodes[0].port()).await;
    let servers = RedisServers::cluster([ours.nodes[0].url(), proxy.url()]).unwrap();
    let limiter = limiter(user(1_000_000), &store(servers).await);
    assert!(admit(&limiter, "alice").await);
    proxy.lead_to(theirs.nodes[0].port());
    ours.nodes[2].kill();
    let alice = async || limiter.check("alice").await.unwrap().decided_by();
    eventually("ours is down", async || alice().await == DecidedBy::LocalLog).await;
    for _ in 0..30 {
        assert_eq!(alice().await, DecidedBy::LocalLog);
        sleep(Duration::from_millis(100)).await;
    }
    ours.nodes[2].start_again();
    until_redis_decides(&limiter, "alice").await;
    has_no_log(&theirs).await;
    assert!(warnings.lines().iter().any(|line| line.contains("of another Redis Cluster")));
    ours.nodes.iter_mut().for_each(Redis::kill);
    until_redis_decides(&limiter, "alice").await;
    assert_eq!(theirs.node_of(LOG).await.keys().await, [LOG]);
}
