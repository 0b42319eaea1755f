//! The programs that are measured: servers and Redis, each in a process of its own.

use std::fs;
use std::io::{Read, stdin};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use axum::serve::ListenerExt;
use test_support::Redis;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};

use crate::limiters::{Case, MINUTE};

/// Returns the CPU time of all threads of a process so far, in user and kernel mode.
///
/// `/proc/PID/stat` has it in steps of 10 ms, which is a twentieth of a burst.
pub(crate) fn cpu(pid: u32) -> Result<Duration> {
    let mut nanoseconds = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let times = fs::read_to_string(thread?.path().join("schedstat"))?;
        let running = times.split_whitespace().next().context("nothing in schedstat")?;
        nanoseconds += running.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanoseconds))
}

/// Returns the id of a Redis server's process.
pub(crate) async fn redis_pid(redis: &Redis) -> Result<u32> {
    redis.process_id().await.context("no process_id")
}

/// Returns how many commands clients sent to Redis since `CONFIG RESETSTAT`. If they call scripts, only these calls
/// count, and not the commands inside the scripts.
pub(crate) async fn redis_calls(redis: &Redis) -> Result<u64> {
    let info: String = redis.run(&["INFO", "commandstats"]).await;
    let (mut scripts, mut others) = (0, 0);
    for line in info.lines().filter_map(|line| line.strip_prefix("cmdstat_")) {
        let (name, calls) = line.split_once(":calls=").context("no calls")?;
        let calls: u64 = calls.split(',').next().unwrap_or_default().parse()?;
        if name.starts_with("eval") {
            scripts += calls;
        } else if name != "info" && !name.starts_with("config") {
            others += calls;
        }
    }
    Ok(if scripts > 0 { scripts } else { others })
}

/// A server, and its Redis server if it needs one. Both end when this value is dropped.
pub(crate) struct Server {
    process: Child,
    pub(crate) url: String,
    pub(crate) redis: Option<Redis>,
}

impl Server {
    /// Starts a case in a process of this program.
    pub(crate) async fn of_case(case: Case, workers: usize) -> Result<Self> {
        let redis = if case.needs_redis() { Some(Redis::start().await) } else { None };
        let (name, workers) = (case.name(), workers.to_string());
        let mut arguments = vec!["serve", &name, "--workers", &workers];
        let url = redis.as_ref().map(Redis::url);
        arguments.extend(url.iter().flat_map(|url| ["--redis", url]));
        Self::start(&std::env::current_exe()?, &arguments, redis).await
    }

    /// Starts the flash sale, on a Redis server.
    pub(crate) async fn of_seckill(arguments: &[&str]) -> Result<Self> {
        let program = std::env::current_exe()?.with_file_name("seckill");
        let hint = "run `cargo build --release -p seckill` with the same target directory";
        ensure!(program.is_file(), "there is no {}: {hint}", program.display());
        let redis = Redis::start().await;
        let url = redis.url();
        let all = [&["--listen", "127.0.0.1:0", "--redis", &*url], arguments].concat();
        Self::start(&program, &all, Some(redis)).await
    }

    async fn start(program: &Path, arguments: &[&str], redis: Option<Redis>) -> Result<Self> {
        let process = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let mut process = process.with_context(|| format!("can't start {}", program.display()))?;
        let output = process.stdout.take().context("no output")?;
        let line = BufReader::new(output).lines().next_line().await?.unwrap_or_default();
        let url = line.strip_prefix("listening on ");
        let url = url.with_context(|| format!("{arguments:?} does not start"))?.to_owned();
        Ok(Self { process, url, redis })
    }

    pub(crate) fn pid(&self) -> Result<u32> {
        self.process.id().context("the server has ended")
    }
}

/// Serves a case until the process that started this one ends.
pub(crate) fn serve(case: Case, redis: Option<&str>, workers: usize) -> Result<()> {
    thread::spawn(|| {
        // Nothing is ever written: this returns when the other process closes the pipe or dies.
        let _ = stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build()?;
    runtime.block_on(async {
        let router = case.router(redis, MINUTE).await?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        println!("listening on http://{}", listener.local_addr()?);
        let listener = listener.tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
        // A worker accepts the connections, so that there are no other threads.
        tokio::spawn(async move { axum::serve(listener, router).await }).await??;
        Ok(())
    })
}
