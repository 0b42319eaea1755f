//! What a denial, an admission and a sold order cost at the flash sale, which runs as a program of its own.

use std::thread::available_parallelism;

use anyhow::Result;

use crate::load::{Bursts, NEW_USERS, Target};
use crate::peers::Case;
use crate::programs::Server;
use crate::table::Table;

/// The same two rules as by default, but so many requests of an address that it is never denied: all of the load come
/// from one. oha makes new users in the URL only.
const MANY_USERS: [&str; 4] = ["--ip-quota", "1000000/60s", "--user-query", "user"];
const POST: &[&str] = &["-m", "POST"];
const POST_AS_ALICE: &[&str] = &["-m", "POST", "-H", "x-user-id: alice"];
const ADDRESS: &[&str] = &["-H", "x-address: 127.0.0.1"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Sent {
    /// `GET /healthz` of the server that gets the denials.
    Healthz,
    /// Orders of one user, who is over the quota.
    Denial,
    /// Orders of new users before the sale opens: the rules admit them, and nothing is sold.
    BeforeOpening,
    /// Orders of new users, each of whom gets a piece.
    Order,
    /// Requests of new users to plain servers.
    Ping,
    TwoRules,
    Textbook,
}

/// Sends all of these in turn, after each of so many starts of the servers.
pub(crate) async fn run(rounds: usize, requests: u64) -> Result<Table> {
    let mut bursts = Bursts::new();
    for round in 1..=rounds {
        eprintln!("flagship: start {round} of {rounds}");
        let as_started = Server::of_seckill(&[]).await?;
        let closed = [&MANY_USERS[..], &["--first-come", "--opens-in", "1h"]].concat();
        let closed = Server::of_seckill(&closed).await?;
        let selling = [&MANY_USERS[..], &["--stock", "iphone=4000000"]].concat();
        let selling = Server::of_seckill(&selling).await?;
        // As many worker threads as the program takes.
        let workers = available_parallelism()?.get();
        let ping = Server::of_case(Case::Ping, workers).await?;
        let two_rules = Server::of_case(Case::RedisTwoRules, workers).await?;
        let textbook = Server::of_case(Case::TextbookTwoRules, workers).await?;

        let order = "/seckill/iphone/orders";
        let new_order = format!("{order}?user={NEW_USERS}");
        let new_user = format!("/?user={NEW_USERS}");
        let targets = [
            (Sent::Healthz, &as_started, "/healthz", &[][..], 200),
            (Sent::Denial, &as_started, order, POST_AS_ALICE, 429),
            (Sent::BeforeOpening, &closed, &new_order, POST, 403),
            (Sent::Order, &selling, &new_order, POST, 201),
            (Sent::Ping, &ping, &new_user, &[], 200),
            (Sent::TwoRules, &two_rules, &new_user, ADDRESS, 200),
            (Sent::Textbook, &textbook, &new_user, ADDRESS, 200),
        ];
        let targets = targets.map(|(key, server, path, arguments, status)| Target {
            key,
            server,
            url: format!("{}{path}", server.url),
            arguments,
            status,
        });
        bursts.send(targets.into(), requests).await?;
    }

    let mut table = Table::of_goals("The flash sale");
    let (server, redis) = (|sent| bursts.server_us(sent), |sent| bursts.redis_us(sent));
    let calls = |sent| bursts.redis_calls(sent);
    let healthz = server(Sent::Healthz);
    let name = "denial on the order route: server CPU / GET /healthz";
    table.goal(name, server(Sent::Denial), healthz, 1.2);
    for (name, sent) in [
        ("admission by seckill, before the opening", Sent::BeforeOpening),
        ("admission by a plain axum server, the same two rules", Sent::TwoRules),
    ] {
        let name = |what: &str| format!("{name}: {what}");
        table.goal(&name("server CPU / one PING"), server(sent), server(Sent::Ping), 1.1);
        let textbook = redis(Sent::Textbook);
        table.goal(&name("Redis CPU / two textbook scripts"), redis(sent), textbook, 0.65);
        table.row(name("script calls"), [vec![], vec![], calls(sent), vec![0.1]]);
    }
    let (redis_us, calls) = (redis(Sent::Order), calls(Sent::Order));
    table.row("sold order, end to end: Redis CPU, µs", [vec![], vec![], redis_us, vec![24.0]]);
    table.row("sold order, end to end: script calls", [vec![], vec![], calls, vec![]]);
    Ok(table)
}
