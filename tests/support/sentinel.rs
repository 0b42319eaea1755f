//! A master, its replica and three Sentinels that watch them.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_sliding_window::store::RedisServers;

use crate::redis_process::{RedisProcess, free_port};

/// What the master is called.
pub const MASTER: &str = "shop";

/// A master that is replaced when it fails.
pub struct Watched {
    pub master: RedisProcess,
    pub replica: RedisProcess,
    sentinels: Vec<Sentinel>,
}

struct Sentinel {
    port: u16,
    directory: PathBuf,
    child: Child,
}

impl Watched {
    /// Starts all of them, and waits until the Sentinels know each other and the replica.
    pub async fn start() -> Self {
        let master = RedisProcess::start().await;
        let port = master.port().to_string();
        let replica = RedisProcess::start_with(&["--replicaof", "127.0.0.1", &port]).await;
        let sentinels: Vec<Sentinel> = (0..3).map(|_| Sentinel::start(master.port())).collect();
        let watched = Self { master, replica, sentinels };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !watched.all_know_all().await {
            assert!(Instant::now() < deadline, "the Sentinels do not find each other");
            sleep(Duration::from_millis(50)).await;
        }
        watched
    }

    async fn all_know_all(&self) -> bool {
        let replication: String = self.replica.run(&["INFO", "replication"]).await;
        let mut known = replication.contains("master_link_status:up");
        for sentinel in &self.sentinels {
            let url = sentinel.url();
            let Ok(client) = redis::Client::open(url) else { return false };
            let Ok(mut connection) = client.get_multiplexed_async_connection().await else {
                return false;
            };
            let info: redis::RedisResult<String> =
                redis::cmd("INFO").arg("sentinel").query_async(&mut connection).await;
            known &= info.is_ok_and(|info| info.contains("slaves=1,sentinels=3"));
        }
        known
    }

    pub fn servers(&self) -> RedisServers {
        RedisServers::sentinel(self.sentinels.iter().map(Sentinel::url), MASTER).unwrap()
    }

    /// Returns the Sentinels' URLs.
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Sentinel::url).collect()
    }
}

impl Sentinel {
    fn start(master: u16) -> Self {
        let port = free_port();
        let name = format!("tsw-sentinel-{}-{port}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let config = directory.join("sentinel.conf");
        let settings = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\n\
             sentinel monitor {MASTER} 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds {MASTER} 500\n\
             sentinel failover-timeout {MASTER} 5000\n",
            directory.display()
        );
        std::fs::write(&config, settings).unwrap();
        let child = Command::new("redis-server")
            .arg(&config)
            .arg("--sentinel")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is on PATH");
        Self { port, directory, child }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
