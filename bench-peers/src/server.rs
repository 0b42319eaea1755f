//! The child process that serves one case.

use std::io::{Read, stdin};
use std::net::Ipv4Addr;
use std::path::Path;
use std::thread;

use anyhow::{Context, Result};
use axum::serve::ListenerExt;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::Child;

use crate::cases::Case;
use crate::process;
use crate::redis_server::RedisServer;
use crate::setup::Window;

/// A server in a process of its own, and its Redis server. Both end when this value is dropped.
pub(crate) struct Server {
    process: Child,
    port: u16,
    pub(crate) redis: Option<RedisServer>,
}

impl Server {
    pub(crate) async fn start(case: Case, workers: usize) -> Result<Self> {
        Self::start_from(&std::env::current_exe()?, case, workers).await
    }

    /// Starts a server from a build of this program.
    pub(crate) async fn start_from(program: &Path, case: Case, workers: usize) -> Result<Self> {
        use clap::ValueEnum;
        let redis = if case.needs_redis() { Some(RedisServer::start().await?) } else { None };
        let name = case.to_possible_value().context("a hidden case")?;
        let mut arguments = vec!["serve".to_owned(), name.get_name().to_owned()];
        arguments.extend(["--workers".to_owned(), workers.to_string()]);
        if let Some(redis) = &redis {
            arguments.extend(["--redis".to_owned(), redis.url()]);
        }
        let mut process = process::start(program, &arguments)?;
        let output = process.stdout.take().context("no output")?;
        let port = BufReader::new(output).lines().next_line().await?;
        let port = port.with_context(|| format!("{} does not start", case.label()))?.parse()?;
        Ok(Self { process, port, redis })
    }

    /// Returns the URL of the route for one user, or for each that a pattern yields.
    pub(crate) fn url(&self, user: &str) -> String {
        format!("http://127.0.0.1:{}/?user={user}", self.port)
    }

    pub(crate) fn pid(&self) -> Result<u32> {
        self.process.id().context("the server has ended")
    }
}

/// Prints the port and serves a case until the parent ends.
pub(crate) fn serve(case: Case, redis: Option<&str>, workers: usize) -> Result<()> {
    thread::spawn(|| {
        // The parent never writes: this returns when it closes the pipe or dies.
        let _ = stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build()?;
    #[cfg(feature = "observed")]
    crate::observed::install()?;
    runtime.block_on(async {
        let router = case.router(redis, Window::Minute).await?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        println!("{}", listener.local_addr()?.port());
        let listener = listener.tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
        // A worker accepts the connections, so that there are no other threads.
        tokio::spawn(async move { axum::serve(listener, router).await }).await??;
        Ok(())
    })
}
