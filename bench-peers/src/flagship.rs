//! What a denial, an admission and a sold order cost at the flash sale, which runs as a program of its own.

use std::thread::available_parallelism;

use anyhow::Result;

use crate::limiters::Case;
use crate::load::{Costs, NEW_USERS, Target, send_bursts};
use crate::programs::Server;
use crate::table::Table;

/// The same two rules as by default, but so many requests of an address that it is never denied: all of the load come
/// from one. oha makes new users in the URL only.
const MANY_USERS: [&str; 4] = ["--ip-quota", "1000000/60s", "--user-query", "user"];
const POST: &[&str] = &["-m", "POST"];
const POST_AS_ALICE: &[&str] = &["-m", "POST", "-H", "x-user-id: alice"];
const ADDRESS: &[&str] = &["-H", "x-address: 127.0.0.1"];

/// Sends bursts of seven kinds in turn, after each of so many starts of the servers.
pub(crate) async fn run(rounds: usize, requests: u64) -> Result<Table> {
    let order = "/seckill/iphone/orders";
    let new_order = &*format!("{order}?user={NEW_USERS}");
    let new_user = &*format!("/?user={NEW_USERS}");
    let mut costs = <[Costs; 7]>::default();
    for round in 1..=rounds {
        eprintln!("flagship: start {round} of {rounds}");
        let as_started = &Server::of_seckill(&[]).await?;
        let closed = [&MANY_USERS[..], &["--first-come", "--opens-in", "1h"]].concat();
        let closed = &Server::of_seckill(&closed).await?;
        let selling = [&MANY_USERS[..], &["--stock", "iphone=4000000"]].concat();
        let selling = &Server::of_seckill(&selling).await?;
        // As many worker threads as the program takes.
        let workers = available_parallelism()?.get();
        let ping = &Server::of_case(Case::Ping, workers).await?;
        let two_rules = &Server::of_case(Case::RedisTwoRules, workers).await?;
        let textbook = &Server::of_case(Case::TextbookTwoRules, workers).await?;
        let targets = [
            (as_started, "/healthz", &[][..], 200),
            // Orders of one user, who is over the quota.
            (as_started, order, POST_AS_ALICE, 429),
            // Orders of new users before the sale opens: the rules admit them, and nothing is sold.
            (closed, new_order, POST, 403),
            // Orders of new users, each of whom gets a piece.
            (selling, new_order, POST, 201),
            (ping, new_user, &[], 200),
            (two_rules, new_user, ADDRESS, 200),
            (textbook, new_user, ADDRESS, 200),
        ];
        let target = |((server, path, arguments, status), costs)| Target {
            server,
            path,
            arguments,
            status,
            costs,
        };
        let targets = targets.into_iter().zip(&mut costs).map(target);
        send_bursts(targets.collect(), requests).await?;
    }

    let [healthz, denial, before_opening, order, ping, two_rules, textbook] = costs;
    let mut table = Table::of_goals("The flash sale");
    let name = "denial on the order route: server CPU / GET /healthz";
    table.goal(name, &denial.server_us, &healthz.server_us, 1.2);
    for (name, admission) in [
        ("admission by seckill, before the opening", before_opening),
        ("admission by a plain axum server, the same two rules", two_rules),
    ] {
        let name = |what: &str| format!("{name}: {what}");
        table.goal(&name("server CPU / one PING"), &admission.server_us, &ping.server_us, 1.1);
        let textbooks = &name("Redis CPU / two textbook scripts");
        table.goal(textbooks, &admission.redis_us, &textbook.redis_us, 0.65);
        table.row(name("script calls"), [vec![], vec![], admission.redis_calls, vec![0.1]]);
    }
    let sold = |what: &str| format!("sold order, end to end: {what}");
    table.row(sold("Redis CPU, µs"), [vec![], vec![], order.redis_us, vec![24.0]]);
    table.row(sold("script calls"), [vec![], vec![], order.redis_calls, vec![]]);
    Ok(table)
}
