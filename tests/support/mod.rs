//! Real Redis servers for the tests, on free ports, gone with the value that started them.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis_test::server::RedisServer;
use tower_sliding_window::RedisStore;

/// A `redis-server` of its own.
pub struct Redis {
    server: RedisServer,
}

impl Redis {
    /// Starts a server and waits until it answers.
    pub async fn start() -> Self {
        let redis = Self { server: RedisServer::new() };
        redis.connection().await;
        redis
    }

    pub fn url(&self) -> String {
        let (host, port) = self.server.host_and_port().expect("a TCP server");
        format!("redis://{host}:{port}")
    }

    /// Starts this test program's `worker_process` as a process of its own, told of the server in
    /// `WORKER_REDIS_URL`.
    pub fn spawn_worker(&self) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "worker_process", "--ignored", "--nocapture"])
            .env("WORKER_REDIS_URL", self.url())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Makes a connection of its own, patient enough for a busy machine.
    pub async fn connection(&self) -> ConnectionManager {
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(Duration::from_secs(10)))
            .set_min_delay(Duration::from_millis(10))
            .set_max_delay(Duration::from_millis(50))
            .set_number_of_retries(200);
        let client = redis::Client::open(self.url()).unwrap();
        ConnectionManager::new_with_config(client, config).await.expect("redis-server starts")
    }

    /// Makes a store with a connection of its own.
    pub async fn store(&self) -> RedisStore {
        Self::patient().connection(self.connection().await)
    }

    /// Makes a store that asks the server about every request.
    pub async fn store_without_deny_cache(&self) -> RedisStore {
        Self::patient().deny_cache(false).connection(self.connection().await)
    }

    /// Waits for answers as long as a busy machine may need.
    fn patient() -> tower_sliding_window::store::RedisStoreBuilder {
        RedisStore::builder().response_timeout(Duration::from_secs(10))
    }

    /// Runs one command.
    pub async fn run<T: redis::FromRedisValue>(&self, command: &[&str]) -> T {
        let mut line = redis::cmd(command[0]);
        command[1..].iter().for_each(|argument| {
            line.arg(*argument);
        });
        line.query_async(&mut self.connection().await).await.unwrap()
    }
}
