//! What a denial and an admission cost a server and Redis: this crate, a textbook script and other crates.

use anyhow::{Context, Result};

use crate::limiters::Case;
use crate::load::{Costs, NEW_USERS, Target, send_bursts};
use crate::programs::Server;
use crate::table::{Table, ratios};

/// Sends a flood of one user, who is denied, and a crowd of users who are all admitted, to all cases in turn, after each
/// of so many starts of the servers.
pub(crate) async fn run(rounds: usize, requests: u64) -> Result<Table> {
    let bare = [Case::Denied, Case::Admitted, Case::Ping];
    let cases = bare.into_iter().chain(Case::LIMITERS);
    let mut all: Vec<(Case, [Costs; 2])> = cases.map(|case| (case, <_>::default())).collect();
    let new_user = format!("/?user={NEW_USERS}");
    for round in 1..=rounds {
        eprintln!("peers: start {round} of {rounds}");
        let (mut servers, mut targets) = (Vec::new(), Vec::new());
        for (case, _) in &all {
            servers.push(Server::of_case(*case, 1).await?);
        }
        for ((case, [flood, crowd]), server) in all.iter_mut().zip(&servers) {
            let mut add = |path, status, costs| {
                targets.push(Target { server, path, arguments: &[], status, costs });
            };
            if !matches!(case, Case::Admitted | Case::Ping) {
                add("/?user=bot", 429, flood);
            }
            if *case != Case::Denied {
                add(&new_user, 200, crowd);
            }
        }
        send_bursts(targets, requests).await?;
    }

    let mut table = Table::new(
        "A denial and an admission, beside other crates",
        &[
            "flood: requests/s",
            "p99, ms",
            "server, µs",
            "of our 429",
            "Redis calls",
            "crowd: server, µs",
            "of one PING",
            "Redis, µs",
            "of textbook",
        ],
    );
    let of = |wanted| all.iter().find(|(case, _)| *case == wanted).context("no such case");
    let (_, [our_429, _]) = of(Case::Denied)?;
    let (_, [_, ping]) = of(Case::Ping)?;
    let (_, [_, textbook]) = of(Case::Textbook)?;
    for (case, [flood, crowd]) in &all {
        table.row(
            case.name(),
            [
                flood.per_second.clone(),
                flood.p99_ms.clone(),
                flood.server_us.clone(),
                ratios(&flood.server_us, &our_429.server_us),
                flood.redis_calls.clone(),
                crowd.server_us.clone(),
                ratios(&crowd.server_us, &ping.server_us),
                crowd.redis_us.clone(),
                ratios(&crowd.redis_us, &textbook.redis_us),
            ],
        );
    }
    Ok(table)
}
