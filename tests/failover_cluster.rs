//! What becomes of windows when a node of a Cluster fails while nobody asks it anything.

#[path = "support/cluster.rs"]
mod cluster;
#[path = "support/redis_process.rs"]
mod redis_process;

use cluster::Cluster;
use tokio::time::{Duration, sleep};
use tower_sliding_window::{Limiter, Policy, Quota, RedisStore};

/// The connection to the node breaks and is made again without a request that fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_has_lost_its_memory_unnoticed_admits_nobody_too_often() {
    let mut cluster = Cluster::start().await;
    let builder = RedisStore::builder().deny_cache(false);
    let store = builder.connect(cluster.servers()).await.unwrap();
    let limiter = Limiter::new(Policy::new("user").quota(Quota::per_hour(5)), store);
    let (_, owner) = cluster.slot("tsw:{=alice}:user").await;
    for _ in 0..5 {
        assert!(limiter.check("alice").await.unwrap().is_admitted());
    }
    let owner = &mut cluster.nodes[owner];
    owner.kill();
    owner.start_again();
    owner.answers().await;
    // Until the other nodes, and the client, have found it again.
    sleep(Duration::from_secs(4)).await;
    for _ in 0..5 {
        assert!(!limiter.check("alice").await.unwrap().is_admitted());
    }
}
