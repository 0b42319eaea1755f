//! How many bytes a key takes in process, measured in a fresh process for each case.

use std::num::NonZeroU32;
use std::process;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use governor::{Quota as GovernorQuota, RateLimiter};
use serde::{Deserialize, Serialize};
use tokio::runtime::Builder;
use tower_sliding_window::{Limiter, MemoryStore, Quota};

use crate::process::{resident_bytes, run_again};
use crate::setup::{LIMIT, WINDOW};
use crate::table::{Table, number};
use crate::targets::Figure;

const KEYS: usize = 1_000_000;

/// The store or limiter that holds the keys.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Keeper {
    Ours,
    Governor,
}

/// The result of a probe.
#[derive(Serialize, Deserialize)]
pub(crate) struct Probe {
    bytes_per_key: f64,
    key_bytes: f64,
}

/// Measures all cases.
pub(crate) async fn run(figures: &mut Vec<Figure>) -> Result<Table> {
    let mut table = Table::new(
        "Memory in process: bytes a key, 5/60s, a million keys",
        &["", "after 1 admission", "after 5 admissions", "of which the key itself"],
    );
    for (name, keeper) in
        [("MemoryStore", Keeper::Ours), ("governor (no log, one number a key)", Keeper::Governor)]
    {
        let (one, five) = (probe(keeper, 1).await?, probe(keeper, 5).await?);
        table.row([
            name.to_owned(),
            number(one.bytes_per_key),
            number(five.bytes_per_key),
            number(one.key_bytes),
        ]);
        if matches!(keeper, Keeper::Ours) {
            for (after, probe, at_most) in
                [("1 admission", one, 98.0), ("5 admissions", five, 130.0)]
            {
                let name = format!("MemoryStore, bytes a key beside the key's own, after {after}");
                figures.push(Figure::new(name, probe.bytes_per_key - probe.key_bytes, at_most));
            }
        }
    }
    Ok(table)
}

async fn probe(keeper: Keeper, admissions: usize) -> Result<Probe> {
    let name = keeper.to_possible_value().map(|value| value.get_name().to_owned());
    let name = name.unwrap_or_default();
    eprintln!("memory: {name}, {KEYS} keys, {admissions} admissions each");
    run_again(&["probe-memory".to_owned(), name, admissions.to_string()]).await
}

/// Fills a store in this process, and returns how much the process has grown.
pub(crate) fn measure(keeper: Keeper, admissions: usize) -> Result<Probe> {
    let names = || (0..KEYS).map(|key| format!("user-{key:07}"));
    let before = resident_bytes(process::id())?;
    let after = match keeper {
        Keeper::Ours => {
            let limiter = Limiter::new(Quota::new(LIMIT, WINDOW), MemoryStore::new());
            Builder::new_current_thread().build()?.block_on(async {
                for name in (0..admissions).flat_map(|_| names()) {
                    ensure!(limiter.check(name).await?.is_admitted(), "a denial");
                }
                Ok(())
            })?;
            resident_bytes(process::id())?
        }
        Keeper::Governor => {
            let limit = NonZeroU32::new(LIMIT).unwrap_or(NonZeroU32::MIN);
            let limiter = RateLimiter::keyed(GovernorQuota::per_minute(limit));
            for name in (0..admissions).flat_map(|_| names()) {
                ensure!(limiter.check_key(&name).is_ok(), "a denial");
            }
            resident_bytes(process::id())?
        }
    };
    let key_bytes = names().next().map_or(0, |name| name.len()) as f64;
    Ok(Probe { bytes_per_key: (after - before) as f64 / KEYS as f64, key_bytes })
}
