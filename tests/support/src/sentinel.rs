//! A master, its replica and three Sentinels that watch them.

use std::time::Duration;

use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::Redis;

/// What the master is called.
pub const MASTER: &str = "shop";

/// A master that is replaced when it fails.
pub struct Sentinels {
    /// The master at the start.
    pub master: Redis,
    /// Its replica.
    pub replica: Redis,
    sentinels: Vec<Sentinel>,
}

struct Sentinel {
    server: Redis,
    _config: TempDir,
}

impl Sentinels {
    /// Starts all of them, and waits until the Sentinels know each other and the replica.
    pub async fn start() -> Self {
        let master = Redis::start().await;
        let port = master.port().to_string();
        let replica = Redis::start_with(&["--replicaof", "127.0.0.1", &port]).await;
        let mut sentinels = Vec::new();
        for _ in 0..3 {
            sentinels.push(Sentinel::start(master.port()).await);
        }
        let all = Self { master, replica, sentinels };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !all.know_each_other().await {
            assert!(Instant::now() < deadline, "the Sentinels do not find each other");
            sleep(Duration::from_millis(50)).await;
        }
        all
    }

    async fn know_each_other(&self) -> bool {
        let replication: String = self.replica.run(&["INFO", "replication"]).await;
        let mut known = replication.contains("master_link_status:up");
        for sentinel in &self.sentinels {
            let info: String = sentinel.server.run(&["INFO", "sentinel"]).await;
            known &= info.contains("slaves=1,sentinels=3");
        }
        known
    }

    /// Returns the Sentinels' URLs.
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(|sentinel| sentinel.server.url()).collect()
    }
}

impl Sentinel {
    async fn start(master: u16) -> Self {
        let config = tempfile::tempdir().unwrap();
        let path = config.path().join("sentinel.conf");
        let settings = format!(
            "sentinel monitor {MASTER} 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds {MASTER} 500\n\
             sentinel failover-timeout {MASTER} 5000\n"
        );
        std::fs::write(&path, settings).unwrap();
        let server = Redis::start_with(&[path.to_str().unwrap(), "--sentinel"]).await;
        Self { server, _config: config }
    }
}
