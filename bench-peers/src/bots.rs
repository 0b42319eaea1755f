//! The latency of a few honest users among bots.

use anyhow::{Result, ensure};
use tokio::time::{Duration, sleep};

use crate::limiters::Case;
use crate::load::{NEW_USERS, Seen, send};
use crate::programs::Server;
use crate::table::{Table, ratios};

/// Requests a second. One in a hundred is honest, and all of them are far fewer than the server can answer.
const HONEST_RATE: u32 = 100;
const BOT_RATE: u32 = 9_900;
const SECONDS: u32 = 10;

const CASES: [Case; 7] = [
    Case::Admitted,
    Case::Memory,
    Case::Redis,
    Case::Textbook,
    Case::TowerGovernor,
    Case::AxumGovernor,
    Case::TowerRateLimitRedis,
];

/// One round of the honest users, without bots and with them.
struct Round {
    alone: Seen,
    among: Seen,
    bots: Seen,
}

pub(crate) async fn run(rounds: usize) -> Result<Table> {
    let mut all = CASES.map(|case| (case, Vec::new()));
    for round in 1..=rounds {
        for (case, seen) in &mut all {
            eprintln!("bots: round {round} of {rounds}: {}", case.name());
            seen.push(measure(*case).await?);
        }
    }
    let mut table = Table::new(
        "Honest users among bots",
        &[
            "p50 alone, ms",
            "among bots",
            "p99 alone, ms",
            "among bots",
            "p99 ratio",
            "bots denied, %",
        ],
    );
    for (case, rounds) in &all {
        let of = |figure: fn(&Round) -> f64| rounds.iter().map(figure).collect::<Vec<_>>();
        let (alone, among) = (of(|it| it.alone.p99 * 1e3), of(|it| it.among.p99 * 1e3));
        let ratios = ratios(&among, &alone);
        let (p50, p50_among) = (of(|it| it.alone.p50 * 1e3), of(|it| it.among.p50 * 1e3));
        let denied = of(|it| it.bots.share(429) * 100.0);
        table.row(case.name(), [p50, p50_among, alone, among, ratios, denied]);
    }
    Ok(table)
}

async fn measure(case: Case) -> Result<Round> {
    let server = Server::of_case(case, 1).await?;
    let load = async |users: &str, rate: u32, seconds: u32, connections| {
        let url = format!("{}/?user={users}", server.url);
        send(&url, u64::from(rate * seconds), connections, Some(rate), &[]).await
    };
    load("warm[0-9]{4}", BOT_RATE, 1, 64).await?;
    let alone = load(NEW_USERS, HONEST_RATE, SECONDS, 16).await?;
    let honest = async {
        sleep(Duration::from_secs(1)).await;
        load(NEW_USERS, HONEST_RATE, SECONDS, 16).await
    };
    // The bots start earlier and end later.
    let bots = load("bot[0-9]{3}", BOT_RATE, SECONDS + 3, 64);
    let (among, bots) = tokio::try_join!(honest, bots)?;
    for (honest, when) in [(&alone, "alone"), (&among, "among bots")] {
        let share = honest.share(200) * 100.0;
        ensure!(share > 99.0, "{case:?}, {when}: {share:.1} % have status 200");
    }
    Ok(Round { alone, among, bots })
}
