//! The latency of honest users among bots.

use anyhow::Result;
use tokio::time::{Duration, sleep};

use crate::cases::Case;
use crate::load::{Load, Seen};
use crate::server::Server;
use crate::table::{Table, median, number, ratio};
use crate::targets::Figure;

/// One request in a hundred is honest.
const HONEST_RATE: u32 = 100;
const BOT_RATE: u32 = 9_900;
const SECONDS: u32 = 10;

const CASES: [Case; 8] = [
    Case::Bare200,
    Case::Memory,
    Case::Redis,
    Case::RedisUncached,
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

/// Measures the honest users' latency without bots and with them.
pub(crate) async fn run(rounds: usize, workers: usize, figures: &mut Vec<Figure>) -> Result<Table> {
    let mut all: Vec<(Case, Vec<Round>)> =
        CASES.into_iter().map(|case| (case, Vec::new())).collect();
    for number in 1..=rounds {
        for (case, seen) in &mut all {
            let round = measure(*case, workers).await?;
            eprintln!(
                "bots: round {number} of {rounds}: {}: p99 {:.2} ms alone, {:.2} ms among bots",
                case.label(),
                round.alone.p99 * 1e3,
                round.among.p99 * 1e3
            );
            seen.push(round);
        }
    }
    let title = format!(
        "Bots: {HONEST_RATE} honest requests a second among {} of 1,000 bots",
        number(BOT_RATE.into())
    );
    let mut table = Table::new(
        title,
        &[
            "",
            "honest p50 alone, ms",
            "among bots, ms",
            "honest p99 alone, ms",
            "among bots, ms",
            "p99 ratio",
            "honest admitted, %",
            "bots denied, %",
        ],
    );
    for (case, rounds) in &all {
        let of = |value: fn(&Round) -> f64| median(rounds.iter().map(value));
        let p99 = of(|round| round.among.p99 / round.alone.p99);
        table.row([
            case.label().to_owned(),
            self::number(of(|round| round.alone.p50 * 1e3)),
            self::number(of(|round| round.among.p50 * 1e3)),
            self::number(of(|round| round.alone.p99 * 1e3)),
            self::number(of(|round| round.among.p99 * 1e3)),
            ratio(Some(p99)),
            self::number(of(|round| round.among.share(200) * 100.0)),
            self::number(of(|round| round.bots.share(429) * 100.0)),
        ]);
        if *case == Case::Redis {
            let name = "honest users' p99 among bots / without bots, RedisStore";
            figures.push(Figure::new(name, p99, 2.0));
        }
    }
    Ok(table)
}

async fn measure(case: Case, workers: usize) -> Result<Round> {
    let server = Server::start(case, workers).await?;
    let load = |users: &str, rate: u32, seconds: u32, connections| Load {
        url: server.url(users),
        requests: u64::from(rate * seconds),
        connections,
        rate: Some(rate),
        arguments: &[],
    };
    let honest = load("[0-9a-f]{12}", HONEST_RATE, SECONDS, 16);
    // The bots start earlier and end later.
    let bots = load("bot[0-9]{3}", BOT_RATE, SECONDS + 3, 64);
    load("warm[0-9]{4}", BOT_RATE, 1, 64).run().await?;
    let alone = honest.run().await?;
    let later = async {
        sleep(Duration::from_secs(1)).await;
        honest.run().await
    };
    let (bots, among) = tokio::try_join!(bots.run(), later)?;
    Ok(Round { alone, among, bots })
}
