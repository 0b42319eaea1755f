//! Orders on a master that is killed: what was answered with 201 is on a replica.

use std::sync::Mutex;
use std::time::Duration;

use test_support::proxy::{Fault, Proxy};
use test_support::server_process::Server;
use test_support::{Redis, eventually};

use crate::{alone, stop};

/// How far a replica is behind its master: far enough to lose an order that is not waited for.
const LAG: Duration = Duration::from_millis(20);

/// A master, its replica some way off, and a server.
struct Shop {
    master: Redis,
    replica: Redis,
    way: Proxy,
    server: Server,
}

impl Shop {
    async fn open(replicas: &str) -> Self {
        // Without pauses and files, so that each round is short.
        let immediate = ["--repl-diskless-sync-delay", "0", "--repl-diskless-load", "swapdb"];
        let master = Redis::start_with(&immediate).await;
        let way = Proxy::to(master.port()).await;
        let replica = Redis::start_with(&immediate).await;
        follow(&replica, &way).await;
        let flags = ["--redis", &master.url(), "--response-timeout", "10s", "--ip-quota", "off"];
        let server = alone(&[&flags[..], &["--min-replicas", replicas]].concat());
        way.set(Fault::Delay(LAG));
        Self { master, replica, way, server }
    }

    /// Sells one piece, kills the master at once, and tells whether the replica has the order.
    async fn sell_and_kill(&mut self, user: &str) -> bool {
        let placed = Mutex::new(None);
        let place = async || {
            let answer = self.server.order("iphone", user).await;
            // A 409 says too that the order stands, after a 503 that could not.
            assert!([201, 409, 503].contains(&answer.status.as_u16()), "{answer:?}");
            let is_placed = answer.status != 503;
            *placed.lock().unwrap() = is_placed.then_some(answer);
            is_placed
        };
        eventually("an order is placed", place).await;
        self.master.kill();
        let placed = placed.into_inner().unwrap().unwrap().json();
        let (_, uuid) = placed["order_id"].as_str().unwrap().rsplit_once('.').unwrap();
        self.replica.run::<bool>(&["HEXISTS", "seckill:{iphone}:orders", uuid]).await
    }

    /// Starts the master again, empty, and sets the stock anew as an operator would.
    async fn recover(&mut self) {
        self.master.restart().await;
        self.master.run::<()>(&["SET", "seckill:{iphone}:stock", "100"]).await;
        self.way.set(Fault::None);
        follow(&self.replica, &self.way).await;
        self.way.set(Fault::Delay(LAG));
    }
}

/// Makes a replica follow the master at the end of the way.
async fn follow(replica: &Redis, way: &Proxy) {
    replica.run::<()>(&["REPLICAOF", "127.0.0.1", &way.port().to_string()]).await;
    let is_up = async || {
        let info: String = replica.run(&["INFO", "replication"]).await;
        info.contains("master_link_status:up")
    };
    eventually("the replica follows", is_up).await;
}

// The proxy has a thread of its own, also while the test waits for a process.
#[tokio::test(flavor = "multi_thread")]
async fn order_answered_with_201_outlives_its_master() {
    let mut shop = Shop::open("1").await;
    for round in 0..25 {
        assert!(shop.sell_and_kill(&format!("user-{round}")).await, "round {round}: lost");
        shop.recover().await;
    }
}

#[tokio::test]
async fn order_that_no_replica_confirms_is_a_503() {
    let redis = Redis::start().await;
    let flags = ["--redis", &redis.url(), "--min-replicas", "1", "--response-timeout", "1s"];
    let server = alone(&[&flags[..], &["--quota", "999/60s"]].concat());
    for _ in 0..2 {
        assert_eq!(server.order("iphone", "alice").await.problem(503), "/problems/not-replicated");
    }
    assert_eq!(redis.run::<usize>(&["HLEN", "seckill:{iphone}:orders"]).await, 1, "one order");
    // The order of the first try, once a replica has it.
    let port = redis.port().to_string();
    let _replica = Redis::start_with(&["--replicaof", "127.0.0.1", &port]).await;
    let is_known = async || server.order("iphone", "alice").await.status == 409;
    eventually("the replica confirms it", is_known).await;
    let logs = stop(server);
    assert!(logs.contains("too few replicas"), "{logs}");
}

#[tokio::test(flavor = "multi_thread")]
async fn order_of_another_connection_is_waited_for() {
    let shop = Shop::open("1").await;
    let place = include_str!("../../src/place_order.lua");
    let keys = ["stock", "buyers", "orders"].map(|what| format!("seckill:{{iphone}}:{what}"));
    let [stock, buyers, orders] = keys.each_ref().map(|key| &key[..]);
    let uuid = "00000000-0000-4000-8000-000000000001";
    let eval = ["EVAL", place, "3", stock, buyers, orders, "alice", uuid];
    shop.master.run::<(i64, String)>(&eval).await;
    let answer = shop.server.order("iphone", "alice").await;
    assert_eq!(answer.problem(409), "/problems/already-ordered");
    assert!(shop.replica.run::<bool>(&["HEXISTS", orders, uuid]).await, "a 409 holds too");
}
