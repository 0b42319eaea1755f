//! Orders and the replicas of Redis: what is answered with 201 or 409 is on a replica, whatever happens to
//! the master then.

use test_support::Sentinels;
use tokio::time::timeout;

use crate::script::sale;
use crate::*;

const UUID: &str = "00000000-0000-4000-8000-000000000001";
/// How far a replica is behind its master: far enough to lose an order that is not waited for.
const LAG: Duration = Duration::from_millis(20);

/// Starts a replica some way off.
async fn replica_of(master: &Redis) -> (Redis, Proxy) {
    let (replica, way) = (Redis::start().await, Proxy::to(master.port()).await);
    replica.run::<()>(&["REPLICAOF", "127.0.0.1", &way.port().to_string()]).await;
    replica.says("replication", "master_link_status:up").await;
    way.set(Fault::Delay(LAG));
    (replica, way)
}

/// Has two servers change places.
async fn fail_over(from: &Redis, to: &Redis) {
    to.command("REPLICAOF NO ONE").await;
    from.run::<()>(&["REPLICAOF", "127.0.0.1", &to.port().to_string()]).await;
    from.says("replication", "master_link_status:up").await;
}

fn waiting_for(url: &str, replicas: u32, more: &str) -> Server {
    let waits = format!("--min-replicas {replicas} --response-timeout 2s");
    alone(&format!("{FREE} --redis {url} {waits} {more}"))
}

/// Waits until a user has an order. One with a 503 may stand.
async fn until_placed(server: &Server, user: &str) {
    let status = async || server.order("iphone", user).await.status.as_u16();
    eventually("it is placed", async || [201, 409].contains(&status().await)).await;
}

// The proxy has a thread of its own, also while the test waits for a process.
#[tokio::test(flavor = "multi_thread")]
async fn a_201_a_202_and_a_409_are_on_a_replica() {
    let master = Redis::start().await;
    let (replica, _way) = replica_of(&master).await;
    let server = waiting_for(&master.url(), 1, "");
    let orders = "seckill:{iphone}:orders";
    for round in 0..25 {
        let answer = server.order("iphone", &format!("user-{round}")).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        let (_, uuid) = answer.header("location").unwrap().rsplit_once('.').unwrap();
        assert!(replica.run::<bool>(&["HEXISTS", orders, uuid]).await, "round {round}: lost");
    }
    // An order or an entry of another connection is waited for too.
    sale(&master, "seckill:{iphone}", &format!("order - 0 60000000 alice {UUID}")).await;
    let answer = server.order("iphone", "alice").await;
    assert_eq!(answer.problem(409), "/problems/already-ordered");
    assert!(replica.run::<bool>(&["HEXISTS", orders, UUID]).await, "a 409 holds too");
    let drawn = waiting_for(&master.url(), 1, "--prefix drawn --opens-in 1h");
    sale(&master, "drawn:{iphone}", "enter 8000000000000000 0 0 alice 1").await;
    assert_eq!(enter(&drawn, "alice").await.status, 202);
    assert_eq!(replica.run::<usize>(&["ZCARD", "drawn:{iphone}:line"]).await, 1, "a 202 too");
}

/// Calls wait for the replica together, and not one behind the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_is_served_with_a_replica_some_way_off() {
    let master = Redis::start().await;
    let (_replica, way) = replica_of(&master).await;
    let server = waiting_for(&master.url(), 1, "--stock iphone=100");
    let answers = rush(std::slice::from_ref(&server), 200).await;
    assert_eq!((count(&answers, 201), count(&answers, 410)), (100, 100), "{:?}", answers.last());
    // It replies once a second.
    for _ in 0..20 {
        assert_eq!(server.get("/readyz").await.status, 200);
        sleep(Duration::from_millis(100)).await;
    }
    way.set(Fault::Stall);
    // Who gets nothing loses nothing in a failover, and does not wait for it.
    for user in ["bob", "carol", "dave"] {
        server.order("iphone", user).await.problem(410);
    }
    let hangs = eventually("it hangs", async || server.get("/readyz").await.status == 503);
    timeout(Duration::from_secs(6), hangs).await.expect("within four seconds");
}

/// There a replica may take the place of a master.
#[tokio::test]
async fn a_replica_is_waited_for_behind_sentinels_and_on_a_cluster() {
    let (cluster, watched) = tokio::join!(Cluster::start(), Sentinels::with_replicas(0));
    let [nodes, sentinels] = [cluster.urls(), watched.urls()].map(|urls| urls.join(","));
    for redis in [nodes, format!("{sentinels} --sentinel-master {MASTER}")] {
        let server = alone(&format!("--redis {redis} --response-timeout 2s"));
        let order = server.order("iphone", "bob").await;
        assert_eq!(order.problem(503), "/problems/not-replicated", "{redis}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn order_that_no_replica_confirms_is_a_503() {
    let redis = Redis::start().await;
    // No more rights than SECURITY.md gives.
    let url = make_user(&redis, May::RunThePrograms).await;
    let server = waiting_for(&url, 1, "--prefix limiter");
    for _ in 0..2 {
        let answer = server.order("iphone", "alice").await;
        assert_eq!(answer.problem(503), "/problems/not-replicated");
        assert!(answer.json()["detail"].as_str().unwrap().starts_with("It may stand."));
    }
    let is_told = async || server.get("/readyz").await.body.contains("0 of 1 replicas");
    eventually("it is not ready", is_told).await;
    let [uuid]: [String; 1] = redis.run(&["HKEYS", "limiter:{iphone}:orders"]).await;
    // Payments and entries are not safe either.
    let paid = pay(&server, &json!({ "order_id": format!("iphone.{uuid}") }), "1").await;
    assert_eq!(paid.problem(503), "/problems/not-replicated");
    // Another master may have the order.
    let unknown = json!({ "order_id": NO_ORDER });
    assert_eq!(pay(&server, &unknown, "2").await.problem(503), "/problems/not-replicated");
    let drawn = waiting_for(&redis.url(), 1, &format!("{ADMIN} --opens-in 1h --prefix drawn"));
    assert_eq!(enter(&drawn, "alice").await.problem(503), "/problems/not-replicated");
    let counted = &live(&drawn).await["orders"][5];
    assert_eq!(counted, &json!(["unavailable", 1]), "the operator sees it");
    nothing_was_refused(&redis).await;
    // Looks wait behind none of the orders of a crowd, and who has a 503 does not buy long after it.
    let crowded = waiting_for(&redis.url(), 1, "--stock iphone=9999");
    let answers = rush(std::slice::from_ref(&crowded), 1200).await;
    assert_eq!(count(&answers, 503), 1200);
    for _ in 0..10 {
        assert_eq!(crowded.get("/seckill/iphone").await.status, 200);
        sleep(Duration::from_millis(100)).await;
    }
    let sold = async || redis.run::<usize>(&["HLEN", "seckill:{iphone}:orders"]).await;
    let before = sold().await;
    sleep(Duration::from_secs(4)).await;
    assert_eq!(sold().await, before);
    let _replica = redis.start_replica().await;
    // The order of the first try, once a replica has it.
    let is_known = async || server.order("iphone", "alice").await.status == 409;
    eventually("the replica confirms it", is_known).await;
    until_ready(&server).await;
    assert!(server.stop().contains("0 of 1 replicas have it"));
}

/// Redis 8 says of a call that has written nothing that all replicas have it.
#[tokio::test(flavor = "multi_thread")]
async fn a_failover_that_loses_no_answer_is_no_loss() {
    let master = Redis::start().await;
    let (replica, way) = replica_of(&master).await;
    let servers = [(); 2].map(|()| waiting_for(&master.url(), 1, "--stock iphone=2"));
    assert_eq!(servers[0].order("iphone", "alice").await.status, 201);
    let drawn = waiting_for(&master.url(), 1, &format!("{OPEN_DRAW} --prefix drawn"));
    let paid = order_at_turn(&drawn, "alice").await.json();
    assert_eq!(pay(&drawn, &paid, "1").await.status, 200);
    way.set(Fault::Stall);
    // Orders that the master alone has: one that makes the other server refuse another, and one before an entry of who
    // has paid.
    let bob = servers[1].order("iphone", "bob").await;
    assert_eq!(bob.problem(503), "/problems/not-replicated");
    servers[0].order("iphone", "carol").await;
    sale(&master, "drawn:{iphone}", &format!("order - 0 60000000 bob {UUID}")).await;
    enter(&drawn, "alice").await;
    fail_over(&master, &replica).await;
    fail_over(&replica, &master).await;
    for prefix in ["seckill", "drawn"] {
        let orders: usize = master.run(&["HLEN", &format!("{prefix}:{{iphone}}:orders")]).await;
        assert_eq!(orders, 1, "the only one that was answered with 201");
    }
    for (server, user) in [(0, "dave"), (1, "erin")] {
        let order = async || servers[server].order("iphone", user).await.status.as_u16();
        let expected = [201, 410][server];
        eventually("the sale goes on", async || order().await == expected).await;
    }
    until_ready(&drawn).await;
    let stock = ["MGET", "seckill:{iphone}:stock", "drawn:{iphone}:stock"];
    assert_eq!(master.run::<[String; 2]>(&stock).await, ["2", "100"]);
}

/// A name stands for another server. The old master has lost its replica and takes no writes, but ends no connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_failover_behind_a_name_is_followed() {
    let master = Redis::start().await;
    let (replica, _way) = replica_of(&master).await;
    let _further = replica.start_replica().await;
    let name = Proxy::to(master.port()).await;
    let server = waiting_for(&name.url(), 1, "");
    assert_eq!(server.order("iphone", "alice").await.status, 201);
    until_ready(&server).await;
    replica.command("REPLICAOF NO ONE").await;
    master.command("CONFIG SET min-replicas-to-write 1").await;
    name.lead_to(replica.port());
    // Only the new one has an order of bob.
    let sells = async || {
        let bob = server.order("iphone", "bob").await.status;
        bob == 409 && server.get("/readyz").await.status == 200
    };
    eventually("it is followed", sells).await;
}

#[tokio::test]
async fn a_failover_of_a_live_master_loses_no_201() {
    loses_no_201(false).await;
}

#[tokio::test]
async fn a_failover_of_a_master_that_hangs_loses_no_201() {
    loses_no_201(true).await;
}

/// Until the other replica follows the new master, it confirms what the old one writes.
async fn loses_no_201(hangs: bool) {
    let watched = Sentinels::with_replicas(2).await;
    let redis = format!("--redis {} --sentinel-master {MASTER}", watched.urls().join(","));
    let server = alone(&format!("{FREE} {redis} --response-timeout 2s --stock iphone=9999"));
    assert_eq!(server.order("iphone", "alice").await.status, 201);
    let (old, sentinel) = (watched.master.port(), &watched.sentinels[0].server);
    let port = async || {
        let named = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER];
        sentinel.run::<(String, u16)>(&named).await.1
    };
    if hangs {
        watched.master.signal("STOP");
        eventually("one takes over", async || port().await != old).await;
        watched.master.signal("CONT");
    } else {
        sentinel.run::<()>(&["SENTINEL", "FAILOVER", MASTER]).await;
    }
    let mut sold = vec!["alice".to_owned()];
    let mut users = (0..6000).map(|number| format!("user-{number}"));
    while users.len() > 5400 || sold.len() == 1 {
        let user = users.next().expect("an order has a 201");
        match server.order("iphone", &user).await.status.as_u16() {
            201 => sold.push(user),
            status => assert_eq!(status, 503, "the quotas still hold"),
        }
        sleep(Duration::from_millis(10)).await;
    }
    until_ready(&server).await;
    // The new master is followed, and has what the old one had.
    until_placed(&server, "zoe").await;
    sold.push("zoe".to_owned());
    let new = port().await;
    let master = watched.replicas.iter().find(|it| it.port() == new).expect("one is new");
    let kept: Vec<String> = master.run(&["HKEYS", "seckill:{iphone}:buyers"]).await;
    let lost: Vec<_> = sold.iter().filter(|user| !kept.contains(user)).collect();
    assert!(lost.is_empty(), "{hangs}: of {} orders with a 201: {lost:?}", sold.len());
}

/// The server knows what is sold from its looks alone, as one does that was restarted.
#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_comes_back_older_sells_nothing_again() {
    let mut master = Redis::start().await;
    let before = waiting_for(&master.url(), 0, "--stock iphone=2");
    master.command("SAVE").await;
    drop(before);
    let _replicas = [master.start_replica().await, master.start_replica().await];
    let seller = waiting_for(&master.url(), 2, "--stock iphone=2");
    for user in ["alice", "bob"] {
        until_placed(&seller, user).await;
    }
    seller.stop();
    let server = waiting_for(&master.url(), 2, "--stock iphone=2");
    eventually("it knows", async || level(&server).await["sold"] == 2).await;
    until_ready(&server).await;
    // Replicas confirm once a second.
    sleep(Duration::from_secs(2)).await;
    // Before anything has taken its place.
    master.restart().await;
    let is_seen = async || {
        let carol = server.order("iphone", "carol").await;
        assert!(matches!(carol.status.as_u16(), 410 | 503), "a piece is sold twice: {carol:?}");
        carol.body.contains("stock-lost")
    };
    eventually("the loss is seen", is_seen).await;
}

/// A change does not look at the seed of the draw.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_draw_stays_lost_while_payments_are_confirmed() {
    let master = Redis::start().await;
    let _replica = master.start_replica().await;
    let server = waiting_for(&master.url(), 1, OPEN_DRAW);
    until_ready(&server).await;
    let placed = order_at_turn(&server, "alice").await.json();
    master.command(&format!("SET seckill:{{iphone}}:draw {}", "00".repeat(32))).await;
    let is_lost = async || server.get("/seckill/iphone").await.status == 503;
    eventually("the loss is seen", is_lost).await;
    for _ in 0..20 {
        assert_eq!(pay(&server, &placed, "1").await.status, 200);
        assert_eq!(server.get("/seckill/iphone").await.problem(503), "/problems/stock-lost");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_of_another_master_confirm_no_order() {
    only_one_follows(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_without_replicas_confirms_no_order_of_another() {
    only_one_follows(false).await;
}

/// One of two connections leads to the new master already, and the other to the old one, which lives on: that of the orders,
/// which it will lose, or what asks for the replicas.
async fn only_one_follows(orders_stay: bool) {
    let master = Redis::start().await;
    let replica = master.start_replica().await;
    let _further = replica.start_replica().await;
    let name = Proxy::to(master.port()).await;
    let server = waiting_for(&name.url(), 1, "");
    let order = server.order("iphone", "alice").await.json();
    until_ready(&server).await;
    // The store looks for its mark once a second, which ends with the same command.
    let mut clients = String::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    while clients.matches(" cmd=info ").count() != 1 {
        assert!(Instant::now() < deadline, "one asks");
        clients = master.run(&["CLIENT", "LIST", "TYPE", "normal"]).await;
    }
    replica.command("REPLICAOF NO ONE").await;
    name.lead_to(replica.port());
    for client in clients.lines().filter(|it| it.contains(" cmd=info ") == orders_stay) {
        let id = client.split(' ').next().unwrap().strip_prefix("id=").unwrap();
        let kill = ["CLIENT", "KILL", "ID", id, "SKIPME", "yes"];
        let _ = master.run::<redis::Value>(&kill).await;
    }
    if orders_stay {
        for _ in 0..5 {
            // Unlike an order, it asks no limiter, which would find the old master out.
            let paid = pay(&server, &order, "1").await;
            assert_eq!(paid.problem(503), "/problems/not-replicated");
        }
        master.command("CLIENT KILL TYPE normal").await;
    }
    let is_paid = async || pay(&server, &order, "1").await.status == 200;
    eventually("all lead to the new one", is_paid).await;
}

#[tokio::test]
async fn orders_follow_a_slot_that_has_moved() {
    let cluster = Cluster::with_replicas(1).await;
    let stock = "seckill:{iphone}:stock";
    let (slot, owner) = (Cluster::slot(stock), Cluster::owner(stock));
    let server = waiting_for(&cluster.urls()[..3].join(","), 1, "");
    for round in 0..6 {
        assert_eq!(server.order("iphone", &format!("before-{round}")).await.status, 201);
        cluster.move_slot(slot, (owner + round) % 3, (owner + round + 1) % 3).await;
        let answer = server.order("iphone", &format!("after-{round}")).await;
        assert_eq!(answer.status, 201, "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_503_of_what_redis_has_refused_says_whether_it_may_stand() {
    let master = Redis::start().await;
    let (_replica, _way) = replica_of(&master).await;
    for replicas in [0, 1] {
        let prefix = format!("shop-{replicas}");
        let server = waiting_for(&master.url(), replicas, &format!("--prefix {prefix}"));
        let order = server.order("iphone", "alice").await.json();
        for (key, wrong) in [("maxmemory", "1"), ("min-replicas-to-write", "2")] {
            master.command(&format!("CONFIG SET {key} {wrong}")).await;
            let refused = [server.order("iphone", "bob").await, pay(&server, &order, "1").await];
            master.command(&format!("CONFIG SET {key} 0")).await;
            for refused in refused {
                refused.problem(503);
                assert_eq!(refused.json()["detail"], "Nothing was changed.", "{replicas}, {key}");
            }
            let buyers = format!("{prefix}:{{iphone}}:buyers");
            assert!(!master.run::<bool>(&["HEXISTS", &buyers, "bob"]).await);
            until_ready(&server).await;
        }
        // The server can't tell how far the script has come.
        master.command("ACL SETUSER default -hset").await;
        let refused = server.order("iphone", "bob").await;
        master.command("ACL SETUSER default +hset").await;
        refused.problem(503);
        assert!(refused.json()["detail"].as_str().unwrap().starts_with("It may stand."));
    }
}
