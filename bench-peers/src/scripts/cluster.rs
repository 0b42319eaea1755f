//! How a Redis Cluster grows: the same decisions on one primary and on three.

use std::process;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::time::sleep;
use tower_sliding_window::store::RedisServers;
use tower_sliding_window::{Limiter, Quota};

use super::share;
use crate::cases::patient;
use crate::process::cpu;
use crate::programs::Program;
use crate::redis_server::RedisServer;
use crate::setup::{LIMIT, WINDOW};
use crate::table::{Table, number};

const TASKS: usize = 64;
const DECISIONS: usize = 100_000;
const SLOTS: usize = 16_384;
/// How long the nodes may take to agree.
const PATIENCE: Duration = Duration::from_secs(30);

/// Measures one server, a cluster of one primary, and a cluster of three.
pub(crate) async fn run(program: &Program) -> Result<Table> {
    let mut table = Table::new(
        format!("Cluster: {TASKS} tasks, every key new, {}", program.name),
        &[
            "",
            "decisions/s",
            "calls a decision",
            "client, µs a decision",
            "Redis, µs a decision, all nodes",
            "busiest node",
        ],
    );
    for (name, primaries) in [
        ("one server, no cluster", None),
        ("cluster of 1 primary", Some(1)),
        ("cluster of 3 primaries", Some(3)),
    ] {
        eprintln!("scripts: {name}");
        let directory = tempfile::tempdir()?;
        let (nodes, servers) = match primaries {
            None => {
                let node = RedisServer::start_with(&program.path, &[]).await?;
                let servers = RedisServers::try_from(node.url())?;
                (vec![node], servers)
            }
            Some(primaries) => {
                let mut nodes = Vec::new();
                for node in 0..primaries {
                    let file = directory.path().join(format!("nodes-{node}.conf"));
                    let file = file.to_str().context("a path that is not text")?;
                    let arguments = ["--cluster-enabled", "yes", "--cluster-config-file", file];
                    nodes.push(RedisServer::start_with(&program.path, &arguments).await?);
                }
                form(&nodes).await?;
                let urls = nodes.iter().map(RedisServer::url);
                let servers = RedisServers::cluster(urls)?;
                (nodes, servers)
            }
        };
        table.row(measure(name, &nodes, servers).await?);
    }
    Ok(table)
}

/// Shares the slots among the nodes and lets them meet.
async fn form(nodes: &[RedisServer]) -> Result<()> {
    let first = nodes.first().context("no nodes")?.port().to_string();
    for (index, node) in nodes.iter().enumerate() {
        let slots = SLOTS * index / nodes.len()..SLOTS * (index + 1) / nodes.len();
        let slots: Vec<String> = slots.map(|slot| slot.to_string()).collect();
        let mut command = vec!["CLUSTER", "ADDSLOTS"];
        command.extend(slots.iter().map(String::as_str));
        node.run::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]).await?;
        node.run::<()>(&command).await?;
        if index > 0 {
            node.run::<()>(&["CLUSTER", "MEET", "127.0.0.1", &first]).await?;
        }
    }
    let start = Instant::now();
    for node in nodes {
        let known = format!("cluster_known_nodes:{}", nodes.len());
        loop {
            let info: String = node.run(&["CLUSTER", "INFO"]).await?;
            if info.contains("cluster_state:ok") && info.contains(&known) {
                break;
            }
            ensure!(start.elapsed() < PATIENCE, "the nodes of a cluster do not agree");
            sleep(Duration::from_millis(50)).await;
        }
    }
    Ok(())
}

async fn measure(name: &str, nodes: &[RedisServer], servers: RedisServers) -> Result<Vec<String>> {
    let store = patient().connect(servers).await?;
    let limiter = Limiter::new(Quota::new(LIMIT, WINDOW), store);
    decide(&limiter, "warm", DECISIONS / 10).await?;
    let mut before = Vec::new();
    for node in nodes {
        node.reset_stats().await?;
        before.push(cpu(node.pid()?)?);
    }
    let (client_before, start) = (cpu(process::id())?, Instant::now());
    decide(&limiter, "user", DECISIONS).await?;
    let (elapsed, client) = (start.elapsed(), cpu(process::id())? - client_before);
    let (mut calls, mut used) = (0, Vec::new());
    for (node, before) in nodes.iter().zip(before) {
        calls += node.commands().await?;
        used.push(cpu(node.pid()?)? - before);
    }
    let each = |time: Duration| number(time.as_secs_f64() * 1e6 / DECISIONS as f64);
    Ok(vec![
        name.to_owned(),
        number(DECISIONS as f64 / elapsed.as_secs_f64()),
        number(calls as f64 / DECISIONS as f64),
        each(client),
        each(used.iter().sum()),
        each(used.iter().copied().max().unwrap_or_default()),
    ])
}

/// Checks new keys from all tasks, as a layer does.
async fn decide(limiter: &Limiter, name: &'static str, decisions: usize) -> Result<()> {
    let limiter = limiter.clone();
    share(0..decisions, TASKS, move |key| {
        let limiter = limiter.clone();
        async move {
            let decision = limiter.check(format!("{name}-{key:07}")).await?;
            ensure!(decision.is_admitted(), "a denial");
            Ok(())
        }
    })
    .await
}
