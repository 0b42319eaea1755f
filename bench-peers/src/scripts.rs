//! What the scripts cost Redis, on one or several servers.

mod cluster;
mod decisions;
mod long_logs;
mod messages;

use anyhow::Result;

use crate::programs::Program;
use crate::table::Table;
use crate::targets::Figure;

/// Measures everything on each program; the cluster on the first.
pub(crate) async fn run(
    programs: &[Program],
    rounds: usize,
    figures: &mut Vec<Figure>,
) -> Result<Vec<Table>> {
    let candidates = decisions::Candidates::record().await?;
    let logs = long_logs::Recordings::record().await?;
    let mut decisions = Table::new(
        "Scripts: µs of Redis a decision, 5/60s, without HTTP",
        &["", "textbook", "ours, 1 a call", "ratio", "ours, 32 a call", "ratio"],
    );
    let (mut messages, mut long_logs) = (messages::table(), long_logs::table());
    for (index, program) in programs.iter().enumerate() {
        eprintln!("scripts: {}", program.name);
        let bytes = candidates.run(program, rounds, &mut decisions).await?;
        if index == 0 {
            let name = "bytes of Redis a key, 5 entries: ours / textbook";
            figures.push(Figure::new(name, bytes, 0.78));
        }
        messages::run(program, &mut messages).await?;
        logs.run(program, &mut long_logs).await?;
    }
    let mut tables = vec![decisions, long_logs, messages];
    if let Some(program) = programs.first() {
        tables.push(cluster::run(program).await?);
    }
    Ok(tables)
}
