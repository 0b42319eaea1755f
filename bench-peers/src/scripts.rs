//! What the scripts cost Redis, on one or several servers.

mod cluster;
mod decisions;

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use tokio::task::JoinSet;

use crate::programs::Program;
use crate::table::Table;

/// Measures everything on each program; the cluster on the first.
pub(crate) async fn run(programs: &[Program], rounds: usize) -> Result<Vec<Table>> {
    let mut decisions = decisions::table();
    for program in programs {
        eprintln!("scripts: {}", program.name);
        decisions::run(program, rounds, &mut decisions).await?;
    }
    let mut tables = vec![decisions];
    if let Some(program) = programs.first() {
        tables.push(cluster::run(program).await?);
    }
    Ok(tables)
}

/// Calls a function for each number, from several tasks.
async fn share<F>(
    numbers: Range<usize>,
    tasks: usize,
    send: impl Fn(usize) -> F + Clone + Send + 'static,
) -> Result<()>
where
    F: Future<Output = Result<()>> + Send,
{
    let next = Arc::new(AtomicUsize::new(numbers.start));
    let mut running = JoinSet::new();
    for _ in 0..tasks {
        let (next, send) = (next.clone(), send.clone());
        running.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= numbers.end {
                    return anyhow::Ok(());
                }
                send(number).await?;
            }
        });
    }
    while let Some(done) = running.join_next().await {
        done??;
    }
    Ok(())
}
