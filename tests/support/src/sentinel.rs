//! A master, its replicas and three Sentinels that watch them.

use tempfile::TempDir;

use crate::Redis;

pub const MASTER: &str = "shop";

/// A master that is replaced when it fails.
pub struct Sentinels {
    pub master: Redis,
    pub replicas: Vec<Redis>,
    pub sentinels: Vec<Sentinel>,
}

pub struct Sentinel {
    pub server: Redis,
    _config: TempDir,
}

impl Sentinels {
    /// Starts all of them, with so many replicas, and waits until the Sentinels know each other and these.
    pub async fn with_replicas(count: usize) -> Self {
        let master = Redis::start().await;
        let (mut replicas, mut sentinels) = (Vec::new(), Vec::new());
        for _ in 0..count {
            replicas.push(master.start_replica().await);
        }
        for _ in 0..3 {
            sentinels.push(Sentinel::start(master.port()).await);
        }
        for sentinel in &sentinels {
            sentinel.server.says("sentinel", &format!("slaves={count},sentinels=3")).await;
        }
        Self { master, replicas, sentinels }
    }

    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(|sentinel| sentinel.server.url()).collect()
    }
}

impl Sentinel {
    /// Starts a Sentinel that watches the master at this loopback port.
    pub async fn start(master: u16) -> Self {
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

    pub async fn name(&self, master: &Redis) {
        self.server.run::<()>(&["SENTINEL", "REMOVE", MASTER]).await;
        let port = master.port().to_string();
        self.server.run::<()>(&["SENTINEL", "MONITOR", MASTER, "127.0.0.1", &port, "1"]).await;
    }
}
