//! Windows on a Cluster: when nodes fail or slots move, and when callers leave.

use crate::*;

/// The numbers of the nodes of alice and of bob.
const ALICE: usize = 1;
const BOB: usize = 2;
/// The log of the address `bob`.
const BOBS: &str = "tsw:{=bob}:ip:1h";
/// A key of each node. Their order is that of the nodes, too.
const EACH: [&str; 3] = ["key-12", "key-14", "key-15"];

/// A Cluster, and a process that uses it.
struct Nodes {
    cluster: Cluster,
    store: RedisStore,
    /// So many an hour.
    limiter: Limiter,
    user: PolicyHandle,
    /// One an hour.
    ip: PolicyHandle,
}

impl Nodes {
    async fn start(limit: u32) -> Self {
        Self::with(limit, uncached()).await
    }

    async fn with(limit: u32, builder: RedisStoreBuilder) -> Self {
        let cluster = Cluster::start().await;
        let store = builder.connect(cluster.servers()).await.unwrap();
        Self::of(cluster, store, limit)
    }

    /// Has the process reach the node of alice by the way that is returned.
    async fn with_a_way(limit: u32, builder: RedisStoreBuilder) -> (Self, Proxy) {
        let mut cluster = Cluster::start().await;
        let proxy = Proxy::to(cluster.nodes[ALICE].port()).await;
        cluster.announce(ALICE, proxy.port()).await;
        let servers = RedisServers::cluster([cluster.nodes[0].url()]).unwrap();
        let store = builder.connect(servers).await.unwrap();
        (Self::of(cluster, store, limit), proxy)
    }

    fn of(cluster: Cluster, store: RedisStore, limit: u32) -> Self {
        assert_eq!([LOG, BOBS].map(Cluster::owner), [ALICE, BOB]);
        assert_eq!(EACH.map(|key| Cluster::owner(&format!("{{={key}}}"))), [0, 1, 2]);
        let user = PolicyHandle::new(user(limit));
        let ip = Policy::new("ip").quota(Quota::per_hour(1)).into();
        Self { cluster, limiter: limiter(&user, &store), store, user, ip }
    }

    fn of_alice(&self) -> &Redis {
        &self.cluster.nodes[ALICE]
    }

    fn of_bob(&self) -> &Redis {
        &self.cluster.nodes[BOB]
    }

    async fn check<L: Into<LogCost>>(&self, logs: impl IntoIterator<Item = L>) -> Decision {
        self.limiter.check_all(logs).await.unwrap()
    }

    /// Checks alice and the address bob, in that order.
    async fn both(&self) -> Decision {
        self.check([(&self.user, "alice"), (&self.ip, "bob")]).await
    }

    /// Stops the node of bob, and waits until the process knows.
    async fn without_bob(&self) {
        self.of_bob().signal("STOP");
        assert_eq!(self.check([(&self.ip, "bob")]).await.decided_by(), HERE);
    }
}

async fn pause(node: &Redis, ms: u64) {
    node.run::<()>(&["CLIENT", "PAUSE", &ms.to_string(), "ALL"]).await;
}

/// Has a node refuse scripts, or no more.
async fn refuse_scripts(node: &Redis, refuse: bool) {
    let rule = if refuse { "-@scripting" } else { "+@scripting" };
    node.run::<()>(&["ACL", "SETUSER", "default", rule]).await;
}

/// A policy of nine an hour whose denials bring bans.
fn with_bans(name: &str) -> PolicyHandle {
    strict(Policy::new(name).quota(Quota::per_hour(9)), "3/10m:1h")
}

/// A policy that denies nothing here.
fn many() -> PolicyHandle {
    Policy::new("many").quota(Quota::per_hour(9_999)).into()
}

/// Returns the Redis key of the log of a key.
fn log_of(key: &str) -> String {
    format!("tsw:{{={key}}}:user:1h")
}

/// Returns some twenty keys of each of these nodes.
fn keys_of(nodes: &[usize]) -> Vec<String> {
    let keys = (0..60).map(|number| format!("key-{number}"));
    keys.filter(|key| nodes.contains(&Cluster::owner(&log_of(key)))).collect()
}

async fn decides(by: DecidedBy, limiter: &Limiter, keys: &[impl AsRef<str>]) {
    for key in keys.iter().map(AsRef::as_ref) {
        assert_eq!(decided_by(limiter, key).await, by, "{key}");
    }
}

async fn all_at_once(by: DecidedBy, limiter: &Limiter, keys: &[String]) {
    join_all(keys.iter().map(|key| decides(by, limiter, std::slice::from_ref(key)))).await;
}

/// Checks alice five times: all pass, or none does.
async fn five_of_alice(limiter: &Limiter, pass: bool) {
    for _ in 0..5 {
        assert_eq!(admit(limiter, "alice").await, pass);
    }
}

/// The other nodes do not notice meanwhile, also of what the application itself asks the node, and of more resets than are
/// under way at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_node_costs_its_timeout_once() {
    let timeout = Duration::from_secs(3);
    let nodes = Nodes::with(9, uncached().response_timeout(timeout)).await;
    let (limiter, of_it) = (&nodes.limiter, keys_of(&[ALICE]));
    decides(REDIS, limiter, &of_it).await;
    nodes.of_alice().signal("STOP");
    let resets = (0..10).flat_map(|_| &of_it[2..]).map(|key| limiter.reset(&**key));
    let explained = async {
        sleep(Duration::from_millis(50)).await;
        limiter.explain("bob").await.unwrap().decided_by
    };
    tokio::select! {
        _ = join_all(resets) => panic!("the node is silent"),
        by = explained => assert_eq!(by, REDIS),
    }
    all_at_once(HERE, limiter, &of_it).await;
    let start = Instant::now();
    decides(HERE, limiter, &of_it).await;
    limiter.explain(&*of_it[0]).await.unwrap();
    assert!(start.elapsed() < timeout, "none of them has waited for the node");
    let commands = nodes.store.commands();
    for _ in 0..6 {
        let reply = commands.query::<u64>(redis::cmd("ZCARD").arg(log_of(&of_it[0]))).await;
        assert!(reply.is_err(), "the node is silent");
    }
    decides(REDIS, limiter, &keys_of(&[0, BOB])).await;
    nodes.of_alice().signal("CONT");
    until_redis_decides_about(&of_it[0], limiter).await;
    assert_eq!(left(limiter, &of_it[1]).await, 6, "both were written back");
}

/// The node is killed while it is in use, or hangs, after a slot has moved from another one to a third, or it hangs from the
/// start of the process. When one that has hung goes on, another one hangs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_nodes_decide_beside_a_dead_one() {
    join_all(["is killed", "hangs", "hangs from the start"].map(async |it| {
        let (of_it, others) = (keys_of(&[ALICE]), keys_of(&[0, BOB]));
        let mut cluster = Cluster::start().await;
        if it == "hangs from the start" {
            cluster.nodes[ALICE].signal("STOP");
        }
        let limiter = limiter(user(1_000), &store(cluster.servers()).await);
        if it != "hangs from the start" {
            decides(REDIS, &limiter, &keys_of(&[0, ALICE, BOB])).await;
            cluster.move_key(&log_of(EACH[BOB]), 0).await;
            match it {
                "is killed" => cluster.nodes[ALICE].kill(),
                _ => cluster.nodes[ALICE].signal("STOP"),
            }
        }
        for _ in 0..10 {
            let beside = async {
                decides(REDIS, &limiter, &others).await;
                sleep(Duration::from_millis(200)).await;
            };
            tokio::join!(all_at_once(HERE, &limiter, &of_it), beside);
        }
        let mut questions = 0;
        for number in [0, BOB] {
            questions += cluster.nodes[number].call_count("cluster|slots").await;
        }
        assert!(questions < 200, "{questions} questions who has the slots of {} keys", of_it.len());
        if it == "is killed" {
            cluster.nodes[ALICE].start_again();
            return until_redis_decides_about(&of_it[0], &limiter).await;
        }
        cluster.nodes[BOB].signal("STOP");
        let of_bob = keys_of(&[BOB]);
        decides(HERE, &limiter, &of_bob[..1]).await;
        let began = Instant::now();
        cluster.nodes[ALICE].signal("CONT");
        until_redis_decides_about(&of_it[0], &limiter).await;
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        decides(REDIS, &limiter, &of_it[1..]).await;
        decides(HERE, &limiter, &of_bob[..1]).await;
    }))
    .await;
}

/// A node is new, and gets the slot of a log. It restarts empty when it has the log: while the slot is on its way and the
/// log was not used for a few seconds, or before the process has connected to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newcomer_that_restarts_empty_never_over_admits() {
    join_all([true, false].map(async |is_connected| {
        let Nodes { mut cluster, limiter, .. } = Nodes::start(5).await;
        let new = cluster.add_primary().await;
        if is_connected {
            cluster.begin_to_move(LOG, new).await;
        }
        five_of_alice(&limiter, true).await;
        if is_connected {
            assert_eq!(cluster.nodes[new].keys().await, [LOG]);
            check_another(&limiter, Duration::from_secs(3)).await;
        } else {
            cluster.move_key(LOG, new).await;
        }
        cluster.nodes[new].restart().await;
        cluster.serves_every_slot(&[0, 1, 2, new]).await;
        for pause_ms in [0, 300, 300, 300] {
            sleep(Duration::from_millis(pause_ms)).await;
            assert!(!admit(&limiter, "alice").await);
        }
        until_redis_decides_about("alice", &limiter).await;
        // On the way it is not asked about the log.
        assert!(is_connected || cluster.nodes[new].entries(LOG).await == 5);
    }))
    .await;
}

/// A log has expired, but for its last second, or as a whole, and its slot is on its way. The node refuses the log as soon as
/// its entries are removed, and names the other one when it is asked again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_log_of_a_slot_that_moves_harms_no_other() {
    // So few entries are removed all at once, and so many by their number.
    join_all([1, 257].map(async |length| {
        let Nodes { cluster, store, user: hour, .. } = Nodes::start(300).await;
        let second = Policy::new("user").quota(Quota::new(300, Duration::from_secs(1)));
        let [second, one] = [second, user(1)].map(PolicyHandle::new);
        let limiter = limiter(&second, &store).failure_policy(FailurePolicy::Closed);
        let mut keys = keys_of(&[ALICE]);
        let expired = [keys.pop().unwrap(), keys.pop().unwrap()];
        let both = async |key: &str| limiter.check_all([(&hour, key), (&second, key)]).await;
        let filled = expired.iter().cycle().take(2 * length).map(|key| both(key));
        assert!(join_all(filled).await.into_iter().all(|it| it.unwrap().is_admitted()));
        assert!(admit(&limiter, "alice").await);
        for log in expired.iter().map(|key| log_of(key)).chain([LOG.to_owned()]) {
            cluster.begin_to_move(&log, 0).await;
        }
        sleep(Duration::from_millis(1_400)).await;
        // The log of the hour has the request only if it passes.
        let decision = both(&expired[0]).await;
        let entries = cluster.nodes[ALICE].entries(&log_of(&expired[0])).await;
        assert_eq!(entries, length + usize::from(decision.is_ok()), "{decision:?}");
        // Others share the call. Those of one policy are beside each other there.
        let others = keys.iter().enumerate().map(async |(number, key)| {
            if number == 10 {
                let _ = limiter.check_all([(&second, &*expired[1])]).await;
            }
            limiter.check_all([(&one, &**key)]).await.unwrap().is_admitted()
        });
        assert!(join_all(others).await.into_iter().all(|it| it), "{length}");
        decides(REDIS, &limiter, &["alice", "alice"]).await;
        assert_eq!(left(&limiter, "alice").await, 298, "of all processes");
        assert!(cluster.nodes[0].keys().await.contains(&"tsw:{=alice}:user:1s".to_owned()));
    }))
    .await;
}

/// The node of a slot hangs while the slot is on its way. The log is on that node still, or on the other one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_of_a_slot_that_moves_is_written_back() {
    join_all([true, false].map(async |is_there_before| {
        let nodes = Nodes::start(1_000).await;
        let limiter = &nodes.limiter;
        if is_there_before {
            assert!(admit(limiter, "alice").await);
        }
        nodes.cluster.begin_to_move(LOG, BOB).await;
        if !is_there_before {
            assert!(admit(limiter, "alice").await);
        }
        nodes.of_alice().signal("STOP");
        decides(HERE, limiter, &["alice"]).await;
        nodes.of_alice().signal("CONT");
        let (mut checks, began) = (3, Instant::now());
        while decided_by(limiter, "alice").await != REDIS {
            assert!(began.elapsed() < Duration::from_secs(2), "{is_there_before}");
            checks += 1;
        }
        assert_eq!(left(limiter, "alice").await, 1_000 - checks);
        let node = if is_there_before { nodes.of_alice() } else { nodes.of_bob() };
        assert_eq!(node.keys().await, [LOG]);
    }))
    .await;
}

/// Its node has given it up, and no other one has taken it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_of_a_slot_that_nobody_has_is_decided_here() {
    let nodes = Nodes::start(1_000).await;
    let (limiter, slot) = (&nodes.limiter, Cluster::slot(LOG).to_string());
    decides(REDIS, limiter, &["alice"]).await;
    for node in &nodes.cluster.nodes {
        node.run::<()>(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]).await;
        node.run::<()>(&["CLUSTER", "DELSLOTS", &slot]).await;
    }
    for _ in 0..20 {
        decides(HERE, limiter, &["alice"]).await;
        sleep(Duration::from_millis(20)).await;
    }
    nodes.of_alice().run::<()>(&["CLUSTER", "ADDSLOTS", &slot]).await;
    until_redis_decides_about("alice", limiter).await;
    assert!(left(limiter, "alice").await <= 978, "all are written back");
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
    decides(REDIS, &limiter, &keys_of(&[0, 1, 2])).await;
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
    until_redis_decides_about(EACH[0], &limiter).await;
    decides(REDIS, &limiter, &keys_of(&[1, 2])).await;
}

/// `FLUSHALL` breaks no connection. The slot of the node's mark has moved away before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_node_gets_its_logs_back() {
    let nodes = Nodes::start(5).await;
    five_of_alice(&nodes.limiter, true).await;
    let look = async || check_another(&nodes.limiter, Duration::from_millis(1_500)).await;
    look().await;
    let marks: Vec<String> = nodes.of_alice().run(&["KEYS", "tsw:*:mark"]).await;
    nodes.cluster.move_key(&marks[0], BOB).await;
    look().await;
    nodes.of_alice().run::<redis::Value>(&["FLUSHALL"]).await;
    look().await;
    five_of_alice(&nodes.limiter, false).await;
}

/// Nobody has slots yet, and each check finds that out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_that_is_not_formed_is_asked_now_and_then() {
    let lone = Redis::start_with(&["--cluster-enabled", "yes"]).await;
    let servers = RedisServers::cluster([lone.url()]).unwrap();
    let limiter = limiter(user(9), &RedisStore::connect_lazy(servers).unwrap());
    let keys = |name| Vec::from_iter((0..500).map(|number| format!("{name}-{number}")));
    all_at_once(HERE, &limiter, &keys("key")).await;
    let asked = lone.call_count("cluster|slots").await;
    assert!(asked < 50, "{asked} questions");
    add_all_slots(&lone).await;
    until_redis_decides_about("alice", &limiter).await;
    // All keys are on one node, so checks share calls.
    let before = lone.call_count("evalsha").await;
    all_at_once(REDIS, &limiter, &keys("other")).await;
    let calls = lone.call_count("evalsha").await - before;
    assert!(calls < 250, "{calls} calls");
}

/// The way to the node takes longer than a call follows redirections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn distant_node_names_the_one_that_gets_its_slot() {
    let (nodes, proxy) = Nodes::with_a_way(9, uncached()).await;
    decides(REDIS, &nodes.limiter, &[EACH[ALICE]]).await;
    nodes.cluster.begin_to_move(LOG, 0).await;
    proxy.set(Fault::Delay(Duration::from_millis(250)));
    decides(REDIS, &nodes.limiter, &["alice"]).await;
}

/// A node without a replica is dead, so the others serve nobody. When they are gone, too, they are asked once a second, and
/// each is one outage in the log.
#[tokio::test]
async fn cluster_that_is_down_delays_no_check_and_is_a_few_lines() {
    let mut cluster = Cluster::with_replicas(0).await;
    let limiter_of = |store| limiter(user(1_000_000), &store);
    let (limiter, others) = (limiter_of(store(cluster.servers()).await), keys_of(&[0, 2]));
    decides(REDIS, &limiter, &others).await;
    cluster.nodes[1].kill();
    for node in [0, 2].map(|number| &cluster.nodes[number]) {
        let info = async || node.run::<String>(&["CLUSTER", "INFO"]).await;
        eventually("it is down", async || info().await.contains("cluster_state:fail")).await;
    }
    let start = Instant::now();
    decides(HERE, &limiter, &others).await;
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    let refused = RedisStore::connect(cluster.servers()).await.unwrap_err();
    let named = format!("127.0.0.1:{}: the node serves nobody", cluster.nodes[0].port());
    assert!(refused.to_string().contains(&named), "{refused}");
    let lazy = limiter_of(RedisStore::connect_lazy(cluster.servers()).unwrap());
    decides(HERE, &lazy, &others).await;
    let warnings = Warnings::listen();
    cluster.nodes.iter_mut().for_each(Redis::kill);
    let gone = Instant::now();
    while gone.elapsed() < Duration::from_secs(3) {
        decides(HERE, &limiter, &["alice"]).await;
        sleep(Duration::from_millis(20)).await;
    }
    let lines = warnings.lines();
    assert!(lines.len() < 12, "{lines:?}");
    cluster.nodes.iter_mut().for_each(Redis::start_again);
    for limiter in [limiter, lazy] {
        until_redis_decides_about(&others[0], &limiter).await;
    }
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
    let explained_by = async || limiter.explain("alice").await.unwrap().decided_by;
    assert_eq!(explained_by().await, REDIS);
    cluster.nodes[ALICE].kill();
    cluster.nodes[ALICE + 3].says("replication", "role:master").await;
    eventually("Redis explains", async || explained_by().await == REDIS).await;
}

/// The primary of alice stands still, its replica takes its place without the last writes, and it goes on as a replica. No
/// connection breaks.
async fn lose_last_writes(cluster: &Cluster) {
    let (old, new) = (&cluster.nodes[ALICE], &cluster.nodes[ALICE + 3]);
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
    let cases = [(true, false), (true, true), (false, false)];
    join_all(cases.map(async |(says_slots, ban_comes_first)| {
        let cluster = Cluster::with_replicas(1).await;
        let store = store(cluster.servers()).await;
        let policy = with_bans("banned");
        let [limiter, banned] = [user(5).into(), policy.clone()].map(|it| limiter(it, &store));
        five_of_alice(&limiter, true).await;
        assert!(admit(&banned, "alice").await);
        Bans::new(policy, store).impose("alice", HOUR, "spam").await.unwrap();
        if !says_slots {
            for node in &cluster.nodes {
                node.run::<()>(&["ACL", "SETUSER", "default", "-cluster"]).await;
            }
        }
        lose_last_writes(&cluster).await;
        if ban_comes_first {
            assert!(!admit(&banned, "alice").await);
        }
        five_of_alice(&limiter, false).await;
        assert!(!admit(&banned, "alice").await);
    }))
    .await;
}

/// The first node hangs, and executes the check later. Or the later one hangs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_request_is_in_all_logs_or_in_none() {
    let nodes = Nodes::start(1).await;
    let open = nodes.limiter.clone().failure_policy(FailurePolicy::Open);
    let node = nodes.of_alice();
    // It has the script, and the first call that waits there is run.
    assert!(open.check_all([(&many(), "alice")]).await.unwrap().is_admitted());
    let logs = [(&nodes.user, "alice"), (&nodes.ip, "bob")];
    let both = async || open.check_all(logs).await.unwrap().decided_by();
    let before = node.call_count("zadd").await;
    node.signal("STOP");
    assert_eq!(both().await, DecidedBy::FailurePolicy);
    node.signal("CONT");
    eventually("the user has a place again", async || {
        sleep(Duration::from_millis(500)).await;
        nodes.limiter.peek("alice").await.is_ok_and(|it| it.remaining() == 1)
    })
    .await;
    let later = node.call_count("zadd").await;
    assert!(later > before, "it had the request");
    pause(nodes.of_bob(), 1_000).await;
    assert_eq!(both().await, DecidedBy::FailurePolicy);
    assert!(node.call_count("zadd").await > later, "it had this one, too");
    node.has_entries(LOG, 0).await;
    nodes.of_bob().has_entries(BOBS, 0).await;
}

/// A cancellation of the earlier log would arrive after the request, which the process has admitted, was written back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_rollback_undoes_no_admission() {
    let (nodes, proxy) = Nodes::with_a_way(1, uncached()).await;
    let warm = nodes.check([(&nodes.user, EACH[ALICE]), (&nodes.ip, EACH[BOB])]).await;
    assert_eq!(warm.decided_by(), REDIS);
    pause(nodes.of_bob(), 1_500).await;
    let hold_back = async {
        nodes.of_alice().has_entries(LOG, 1).await;
        proxy.set(Fault::Forget);
    };
    let (decision, ()) = tokio::join!(nodes.both(), hold_back);
    assert_eq!(verdict(&decision), (true, HERE));
    sleep(Duration::from_secs(3)).await;
    proxy.set(Fault::None);
    sleep(Duration::from_millis(500)).await;
    assert_eq!(nodes.of_alice().entries(LOG).await, 1, "it was admitted");
}

/// A denied request leaves no value, which can't be taken out again and so is not recorded before the other log admits the
/// request. A place that it holds for a round trip is no reason for a strike of another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_that_another_node_denies_leaves_no_value_and_brings_no_ban() {
    let nodes = Nodes::start(1).await;
    let peers = PolicyHandle::new(Policy::new("peers").quota(Quota::per_hour(1)).distinct());
    assert!(nodes.check([(&nodes.ip, "bob")]).await.is_admitted());
    let to = |peer| LogCost::from((&peers, "alice")).value(peer);
    let denied = nodes.check([to("carol"), (&nodes.ip, "bob").into()]).await;
    assert!(!denied.is_admitted(), "the address is full");
    assert!(nodes.check([to("dave")]).await.is_admitted(), "the first value");

    let strict = strict(user(1), "1/10m:1h");
    pause(nodes.of_bob(), 200).await;
    let meanwhile = async {
        sleep(Duration::from_millis(100)).await;
        nodes.check([(&strict, "alice")]).await
    };
    let both = nodes.check([(&strict, "alice"), (&nodes.ip, "bob")]);
    let (both, alone) = tokio::join!(both, meanwhile);
    assert!(!both.is_admitted(), "the address is full");
    assert!(alone.is_admitted(), "{:?}", alone.usage().banned_for());
}

/// Meanwhile another request finds the user's log full, or the node of the user is silent, or it refuses scripts. Nothing else
/// is checked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denial_stands_and_its_request_is_rolled_back() {
    join_all(["is full", "is silent", "refuses scripts"].map(async |alice| {
        // With a memory of denials.
        let nodes = Nodes::with(1, RedisStore::builder()).await;
        let node = nodes.of_alice();
        assert!(nodes.check([(&nodes.ip, "bob")]).await.is_admitted());
        pause(nodes.of_bob(), 200).await;
        let meanwhile = async {
            node.has_entries(LOG, 1).await;
            match alice {
                "is full" => assert!(!admit(&nodes.limiter, "alice").await, "for now"),
                "is silent" => pause(node, 1_000).await,
                _ => refuse_scripts(node, true).await,
            }
        };
        let (decision, ()) = tokio::join!(nodes.both(), meanwhile);
        assert_eq!(decision.denied().expect("the address is full").violated().count(), 1);
        if alice == "refuses scripts" {
            node.has_entries(LOG, 1).await;
            refuse_scripts(node, false).await;
        }
        if alice != "is full" {
            node.has_entries(LOG, 0).await;
        }
        assert!(admit(&nodes.limiter, "alice").await, "neither entry nor denial: {alice}");
    }))
    .await;
}

/// The later log has recorded the request later, and keeps it for longer. The caller of its cancellation leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_is_admitted_when_its_last_log_has_it_and_cancelled_in_each() {
    let nodes = Nodes::start(1).await;
    pause(nodes.of_bob(), 100).await;
    let admitted = admitted(nodes.both().await);
    let last: Vec<(Vec<u8>, u64)> =
        nodes.of_bob().run(&["ZRANGE", BOBS, "0", "-1", "WITHSCORES"]).await;
    assert_eq!(admitted.timestamp(), Some(Duration::from_micros(last[0].1)));
    pause(nodes.of_alice(), 200).await;
    let cancelled = timeout(Duration::from_millis(50), nodes.limiter.cancel(&admitted)).await;
    assert!(cancelled.is_err());
    nodes.of_alice().has_entries(LOG, 0).await;
    nodes.of_bob().has_entries(BOBS, 0).await;
}

/// A permit for a user and an address is renewed while the node of the address is silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_beside_a_silent_node_gives_up_no_place() {
    let nodes = Nodes::start(1).await;
    let [user, ip] = ["user", "ip"].map(|name| {
        let policy = Policy::new(name).quota(Quota::new(1, Duration::from_secs(3)));
        PolicyHandle::new(policy.in_flight())
    });
    let decision = nodes.check([(&user, "alice"), (&ip, "bob")]).await;
    let permit = nodes.limiter.hold(decision.admitted().unwrap());
    let node = nodes.of_alice();
    let renewed = node.call_count("zadd").await + 1;
    pause(nodes.of_bob(), 2_200).await;
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
    let mut nodes = Nodes::with(1, RedisStore::builder()).await;
    let user = with_bans("user");
    let theirs = Bans::new(&user, store(nodes.cluster.servers()).await);
    theirs.impose("alice", HOUR, "spam").await.unwrap();
    let logs = [(user, "alice"), (many(), "bob")];
    let calls =
        async || nodes.cluster.call_count("evalsha").await + nodes.cluster.call_count("eval").await;
    let (before, began) = (calls().await, Instant::now());
    for _ in 0..300 {
        assert!(nodes.check(logs.clone()).await.usage().banned_for().is_some());
    }
    let (made, took) = (calls().await - before, began.elapsed());
    assert!(made <= 10 + 5 * took.as_secs(), "{made} calls in {took:?}");
    nodes.cluster.nodes[ALICE].kill();
    // Until the denial in memory is over.
    sleep(Duration::from_secs(1)).await;
    assert_eq!(verdict(&nodes.check(logs).await), (false, HERE));
}

/// Random requests of logs in several slots: a Cluster decides as a process does, and says the same of each log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_says_what_a_process_does() {
    let Nodes { cluster: _cluster, store: redis, .. } = Nodes::start(1).await;
    for seed in 0..20 {
        let (mut random, memory) = (Rng::with_seed(seed), MemoryStore::new());
        let policy =
            |name: &str, limit| Policy::new(format!("{name}-{seed}")).quota(Quota::per_hour(limit));
        let two = policy("two", 4).quota(Quota::new(2, Duration::from_secs(600)));
        let policies = [two, policy("tokens", 20).budget(), policy("jobs", 3).in_flight()];
        let (policies, mut admitted) = (policies.map(Arc::new), Vec::<Check>::new());
        for step in 0..60 {
            let logs = [(); 3].map(|()| {
                let policy = random.choice(&policies).unwrap().clone();
                let cost = if policy.counts() == Counts::Budget { random.u32(1..8) } else { 1 };
                let key = *random.choice(&["alice", "bob", "carol"]).unwrap();
                LogCost::new(LogId::new(policy, key), cost)
            });
            let mut check = Check::with_costs(logs);
            check.wants_reset = true;
            // Else the local log would decide, by the same algorithm, if the Cluster refused the check.
            check.on_failure = FailurePolicy::Closed;
            let (said, should) = match random.u8(0..12) {
                0..3 if !admitted.is_empty() => {
                    let check = random.choice(&admitted).unwrap();
                    let cost = *random.choice(&[0, 2, 9]).unwrap();
                    let was_there = redis.settle(check, cost).await.unwrap();
                    let should = memory.settle(check, cost).await.unwrap();
                    assert_eq!(was_there, should, "{seed}, {step}");
                    continue;
                }
                3 => {
                    redis.reset(&check.logs()[0]).await.unwrap();
                    memory.reset(&check.logs()[0]).await.unwrap();
                    continue;
                }
                4 | 5 => (redis.peek(&check).await.unwrap(), memory.peek(&check).await.unwrap()),
                _ => (redis.admit(&check).await.unwrap(), memory.admit(&check).await.unwrap()),
            };
            let message = format!("{seed}, {step}: {said:?} for {should:?} of {check:?}");
            assert_eq!(said.admitted, should.admitted, "{message}");
            let quotas = |it: &Outcome| -> Vec<QuotaState> {
                it.logs().iter().flat_map(|log| log.quotas().to_vec()).collect()
            };
            for (said, should) in quotas(&said).iter().zip(quotas(&should)) {
                assert_eq!(said.remaining(), should.remaining(), "{message}");
                let most = Duration::from_secs(60);
                assert!(said.wait().abs_diff(should.wait()) < most, "{message}");
                assert!(said.reset().abs_diff(should.reset()) < most, "{message}");
            }
            admitted.extend(Some(check).filter(|_| said.admitted));
        }
    }
}

/// Another process bans a key, which a check of it alone learns while the other part of an earlier check is under way. The
/// ban is kept while its node is silent and another log denies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ban_outlives_an_earlier_check_of_two_nodes() {
    let nodes = Nodes::start(1).await;
    let [user, ip] = ["user", "strict"].map(with_bans);
    let bans = Bans::new(&user, store(nodes.cluster.servers()).await);
    let alice = async || verdict(&nodes.check([(&user, "alice")]).await);
    pause(nodes.of_bob(), 300).await;
    let meanwhile = async {
        nodes.of_alice().has_entries(LOG, 1).await;
        bans.impose("alice", HOUR, "spam").await.unwrap();
        assert_eq!(alice().await, (false, REDIS), "and so it is known here");
    };
    let both = nodes.check([(&user, "alice"), (&ip, "bob")]);
    let (both, ()) = tokio::join!(both, meanwhile);
    assert!(both.is_admitted(), "before the ban");
    assert!(nodes.check([(&nodes.ip, "bob")]).await.is_admitted());
    nodes.of_alice().signal("STOP");
    let both = nodes.check([(&user, "alice"), (&nodes.ip, "bob")]).await;
    assert_eq!(verdict(&both), (false, REDIS), "the address is full");
    assert_eq!(alice().await, (false, HERE));
}

/// Another process lifts a ban that a check has met, while the other part of the check is under way. Then a node loses its data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ban_lifted_beside_a_check_of_two_nodes_stays_lifted() {
    let nodes = Nodes::start(1).await;
    let strict = with_bans("ip");
    let peers = PolicyHandle::new(Policy::new("peers").quota(Quota::per_hour(9)).distinct());
    let bans = Bans::new(&strict, store(nodes.cluster.servers()).await);
    bans.impose("bob", HOUR, "by mistake").await.unwrap();
    assert!(bans.get("nobody").await.unwrap().is_none());
    pause(nodes.of_alice(), 300).await;
    let logs = [LogCost::from((&peers, "alice")).value("carol"), LogCost::from((&strict, "bob"))];
    let lifted = async {
        sleep(Duration::from_millis(150)).await;
        assert!(bans.lift("bob").await.unwrap());
    };
    let (both, ()) = tokio::join!(nodes.check(logs), lifted);
    assert!(!both.is_admitted(), "before it was lifted");
    nodes.of_alice().run::<()>(&["FLUSHALL"]).await;
    sleep(Duration::from_millis(1_100)).await;
    assert!(admit(&nodes.limiter, "alice").await);
    sleep(Duration::from_millis(300)).await;
    let decision = nodes.check([(&strict, "bob")]).await;
    assert!(decision.is_admitted(), "{:?}", decision.usage().banned_for());
}

/// The node of alice has no memory, or is silent, which the process knows or not. The log of bob on the other one is full, or he
/// is banned, as Redis says, also to who only looks, and on a connection that was closed while nobody used it. What a node
/// refuses for its memory would be refused again, and is sent once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_node_hides_no_denial_of_another() {
    let nodes = Nodes::start(1).await;
    let [theirs, ours] = [(); 2].map(|()| store(nodes.cluster.servers()));
    let (theirs, ours, node) = (theirs.await, ours.await, nodes.of_alice());
    assert!(admit(&limiter(&nodes.ip, &theirs), "bob").await);
    let strict = with_bans("strict");
    Bans::new(&strict, theirs).impose("bob", HOUR, "spam").await.unwrap();
    let many = many();
    let looks = limiter(&many, &ours).failure_policy(FailurePolicy::Open);
    // All connections are there.
    for limiter in [&nodes.limiter, &looks] {
        let warm = limiter.check_all([(&many, "alice"), (&many, "bob")]).await.unwrap();
        assert_eq!(warm.decided_by(), REDIS);
    }
    // Has no log yet, and denies nothing.
    let new: PolicyHandle = Policy::new("new").quota(Quota::per_hour(9_999)).into();
    let open = nodes.limiter.clone().failure_policy(FailurePolicy::Open);
    for how in ["without memory", "silent", "known to be silent"] {
        match how {
            "without memory" => node.command("CONFIG SET maxmemory 1").await,
            _ => node.signal("STOP"),
        }
        let all = [&nodes.limiter, &open].map(|limiter| {
            [&nodes.ip, &strict].map(|ip| limiter.check_all([(&new, "alice"), (ip, "bob")]))
        });
        for decision in join_all(all.into_iter().flatten()).await {
            assert!(!decision.unwrap().is_admitted(), "{how}");
        }
        if how == "without memory" {
            let (before, keys) = (node.call_count("evalsha").await, keys_of(&[ALICE]));
            all_at_once(HERE, &nodes.limiter, &keys).await;
            let calls = node.call_count("evalsha").await - before;
            assert!(calls < keys.len() as u64 / 2, "{calls} calls for {} checks", keys.len());
            node.command("CONFIG SET maxmemory 0").await;
        }
    }

    let _ = looks.check("alice").await;
    let logs = [(&many, "alice"), (&nodes.ip, "bob")];
    let check = Check::new(logs.map(|(policy, key)| LogId::new(policy.get(), key)));
    let looked = ours.peek(&check).await.unwrap();
    assert!(!looked.admitted, "{:?}", looked.decided_by);
    for _ in 0..2 {
        nodes.of_bob().command("CLIENT KILL TYPE normal SKIPME yes").await;
        // Until the denial in memory is over.
        sleep(Duration::from_millis(1_100)).await;
        assert!(!looks.check_all(logs).await.unwrap().is_admitted());
    }
}

/// What a process admits and cancels beside a silent node is in the log on the other one at once, for other processes. What
/// another process resets there is seen, also while this one decides about other keys without Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_beside_a_silent_node_is_that_of_all_processes() {
    let nodes = Nodes::start(1).await;
    let (limiter, many, node) = (&nodes.limiter, many(), nodes.of_alice());
    nodes.without_bob().await;
    // By now the process looks for the node every half second.
    sleep(Duration::from_secs(2)).await;
    for key in &keys_of(&[ALICE])[..4] {
        let both = nodes.check([(&nodes.user, &**key), (&many, "bob")]).await;
        assert_eq!(node.entries(&log_of(key)).await, 1);
        assert!(limiter.cancel(both.admitted().unwrap()).await.unwrap());
        assert_eq!(node.entries(&log_of(key)).await, 0);
        sleep(Duration::from_millis(130)).await;
    }
    // The log in Redis expires, and the one of the silent node has the request.
    let short = Policy::new("short").quota(Quota::new(9, Duration::from_millis(300)));
    let both = nodes.check([(&short.into(), "alice"), (&many, "bob")]).await;
    sleep(Duration::from_millis(500)).await;
    assert!(limiter.cancel(both.admitted().unwrap()).await.unwrap());

    let (others, bob) = (limiter.clone(), many.clone());
    let others = tokio::spawn(async move {
        while others.check_all([(&bob, "bob")]).await.is_ok() {
            tokio::task::yield_now().await;
        }
    });
    let theirs = self::limiter(&nodes.user, &store(nodes.cluster.servers()).await);
    for round in 0..20 {
        let beside = (round % 2 == 1).then_some((&many, "bob"));
        let decision = nodes.check([(&nodes.user, "alice")].into_iter().chain(beside)).await;
        assert!(decision.is_admitted(), "in round {round}: {:?}", decision.decided_by());
        theirs.reset("alice").await.unwrap();
    }
    others.abort();
}

/// Of three logs the second one denies, and the node of the third one has just become silent. The place in the first one is
/// free again after a round trip. All ask in the order of the keys, however they are named, so that of two requests one comes
/// first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rollback_waits_for_no_later_node() {
    let nodes = Nodes::with(1, uncached().response_timeout(Duration::from_secs(4))).await;
    let reversed = [EACH[2], EACH[1], EACH[0]];
    let of_each =
        async |policy: &PolicyHandle| nodes.check(reversed.map(|key| (policy, key))).await;
    assert_eq!(of_each(&many()).await.decided_by(), REDIS);
    assert!(admit(&nodes.limiter, EACH[1]).await);
    nodes.cluster.nodes[2].signal("STOP");
    let all = async {
        let all = of_each(&nodes.user).await;
        let denied = all.denied().expect("the second one is full");
        assert_eq!(all.decided_by(), REDIS);
        assert_eq!(denied.violated().collect::<Vec<_>>(), ["user"]);
        let read: Vec<bool> = denied.usage().logs().map(|(_, it)| it.is_read()).collect();
        assert_eq!(read, [false, true, true]);
    };
    let began = Instant::now();
    let rolled_back = async {
        let node = &nodes.cluster.nodes[0];
        eventually("it is rolled back", async || node.call_count("zrem").await > 0).await;
        began.elapsed()
    };
    let ((), took) = tokio::join!(all, rolled_back);
    assert!(took < began.elapsed() / 2, "after {took:?} of {:?}", began.elapsed());
}

/// What a node can't be told, because it is silent or refuses it, delays nothing that another node has to know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_of_a_failing_node_delay_no_write_to_another() {
    join_all([false, true].map(async |is_silent| {
        let nodes = Nodes::start(1).await;
        match is_silent {
            true => nodes.of_bob().signal("STOP"),
            false => nodes.of_bob().run(&["CONFIG", "SET", "maxmemory", "1"]).await,
        }
        let keys = (0..6_000).map(|number| format!("key-{number}"));
        for key in keys.filter(|key| Cluster::owner(&log_of(key)) == BOB) {
            assert_eq!(decided_by(&nodes.limiter, &key).await, HERE);
        }
        // By now the process tries to write every half second.
        sleep(Duration::from_secs(2)).await;
        refuse_scripts(nodes.of_alice(), true).await;
        assert_eq!(decided_by(&nodes.limiter, "alice").await, HERE);
        refuse_scripts(nodes.of_alice(), false).await;
        let began = Instant::now();
        nodes.of_alice().has_entries(LOG, 1).await;
        let took = began.elapsed();
        assert!(took < Duration::from_millis(1_500), "{took:?}, {is_silent}");
    }))
    .await;
}

/// Who is denied again and again is banned, whatever becomes of the node of the address. A request that Redis denies brings
/// another one no strike here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denials_beside_a_silent_node_are_strikes_of_their_own_keys() {
    let nodes = Nodes::start(1).await;
    let ip = many();
    assert!(admit(&nodes.limiter, "alice").await);
    nodes.without_bob().await;
    let policies = [FailurePolicy::default(), FailurePolicy::Open, FailurePolicy::Closed];
    join_all(policies.map(async |policy| {
        let user = Policy::new(format!("strict-{}", policy.to_string().to_lowercase()));
        let user = strict(user.quota(Quota::new(1, Duration::from_millis(500))), "2/10m:1h");
        let limiter = limiter(&user, &nodes.store).failure_policy(policy);
        for _ in 0..2 {
            assert!(admit(&limiter, "alice").await);
            // The log is full, as Redis says.
            let both = limiter.check_all([(&user, "alice"), (&ip, "bob")]).await.unwrap();
            assert!(!both.is_admitted(), "{policy}");
            sleep(Duration::from_millis(550)).await;
        }
        assert!(banned_for(&limiter, "alice").await.is_some(), "{policy}");
    }))
    .await;

    let strict = strict(Policy::new("strict").quota(Quota::per_hour(1)), "1/10m:1h");
    pause(nodes.of_alice(), 200).await;
    let alone = async {
        sleep(Duration::from_millis(100)).await;
        nodes.check([(&strict, "bob")]).await
    };
    let both = nodes.check([(&nodes.user, "alice"), (&strict, "bob")]);
    let (both, alone) = tokio::join!(both, alone);
    assert!(!both.is_admitted(), "alice is full");
    assert!(alone.is_admitted(), "{:?}", alone.usage().banned_for());
}

/// What Redis denies beside a silent node is not admitted here first, and leaves nothing in the journal. A key that is denied
/// again and again costs Redis the checks of one round trip a second, also then. A check whose keys are on two silent nodes
/// is one that Redis did not decide.
#[tokio::test]
async fn denials_beside_a_silent_node_cost_little() {
    let (recorded, _recorder) = RecordedMetrics::listen();
    let nodes = Nodes::with(1, RedisStore::builder()).await;
    let few = uncached().local_capacity(100).connect(nodes.cluster.servers()).await.unwrap();
    let (few, many) = (limiter(&nodes.user, &few), many());
    assert!(admit(&nodes.limiter, "alice").await);
    nodes.without_bob().await;
    for _ in 0..200 {
        let both = few.check_all([(&nodes.user, "alice"), (&many, "bob")]).await.unwrap();
        assert!(!both.is_admitted(), "alice is full, as Redis says");
    }
    let bob = few.check_all([(&many, "bob")]).await;
    assert!(bob.is_ok_and(|it| it.is_admitted()), "no request of his was admitted");
    let node = nodes.of_alice();
    let (before, began) = (node.call_count("evalsha").await, Instant::now());
    for _ in 0..200 {
        assert!(!nodes.both().await.is_admitted());
        // Denied by the log of this process.
        let both = nodes.check([(&many, "alice"), (&nodes.ip, "bob")]).await;
        assert!(!both.is_admitted());
    }
    let (calls, took) = (node.call_count("evalsha").await - before, began.elapsed());
    assert!(calls <= 5 + 3 * took.as_secs(), "{calls} calls in {took:?}");
    node.signal("STOP");
    assert_eq!(nodes.check([(&many, "alice")]).await.decided_by(), HERE);
    let errors = || recorded.count("sliding_window_store_errors_total{kind=unavailable}");
    let before = errors();
    assert!(nodes.check([(&many, "alice"), (&many, "bob")]).await.is_admitted());
    assert_eq!(errors() - before, 1);
}

/// Nor do they deny others, or bring them a strike. The journal has room for few cancellations.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_beside_a_silent_node_take_no_place() {
    let nodes = Nodes::start(1).await;
    nodes.without_bob().await;
    let node = nodes.of_alice();
    let mut admitted = [1; 6];
    for (number, admitted) in admitted.iter_mut().enumerate() {
        let policies = [FailurePolicy::Closed, FailurePolicy::Open, FailurePolicy::default()];
        let policy = policies[number / 2];
        let [user, ip] = ["user", "ip"].map(|name| Policy::new(format!("{name}-{number}")));
        let [user, ip] = [user, ip].map(|it| PolicyHandle::new(it.quota(Quota::per_hour(9_999))));
        let store = uncached().local_capacity(40).connect(nodes.cluster.servers()).await.unwrap();
        let limiter = limiter(&user, &store).failure_policy(policy);
        let mut logs = [(&ip, "bob"), (&user, "alice")];
        logs.rotate_left(number % 2);
        // So that it knows of the silence.
        let _ = limiter.check_all(logs).await;
        let before = node.call_count("zadd").await;
        for _ in 0..90 {
            let decision = limiter.check_all(logs).await;
            *admitted += usize::from(decision.is_ok_and(|it| verdict(&it) == (true, HERE)));
        }
        if policy != FailurePolicy::default() {
            let held = node.call_count("zadd").await - before;
            assert_eq!(held, 0, "{policy}: none was held for a while");
        }
    }
    sleep(Duration::from_millis(500)).await;
    for (number, admitted) in admitted.into_iter().enumerate() {
        let places = node.entries(&format!("tsw:{{=alice}}:user-{number}:1h")).await;
        assert!(places <= admitted, "{number}: {places} places, {admitted} admitted");
    }
}

/// A node is silent, and another one denies, as a look says. Before it is asked, so that the denial is a strike, another process
/// has reset its log. The reply is lost or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_that_was_looked_at_keeps_no_place() {
    join_all([true, false].map(async |is_lost| {
        // Long enough that a busy machine resets in between.
        let builder = uncached().response_timeout(Duration::from_secs(2));
        let (mut nodes, proxy) = Nodes::with_a_way(1, builder).await;
        nodes.limiter = nodes.limiter.failure_policy(FailurePolicy::Open);
        let node = nodes.of_alice();
        assert!(admit(&nodes.limiter, "alice").await);
        nodes.of_bob().signal("STOP");
        assert_eq!(decided_by(&nodes.limiter, "bob").await, DecidedBy::FailurePolicy);
        proxy.set(Fault::Delay(Duration::from_secs(1)));
        let before = node.call_count("evalsha").await;
        let reset = async {
            eventually("it is looked at", async || node.call_count("evalsha").await > before).await;
            node.run::<u64>(&["DEL", LOG]).await;
            proxy.drop_replies_to(LOG, if is_lost { 2 } else { 0 });
        };
        let both = nodes.check([(&nodes.user, "bob"), (&nodes.user, "alice")]);
        let (both, ()) = tokio::join!(both, reset);
        let by = if is_lost { REDIS } else { DecidedBy::FailurePolicy };
        assert_eq!(verdict(&both), (!is_lost, by));
        assert_eq!(node.call_count("zadd").await, 2, "it had the request");
        proxy.set(Fault::None);
        node.has_entries(LOG, 0).await;
    }))
    .await;
}

async fn has_no_log(cluster: &Cluster) {
    for node in &cluster.nodes {
        assert_eq!(node.keys().await, [""; 0]);
    }
}

/// A node is gone, and its address is that of a node of another Cluster, which refuses its keys, or serves them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn address_that_goes_to_another_cluster_takes_no_key_along() {
    let ((ours, proxy), theirs) =
        tokio::join!(Nodes::with_a_way(1_000_000, uncached()), Cluster::start());
    let Nodes { cluster: mut ours, limiter, .. } = ours;
    let others = keys_of(&[0, BOB]);
    decides(REDIS, &limiter, &keys_of(&[0, ALICE, BOB])).await;
    for node in &theirs.nodes[..2] {
        proxy.lead_to(node.port());
        ours.nodes[ALICE].kill();
        for _ in 0..8 {
            decides(HERE, &limiter, &["alice"]).await;
            decides(REDIS, &limiter, &others).await;
            sleep(Duration::from_millis(200)).await;
        }
    }
    has_no_log(&theirs).await;
    ours.nodes[ALICE].start_again();
    proxy.lead_to(ours.nodes[ALICE].port());
    until_redis_decides_about("alice", &limiter).await;
}

/// Of two servers that were named one is that of another Cluster by now, which is not believed while ours serves nobody. When
/// none of ours is there any more, it has taken their place.
#[tokio::test]
async fn named_server_of_another_cluster_is_not_believed() {
    let warnings = Warnings::listen();
    let (mut ours, theirs) = tokio::join!(Cluster::with_replicas(0), Cluster::start());
    let proxy = Proxy::to(ours.nodes[0].port()).await;
    let servers = RedisServers::cluster([ours.nodes[0].url(), proxy.url()]).unwrap();
    let limiter = limiter(user(1_000_000), &store(servers).await);
    assert!(admit(&limiter, "alice").await);
    proxy.lead_to(theirs.nodes[0].port());
    ours.nodes[2].kill();
    let is_here = async || decided_by(&limiter, "alice").await == HERE;
    eventually("ours is down", is_here).await;
    for _ in 0..30 {
        assert!(is_here().await);
        sleep(Duration::from_millis(100)).await;
    }
    ours.nodes[2].start_again();
    until_redis_decides_about("alice", &limiter).await;
    has_no_log(&theirs).await;
    assert!(warnings.lines().iter().any(|line| line.contains("of another Redis Cluster")));
    ours.nodes.iter_mut().for_each(Redis::kill);
    until_redis_decides_about("alice", &limiter).await;
    assert_eq!(theirs.node_of(LOG).keys().await, [LOG]);
}
