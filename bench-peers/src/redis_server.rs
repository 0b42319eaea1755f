//! [`RedisServer`]: a `redis-server` of its own for each measurement.

use std::collections::HashMap;
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use redis::aio::MultiplexedConnection;
use tokio::process::{Child, Command};
use tokio::time::sleep;

/// A server on a free loopback port, without persistence. It ends when this value is dropped.
pub(crate) struct RedisServer {
    process: Child,
    port: u16,
    admin: MultiplexedConnection,
}

/// The figures of one command in `INFO commandstats`.
#[derive(Clone, Copy, Default)]
pub(crate) struct CommandStats {
    pub(crate) calls: u64,
    pub(crate) usec: u64,
}

impl RedisServer {
    /// Starts the `redis-server` on `PATH`.
    pub(crate) async fn start() -> Result<Self> {
        Self::start_with(Path::new("redis-server"), &[]).await
    }

    /// Starts a program with further arguments.
    pub(crate) async fn start_with(program: &Path, arguments: &[&str]) -> Result<Self> {
        let port = free_port()?;
        let process = Command::new(program)
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port"])
            .arg(port.to_string())
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("can't start {}: is it installed?", program.display()))?;
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
        for _ in 0..100 {
            if let Ok(admin) = client.get_multiplexed_async_connection().await {
                return Ok(Self { process, port, admin });
            }
            sleep(Duration::from_millis(50)).await;
        }
        bail!("redis-server does not reply on port {port}")
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn pid(&self) -> Result<u32> {
        self.process.id().context("redis-server has ended")
    }

    pub(crate) async fn run<T: redis::FromRedisValue>(&self, command: &[&str]) -> Result<T> {
        let mut line = redis::cmd(command[0]);
        command[1..].iter().for_each(|argument| {
            line.arg(*argument);
        });
        Ok(line.query_async(&mut self.admin.clone()).await?)
    }

    /// Returns the memory that the server uses, in bytes.
    pub(crate) async fn used_memory(&self) -> Result<u64> {
        let info: String = self.run(&["INFO", "memory"]).await?;
        let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
        Ok(line.context("no used_memory")?.trim().parse()?)
    }

    /// Removes all keys, and frees their memory at once.
    pub(crate) async fn flush(&self) -> Result<()> {
        self.run(&["FLUSHALL", "SYNC"]).await
    }

    pub(crate) async fn reset_stats(&self) -> Result<()> {
        self.run(&["CONFIG", "RESETSTAT"]).await
    }

    /// Returns how many commands clients sent since the last reset of the statistics. If clients call
    /// scripts, only these calls count, and not the commands inside the scripts.
    pub(crate) async fn commands(&self) -> Result<u64> {
        let mut stats = self.stats().await?;
        stats.retain(|name, _| name != "info" && !name.starts_with("config"));
        let scripts = |name: &&String| name.starts_with("eval");
        let sum = |chosen: &dyn Fn(&&String) -> bool| -> u64 {
            stats.iter().filter(|(name, _)| chosen(name)).map(|(_, stats)| stats.calls).sum()
        };
        Ok(match sum(&scripts) {
            0 => sum(&|_| true),
            scripts => scripts,
        })
    }

    /// Returns the figures of each command since the last reset of the statistics.
    pub(crate) async fn stats(&self) -> Result<HashMap<String, CommandStats>> {
        let info: String = self.run(&["INFO", "commandstats"]).await?;
        let mut commands = HashMap::new();
        for line in info.lines() {
            let Some((name, fields)) =
                line.strip_prefix("cmdstat_").and_then(|line| line.split_once(':'))
            else {
                continue;
            };
            let field = |wanted: &str| {
                let mut pairs = fields.split(',').filter_map(|field| field.split_once('='));
                pairs.find(|(name, _)| *name == wanted).and_then(|(_, value)| value.parse().ok())
            };
            let stats = CommandStats {
                calls: field("calls").unwrap_or(0),
                usec: field("usec").unwrap_or(0),
            };
            commands.insert(name.to_owned(), stats);
        }
        Ok(commands)
    }
}

/// Returns a free port. A cluster needs a second one, which is 10,000 higher.
fn free_port() -> Result<u16> {
    for _ in 0..1000 {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        if port < 55_000 {
            return Ok(port);
        }
    }
    bail!("there is no free port below 55000")
}
