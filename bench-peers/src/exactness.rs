//! How exact each limiter is: the same traffic for all, judged by their own admissions.

mod drive;
mod limiters;
mod model;
mod traffic;

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::task::JoinSet;

use crate::exactness::drive::Findings;
use crate::redis_server::RedisServer;
use crate::setup::{LIMIT, Window};
use crate::table::{Table, number};

const WINDOW: Duration = Window::Second.length();

/// Sends the traffic to all limiters at once, each with keys of its own.
pub(crate) async fn run() -> Result<Table> {
    let redis = RedisServer::start().await?;
    let limiters = limiters::all(&redis.url()).await?;
    eprintln!("exactness: {} limiters, {:?} of traffic", limiters.len(), traffic::LENGTH);
    let mut running = JoinSet::new();
    for (index, limiter) in limiters.iter().cloned().enumerate() {
        running.spawn(async move {
            let name = limiter.name.clone();
            let findings = drive::findings(index, limiter).await.context(name)?;
            anyhow::Ok((index, findings))
        });
    }
    let mut all = Vec::new();
    while let Some(done) = running.join_next().await {
        all.push(done??);
    }
    all.sort_by_key(|(index, _)| *index);

    let title = format!("Exactness: {LIMIT} requests a second, the same random traffic for each");
    let mut table = Table::new(
        title,
        &[
            "",
            "admitted",
            "above the limit",
            "most in a window, % over",
            "denied",
            "needlessly",
            "Retry-After too long by at most, ms",
            "too short",
            "by at most, ms",
            "waited and denied again",
        ],
    );
    for ((_, findings), limiter) in all.iter().zip(&limiters) {
        table.row(row(&limiter.name, findings));
    }
    Ok(table)
}

fn row(name: &str, findings: &Findings) -> Vec<String> {
    let Findings { faults, waits, denied_again } = findings;
    let over = (faults.most as f64 / f64::from(LIMIT) - 1.0).max(0.0) * 100.0;
    let time = |time: Option<Duration>| {
        time.map_or_else(|| "-".to_owned(), |time| format!("{:.0}", time.as_secs_f64() * 1e3))
    };
    let has_waits = faults.largest_shortfall.is_some();
    let of_waits = |text: String| if has_waits { text } else { "-".to_owned() };
    vec![
        name.to_owned(),
        count(faults.admitted),
        count(faults.above),
        format!("{over:.0}"),
        count(faults.denied),
        count(faults.needless),
        time(faults.longest_wait),
        of_waits(count(faults.short)),
        time(faults.largest_shortfall),
        of_waits(format!("{denied_again} of {waits}")),
    ]
}

fn count(value: usize) -> String {
    number(value as f64).trim_end_matches(".00").trim_end_matches(".0").to_owned()
}
