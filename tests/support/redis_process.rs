//! A `redis-server` that is killed, stopped and started again on its port.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, FromRedisValue};
use tokio::time::Instant;

/// How long a server may take to answer after it was started.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server process that can fail. Its files are gone with it.
pub struct RedisProcess {
    program: String,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    port: u16,
    directory: PathBuf,
    child: Child,
}

impl RedisProcess {
    /// Starts a server without persistence, and waits until it answers.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts a server with these arguments, and waits until it answers.
    pub async fn start_with(arguments: &[&str]) -> Self {
        Self::start_in(free_port(), "redis-server", arguments, &[]).await
    }

    /// Starts a server on a port of the test's own.
    pub async fn start_on(port: u16) -> Self {
        Self::start_in(port, "redis-server", &[], &[]).await
    }

    /// Starts a program that takes a server's arguments, in an environment with these variables.
    pub async fn start_in(
        port: u16,
        program: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let name = format!("tsw-redis-{}-{port}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        let environment: Vec<(String, String)> =
            environment.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let child = spawn(program, port, &directory, &arguments, &environment);
        let program = program.to_owned();
        let redis = Self { program, arguments, environment, port, directory, child };
        redis.answers().await;
        redis
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Kills the server as the kernel does when memory runs out.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts the server again, on its port and with its files, without waiting for it.
    pub fn start_again(&mut self) {
        self.kill();
        self.child =
            spawn(&self.program, self.port, &self.directory, &self.arguments, &self.environment);
    }

    /// Sends the process a signal such as `STOP`.
    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args([&format!("-{name}"), &pid]).status();
        assert!(status.expect("kill is a command").success());
    }

    /// Waits until the server answers.
    pub async fn answers(&self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(mut connection) = self.try_connect().await
                && redis::cmd("PING").exec_async(&mut connection).await.is_ok()
            {
                return;
            }
            assert!(Instant::now() < deadline, "redis-server does not answer");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn try_connect(&self) -> Option<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(Duration::from_secs(10)))
            .set_connection_timeout(Some(Duration::from_secs(10)));
        let client = Client::open(self.url()).unwrap();
        client.get_multiplexed_async_connection_with_config(&config).await.ok()
    }

    /// Runs one command on a connection of its own.
    pub async fn run<T: FromRedisValue>(&self, command: &[&str]) -> T {
        let mut line = redis::cmd(command[0]);
        command[1..].iter().for_each(|argument| {
            line.arg(*argument);
        });
        let mut connection = self.try_connect().await.expect("the server is up");
        line.query_async(&mut connection).await.unwrap()
    }
}

impl Drop for RedisProcess {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn spawn(
    program: &str,
    port: u16,
    directory: &PathBuf,
    arguments: &[String],
    environment: &[(String, String)],
) -> Child {
    Command::new(program)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
        .arg("--dir")
        .arg(directory)
        .args(arguments)
        .envs(environment.iter().cloned())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server is on PATH")
}
