//! What a denial, an admission and a sold order cost at the example server seckill, which runs as a
//! program of its own.

use std::collections::HashMap;
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;

use crate::cases::Case;
use crate::load::Load;
use crate::measure::{CONNECTIONS, Plan};
use crate::process::{cpu, start};
use crate::redis_server::RedisServer;
use crate::server::Server;
use crate::table::Table;
use crate::targets::{Goal, goals};
use crate::workloads::NEW_USERS;

/// How many bursts each load gets after each start, in turn with the others.
const BURSTS: usize = 3;
/// A burst has this share of the requests of a whole case.
const SHARE: u64 = 10;
const WARM_UP: u64 = 2_000;

/// The same two rules as by default, but so many requests of an address that it is never denied: all of
/// the load come from one. oha makes new users in the URL only.
const MANY_USERS: [&str; 4] = ["--ip-quota", "1000000/60s", "--user-from", "query:user"];

/// What is sent, and to which server.
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
    /// The same users at plain servers of this program.
    Ping,
    TwoRules,
    Textbook,
}

/// What a request cost the server and Redis, in CPU microseconds and in script calls, for each burst.
#[derive(Default)]
struct Costs {
    server: Vec<f64>,
    redis: Vec<f64>,
    calls: Vec<f64>,
}

/// Measures all loads in turn, after each of `rounds` starts of the servers.
pub(crate) async fn run(plan: Plan) -> Result<Table> {
    let mut all = HashMap::new();
    for round in 1..=plan.rounds {
        eprintln!("flagship: start {round} of {}", plan.rounds);
        measure(plan.requests.div_ceil(SHARE), &mut all).await?;
    }
    let of = |sent| all.get(&sent).context("a load that was not sent");
    let (healthz, denial) = (of(Sent::Healthz)?, of(Sent::Denial)?);
    let (ping, textbook, order) = (of(Sent::Ping)?, of(Sent::Textbook)?, of(Sent::Order)?);
    let name = "denial on the order route: server CPU / GET /healthz";
    let mut table = vec![Goal::ratio(name, &denial.server, &healthz.server, 1.2)];
    for (name, sent) in [
        ("admission by seckill, before the opening", Sent::BeforeOpening),
        ("admission by a plain axum server, the same two rules", Sent::TwoRules),
    ] {
        let costs = of(sent)?;
        let name = |what: &str| format!("{name}: {what}");
        table.extend([
            Goal::ratio(&name("server CPU / one PING"), &costs.server, &ping.server, 1.1),
            Goal::ratio(
                &name("Redis CPU / two textbook scripts"),
                &costs.redis,
                &textbook.redis,
                0.65,
            ),
            Goal::value(&name("script calls"), &costs.calls, Some(0.1)),
        ]);
    }
    table.extend([
        Goal::value("sold order, end to end: Redis CPU, µs", &order.redis, Some(24.0)),
        Goal::value("sold order, end to end: script calls", &order.calls, None),
    ]);
    Ok(goals("The flagship: seckill with its two rules on Redis, 64 connections", &table))
}

/// Starts all servers, and adds what their bursts cost.
async fn measure(requests: u64, all: &mut HashMap<Sent, Costs>) -> Result<()> {
    let as_started = Seckill::start(&[]).await?;
    let closed = Seckill::start(&[&MANY_USERS[..], &["--opens-in", "1h"]].concat()).await?;
    let selling =
        Seckill::start(&[&MANY_USERS[..], &["--stock", "iphone=4000000"]].concat()).await?;
    // As many worker threads as the program takes.
    let workers = available_parallelism()?.get();
    let ping = Server::start(Case::Ping, workers).await?;
    let two_rules = Server::start(Case::RedisTwoRules, workers).await?;
    let textbook = Server::start(Case::TextbookTwoRules, workers).await?;

    const ADDRESS: &[&str] = &["-H", "x-address: 127.0.0.1"];
    let order = |server: &Seckill| format!("{}/seckill/iphone/orders", server.url);
    let new_user = |server: &Seckill| format!("{}?user={NEW_USERS}", order(server));
    let mut loads = Vec::new();
    for (sent, url, arguments, status, server) in [
        (Sent::Healthz, format!("{}/healthz", as_started.url), &[][..], 200, &as_started),
        (
            Sent::Denial,
            order(&as_started),
            &["-m", "POST", "-H", "x-user-id: alice"],
            429,
            &as_started,
        ),
        (Sent::BeforeOpening, new_user(&closed), &["-m", "POST"], 403, &closed),
        (Sent::Order, new_user(&selling), &["-m", "POST"], 201, &selling),
    ] {
        loads.push((sent, url, arguments, status, server.pid()?, &server.redis));
    }
    for (sent, server) in
        [(Sent::Ping, &ping), (Sent::TwoRules, &two_rules), (Sent::Textbook, &textbook)]
    {
        let redis = server.redis.as_ref().context("no Redis server")?;
        loads.push((sent, server.url(NEW_USERS), ADDRESS, 200, server.pid()?, redis));
    }

    for burst in 0..=BURSTS {
        // The same order each time would always put a load behind the same other.
        fastrand::shuffle(&mut loads);
        for &(sent, ref url, arguments, status, pid, redis) in &loads {
            let redis_pid = redis.pid()?;
            redis.reset_stats().await?;
            let before = (cpu(pid)?, cpu(redis_pid)?);
            // The first burst warms up.
            let requests = if burst > 0 { requests } else { WARM_UP };
            let (url, connections) = (url.clone(), CONNECTIONS);
            let seen = Load { url, requests, connections, rate: None, arguments }.run().await?;
            let used = (cpu(pid)? - before.0, cpu(redis_pid)? - before.1);
            if burst == 0 {
                continue;
            }
            let share = seen.share(status);
            ensure!(share > 0.999, "{sent:?}: {:.1} % have status {status}", share * 100.0);
            let each = |time: Duration| time.as_secs_f64() * 1e6 / requests as f64;
            let costs = all.entry(sent).or_default();
            costs.server.push(each(used.0));
            costs.redis.push(each(used.1));
            costs.calls.push(redis.commands().await? as f64 / requests as f64);
        }
    }
    Ok(())
}

/// The example server in a process of its own, and its Redis server. Both end when this value is
/// dropped.
struct Seckill {
    process: Child,
    url: String,
    redis: RedisServer,
}

impl Seckill {
    /// Starts the program that was built beside this one.
    async fn start(arguments: &[&str]) -> Result<Self> {
        let program = std::env::current_exe()?.with_file_name("seckill");
        let hint = "run `cargo build --release -p seckill` with the same target directory";
        ensure!(program.is_file(), "there is no {}: {hint}", program.display());
        let redis = RedisServer::start().await?;
        let url = redis.url();
        let needed = ["--listen", "127.0.0.1:0", "--redis", &url];
        let all = needed.iter().chain(arguments).map(ToString::to_string);
        let mut process = start(&program, &all.collect::<Vec<_>>())?;
        let output = process.stdout.take().context("no output")?;
        let line = BufReader::new(output).lines().next_line().await?.unwrap_or_default();
        let url = line.strip_prefix("listening on ").context("seckill does not start")?.to_owned();
        Ok(Self { process, url, redis })
    }

    fn pid(&self) -> Result<u32> {
        self.process.id().context("seckill has ended")
    }
}
