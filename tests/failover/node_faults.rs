//! What happens to requests when one of several Redis servers fails: one test a fault, under load
//! before, during and after it.

use test_support::fault::Fault;

use crate::*;

fn log_of(user: usize) -> String {
    format!("tsw:{{=user-{user}}}:user:2s")
}

/// Two processes as one: each has connections, windows and a journal of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_instances_lose_their_redis() {
    let mut redis = Redis::start().await;
    let start = async || Load::start(store(redis.url()).await, FailurePolicy::local(2));
    let loads = [start().await, start().await];
    loads[0].until_decided_by(DecidedBy::Store).await;
    sleep(WINDOW / 4).await;
    let began = Instant::now();
    redis.kill();
    let fault = Fault {
        over_admission: LIMIT as usize - 1,
        ..Fault::new("two_instances_lose_their_redis")
    };
    fault.ends(loads, began, async || redis.restart().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_names_another_master() {
    let watched = Mutex::new(Sentinels::with_replicas(1).await);
    let store = store(watched.lock().await.servers()).await;
    let fault = Fault::new("sentinel_names_another_master");
    let kill = async || watched.lock().await.master.kill();
    let promoted =
        async || watched.lock().await.replicas[0].says("replication", "role:master").await;
    fault.strikes(store, kill, promoted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_primary_is_killed() {
    let cluster = Mutex::new(Cluster::with_replicas(1).await);
    let store = store(cluster.lock().await.servers()).await;
    let fault = Fault::new("cluster_primary_is_killed");
    let kill = async || cluster.lock().await.nodes[1].kill();
    let promoted = async || {
        let cluster = cluster.lock().await;
        cluster.nodes[4].says("replication", "role:master").await;
        cluster.serves_every_slot(&[0, 2, 4]).await;
    };
    fault.strikes(store, kill, promoted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_primary_hangs() {
    let cluster = Cluster::start().await;
    let store = store(cluster.servers()).await;
    let fault = Fault::new("cluster_primary_hangs");
    let load = Load::through(by_user(user_policy(), store));
    load.until_decided_by(DecidedBy::Store).await;
    let began = Instant::now();
    cluster.nodes[1].signal("STOP");
    let go_on = async || {
        sleep(WINDOW * 7 / 4).await;
        cluster.nodes[1].signal("CONT");
    };
    let answers = fault.ends([load], began, go_on).await;
    answers
        .those(|it| it.user < USERS && Cluster::owner(&log_of(it.user)) != 1)
        .decided_by_the_store_since(began);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_loses_its_majority() {
    let cluster = Mutex::new(Cluster::with_replicas(0).await);
    let store = store(cluster.lock().await.servers()).await;
    let fault = Fault::new("cluster_loses_its_majority");
    let kill = async || {
        let mut cluster = cluster.lock().await;
        cluster.nodes[0].kill();
        cluster.nodes[1].kill();
    };
    let again = async || {
        let mut cluster = cluster.lock().await;
        cluster.nodes[0].start_again();
        cluster.nodes[1].start_again();
        for node in &cluster.nodes {
            node.ready().await;
        }
        cluster.serves_every_slot(&[0, 1, 2]).await;
    };
    fault.strikes(store, kill, again).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_move_from_node_to_node() {
    let cluster = Cluster::start().await;
    // Two windows of one key, so that a slot is half here and half there while it moves.
    let second = Policy::new("second").quota(Quota::new(1000, WINDOW));
    let layer = by_user(user_policy(), store(cluster.servers()).await);
    let load = Load::through(layer.rule(second, key::header("x-user-id")));
    load.until_decided_by(DecidedBy::Store).await;
    sleep(WINDOW / 4).await;
    let began = Instant::now();
    let move_slots = async || {
        let mut rounds = 0;
        while began.elapsed() < WINDOW * 2 {
            for user in 0..USERS {
                let (slot, from) = (Cluster::slot(&log_of(user)), Cluster::owner(&log_of(user)));
                cluster.move_slot(slot, (from + rounds) % 3, (from + rounds + 1) % 3).await;
            }
            rounds += 1;
        }
        println!("each slot moved {rounds} times");
    };
    let fault = Fault { decided_here: false, ..Fault::new("slots_move_from_node_to_node") };
    let answers = fault.ends([load], began, move_slots).await;
    let during = answers.between(began, began + WINDOW * 2);
    assert!(during.count(|it| it.decided_by == Some(DecidedBy::Store)) > USERS);
}
