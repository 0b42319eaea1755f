//! A `redis-server` process.

use std::net::{TcpListener, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, FromRedisValue, InfoDict};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::{Process, eventually};

/// How long a server may take to answer after it was started.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server without persistence on a port of its own. A test can kill it, stop it and start it again.
pub struct Redis {
    command: Command,
    port: Port,
    directory: TempDir,
    process: Process,
}

impl Redis {
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts a server that loses nothing when it is killed.
    ///
    /// It hands each write to the kernel before it replies, and never waits for the disk. By default it
    /// may hold a write back for two seconds while the disk is slow.
    pub async fn start_durable() -> Self {
        Self::start_with(&["--appendonly", "yes", "--appendfsync", "no"]).await
    }

    pub async fn start_with(arguments: &[&str]) -> Self {
        Self::start_in(&[], arguments).await
    }

    pub async fn start_in(environment: &[(&str, &str)], arguments: &[&str]) -> Self {
        let (port, directory) = (Port::free(), tempfile::tempdir().unwrap());
        let mut command = Command::new("redis-server");
        command
            .args(arguments)
            .args(["--port", &port.number.to_string(), "--bind", "127.0.0.1", "--save", ""])
            // Else a first replica waits five seconds for others.
            .args(["--repl-diskless-sync-delay", "0"])
            .arg("--dir")
            .arg(directory.path())
            .envs(environment.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let process = Process::start(&mut command);
        let redis = Self { command, port, directory, process };
        redis.ready().await;
        redis
    }

    /// Starts a replica of this server, and waits until it follows.
    pub async fn start_replica(&self) -> Self {
        let port = self.port().to_string();
        let replica = Self::start_with(&["--replicaof", "127.0.0.1", &port]).await;
        replica.says("replication", "master_link_status:up").await;
        replica
    }

    pub fn port(&self) -> u16 {
        self.port.number
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// Kills the server as the kernel does when memory runs out.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts the server again, on its port and with its files, without waiting for it.
    pub fn start_again(&mut self) {
        self.process.kill();
        self.process = Process::start(&mut self.command);
    }

    /// Kills the server and starts it again, and waits until it answers.
    pub async fn restart(&mut self) {
        self.start_again();
        self.ready().await;
    }

    /// The same, with more arguments.
    pub async fn restart_with(&mut self, arguments: &[&str]) {
        self.command.args(arguments);
        self.restart().await;
    }

    /// Returns the names of all keys but the marks of the stores.
    pub async fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.run(&["KEYS", "*"]).await;
        keys.retain(|key| !key.ends_with(":mark"));
        keys.sort();
        keys
    }

    pub async fn entries(&self, log: &str) -> usize {
        self.run(&["ZCARD", log]).await
    }

    pub async fn has_entries(&self, log: &str, count: usize) {
        eventually("Redis knows them", async || self.entries(log).await == count).await;
    }

    /// Waits until the server, whose clients are paused, has so many calls.
    pub async fn holds_back(&self, calls: usize) {
        self.says("clients", &format!("blocked_clients:{calls}")).await;
    }

    /// Waits until a section of what the server says of itself holds a text, such as `role:master`.
    pub async fn says(&self, section: &str, text: &str) {
        let info = async || self.run::<String>(&["INFO", section]).await;
        eventually(text, async || info().await.contains(text)).await;
    }

    /// Has the server fail to save its data, so that it refuses all writes as `MISCONF`.
    pub async fn cannot_save(&self) {
        self.run::<()>(&["CONFIG", "SET", "save", "3600 1"]).await;
        std::fs::remove_dir_all(self.directory.path()).unwrap();
        // One for a replica may be under way.
        self.says("persistence", "rdb_bgsave_in_progress:0").await;
        self.run::<()>(&["BGSAVE"]).await;
        self.says("persistence", "rdb_last_bgsave_status:err").await;
    }

    /// Keeps the server busy with an endless script, until it is killed. It needs a low `lua-time-limit`.
    pub async fn keep_busy(&self) {
        let client = Client::open(self.url()).unwrap();
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let mut connection =
            client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
        tokio::spawn(async move {
            let mut script = redis::cmd("EVAL");
            let _ = script.arg("while true do end").arg(0).exec_async(&mut connection).await;
        });
        eventually("it is busy", async || self.try_run::<()>(&["PING"]).await.is_err()).await;
    }

    pub fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// Waits until the server answers, and no other one on its port.
    pub async fn ready(&self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(id) = self.process_id().await {
                assert_eq!(id, self.process.id(), "port {} is taken", self.port());
                if self.try_run::<()>(&["PING"]).await.is_ok() {
                    return;
                }
            }
            assert!(Instant::now() < deadline, "redis-server does not answer");
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Returns the id of the process that answers on the port.
    pub async fn process_id(&self) -> Option<u32> {
        let info: InfoDict = self.try_run(&["INFO", "server"]).await.ok()?;
        info.get("process_id")
    }

    pub async fn run<T: FromRedisValue>(&self, command: &[&str]) -> T {
        let reply = self.try_run(command).await;
        reply.unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Runs one command as it is typed, with a space between its words.
    pub async fn command(&self, line: &str) {
        self.run::<redis::Value>(&line.split(' ').collect::<Vec<_>>()).await;
    }

    async fn try_run<T: FromRedisValue>(&self, command: &[&str]) -> redis::RedisResult<T> {
        let mut line = redis::cmd(command[0]);
        line.arg(&command[1..]);
        line.query_async(&mut self.connection().await?).await
    }

    /// Makes a connection, patient enough for a busy machine.
    pub async fn connection(&self) -> redis::RedisResult<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(Duration::from_secs(10)))
            .set_connection_timeout(Some(Duration::from_secs(10)));
        let client = Client::open(self.url())?;
        client.get_multiplexed_async_connection_with_config(&config).await
    }

    pub async fn stat(&self, name: &str) -> u64 {
        let stats: InfoDict = self.run(&["INFO", "stats"]).await;
        stats.get(name).unwrap_or_else(|| panic!("there is no {name}"))
    }

    pub async fn call_count(&self, command: &str) -> u64 {
        let stats: InfoDict = self.run(&["INFO", "commandstats"]).await;
        let stats: Option<String> = stats.get(&format!("cmdstat_{command}"));
        let calls = stats.as_deref().and_then(|it| it.strip_prefix("calls=")?.split(',').next());
        calls.map_or(0, |calls| calls.parse().unwrap())
    }
}

/// A port for a server, and its neighbour 10,000 above it for the bus of a Cluster.
///
/// Tests run side by side, in several processes. The port is taken by its socket for UDP, which Redis does not use: so no
/// other test gets it while the server is down. Both ports lie below those that systems choose by themselves for
/// outgoing connections.
struct Port {
    number: u16,
    _taken: UdpSocket,
}

impl Port {
    fn free() -> Self {
        loop {
            let number = fastrand::u16(10_000..20_000);
            if let Ok(taken) = UdpSocket::bind(("127.0.0.1", number))
                && TcpListener::bind(("127.0.0.1", number)).is_ok()
            {
                return Self { number, _taken: taken };
            }
        }
    }
}
