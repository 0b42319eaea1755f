//! What a decision costs when the log has more entries than Redis keeps in a listpack.

use std::time::Duration;

use anyhow::Result;
use tower_sliding_window::Quota;

use super::decisions::{ADMIT, replay};
use crate::programs::Program;
use crate::record::{self, Recording, Sending};
use crate::redis_server::RedisServer;
use crate::table::{Table, number};

const LIMITS: [u32; 5] = [100, 128, 129, 500, 1000];
/// The default of Redis, and a higher setting.
const SETTINGS: [&str; 2] = ["128", "1024"];
const KEYS: usize = 200;
/// How many of the last admissions of a log, and how many denials, are measured.
const MEASURED: usize = 10;
/// Long enough that no entry leaves it during a measurement.
const WINDOW: Duration = Duration::from_secs(600);

/// The calls that nearly fill the logs, that fill them, and that are denied.
struct LimitRecording {
    limit: u32,
    nearly: Recording,
    admit: Recording,
    deny: Recording,
}

/// The calls for each limit.
pub(crate) struct Recordings(Vec<LimitRecording>);

pub(crate) fn table() -> Table {
    Table::new(
        "Limits above 128: zset-max-listpack-entries at 128, the default, and at 1024",
        &[
            "",
            "128: bytes a key",
            "admit, µs",
            "deny, µs",
            "1024: bytes a key",
            "admit, µs",
            "deny, µs",
        ],
    )
}

impl Recordings {
    pub(crate) async fn record() -> Result<Self> {
        let keys: Vec<String> = (0..KEYS).map(|key| format!("user-{key:07}")).collect();
        let mut all = Vec::new();
        for limit in LIMITS {
            eprintln!("scripts: recording the calls of limit {limit}");
            let quota = Quota::new(limit, WINDOW);
            let (together, alone) = (Sending::Together, Sending::Alone);
            let nearly = limit as usize - MEASURED;
            all.push(LimitRecording {
                limit,
                nearly: record::checks(quota, &keys, nearly, together).await?,
                admit: record::checks(quota, &keys, MEASURED, alone).await?,
                deny: record::checks(quota, &keys, MEASURED, alone).await?,
            });
        }
        Ok(Self(all))
    }

    /// Adds the rows of a program.
    pub(crate) async fn run(&self, program: &Program, table: &mut Table) -> Result<()> {
        let mut rows: Vec<Vec<String>> = Vec::new();
        for calls in &self.0 {
            rows.push(vec![format!("{}: limit {}", program.name, calls.limit)]);
        }
        for setting in SETTINGS {
            let server = RedisServer::start_with(&program.path, &[]).await?;
            // Redis 6.2 knows only this name. Later versions know it as another name of the same.
            server.run::<()>(&["CONFIG", "SET", "zset-max-ziplist-entries", setting]).await?;
            server.load(ADMIT).await?;
            for (calls, row) in self.0.iter().zip(&mut rows) {
                server.flush().await?;
                let empty = server.used_memory().await?;
                replay(&server, &calls.nearly).await?;
                let admit = replay(&server, &calls.admit).await?;
                let full = server.used_memory().await?;
                let deny = replay(&server, &calls.deny).await?;
                let bytes = full.saturating_sub(empty) as f64 / KEYS as f64;
                row.extend([bytes, admit, deny].map(number));
            }
        }
        rows.into_iter().for_each(|row| table.row(row));
        Ok(())
    }
}
