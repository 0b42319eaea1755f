//! A sale under robots: two servers on one Redis, customers, and bots with many accounts. The program stands where
//! a balancer would, so that everybody has an address. `--help` says what it can play.

use std::convert::Infallible;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::http::header::RETRY_AFTER;
use clap::{Parser, value_parser};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

const SECOND: Duration = Duration::from_secs(1);
/// From the start to the opening, without the time that bots hammer. Customers enter a draw meanwhile.
const LEAD: Duration = SECOND.saturating_mul(4);
/// All customers click within this time.
const CLICK_US: u64 = 500_000;
/// The longest that anybody waits to try again after a 429.
const PATIENCE: Duration = SECOND.saturating_mul(10);
/// The time between two requests of an account that hammers, and how long it does after the opening.
const BEAT: Duration = Duration::from_millis(500);
const AFTER: Duration = SECOND.saturating_mul(3);
/// The longest that a sale may take.
const END: Duration = SECOND.saturating_mul(300);
/// The requests under way at one time.
const CONNECTIONS: usize = 256;

const COLUMNS: &str = "| sale | bots | their addresses | customers behind 4 addresses | stock | bots' \
                       share of those admitted | of the stock | customers turned away | most \
                       requests of a customer | unsold |";

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Plays a sale under robots on this machine, and prints a row of a markdown table. Starts a Redis and two servers,
/// and sends requests to nothing else.
#[derive(Clone, Parser)]
#[command(name = "simulate")]
struct Args {
    /// From how many seconds before the opening on each account of a bot sends two requests a second, such as 60, the
    /// whole window of a quota. With 0 it does what a customer does, at the very opening.
    #[arg(long, default_value = "0", value_parser = value_parser!(u32).range(..=100))]
    hammer: u32,
    /// Customers. Each clicks once, and once more if it is told when.
    #[arg(long, default_value = "2000", value_parser = value_parser!(u32).range(1..=20_000))]
    honest: u32,
    #[arg(long, default_value = "200", value_parser = value_parser!(u32).range(..=2000))]
    bots: u32,
    /// Accounts of each bot.
    #[arg(long, default_value = "10", value_parser = value_parser!(u32).range(1..=100))]
    accounts: u32,
    /// Addresses of all bots together.
    #[arg(long, default_value = "20", value_parser = value_parser!(u32).range(1..=20_000))]
    addresses: u32,
    #[arg(long, default_value = "100", value_parser = value_parser!(u32).range(1..=100_000))]
    stock: u32,
    /// Percent of the customers behind four addresses of a carrier: those of 100.64.0.0/30.
    #[arg(long, default_value = "0", value_parser = value_parser!(u32).range(..=100))]
    nat_share: u32,
    /// Decides when each customer clicks.
    #[arg(long, default_value = "1")]
    seed: u64,
    /// Plays the sales of the README, and prints their table.
    #[arg(long)]
    table: bool,
    /// The server, if it is not beside this program.
    #[arg(long, value_name = "PATH")]
    server: Option<PathBuf>,
    /// More flags for the servers.
    #[arg(last = true)]
    flags: Vec<String>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = Args::parse();
    if let (None, Some(cargo)) = (&args.server, std::env::var_os("CARGO")) {
        // `cargo run` has built this program, and not the other.
        let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
        let build = ["build", "-q", "-p", "seckill", "--bin", "seckill", "--profile", profile];
        let built = Command::new(cargo).args(build).status().await?;
        if !built.success() {
            return Err("the server can't be built".into());
        }
    }
    args.server.get_or_insert(std::env::current_exe()?.with_file_name("seckill"));
    let mut sales = vec![args];
    if sales[0].table {
        println!("{COLUMNS}\n|---|---|--:|--:|--:|--:|--:|--:|--:|--:|");
        sales = table(&sales[0]);
    }
    for sale in &sales {
        println!("{}", timeout(END, play(sale)).await??);
    }
    Ok(())
}

/// Returns the sales of the README.
fn table(args: &Args) -> Vec<Args> {
    // How long bots hammer, the stock, the addresses of bots, and how many customers have a carrier.
    let cases = [
        (0, 100, 20, 0),
        (0, 1000, 20, 0),
        (0, 100, 200, 0),
        (0, 1000, 200, 0),
        (0, 100, 20, 60),
        (5, 100, 20, 0),
        (60, 100, 20, 0),
    ];
    let sale = |mode, (hammer, stock, addresses, nat_share)| {
        let nat = (nat_share > 0).then_some("--nat=100.64.0.0/30=1000");
        let flags = nat.into_iter().chain(mode).map(str::to_owned).chain(args.flags.clone());
        Args { hammer, stock, addresses, nat_share, flags: flags.collect(), ..args.clone() }
    };
    let modes = [Some("--first-come"), None];
    modes.iter().flat_map(|mode| cases.map(|case| sale(*mode, case))).collect()
}

/// Starts a process that ends with the sale.
fn start(command: &mut Command) -> Result<Child> {
    let started = command.stdin(Stdio::null()).kill_on_drop(true).spawn();
    started.map_err(|error| format!("{:?}: {error}", command.as_std().get_program()).into())
}

/// Starts a Redis that keeps nothing.
async fn redis() -> Result<(Child, String)> {
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let mut redis = Command::new("redis-server");
    redis.args(["--bind", "127.0.0.1", "--save", "", "--port", &address.port().to_string()]);
    let process = start(redis.stdout(Stdio::null()))?;
    while TcpStream::connect(address).await.is_err() {
        sleep(BEAT / 10).await;
    }
    Ok((process, format!("redis://{address}")))
}

/// Starts a server, and returns its URL.
async fn server(args: &Args, redis: &str, opens_in: Duration) -> Result<(Child, String)> {
    let mut command = Command::new(args.server.as_deref().unwrap_or("seckill".as_ref()));
    command.args(["--listen", "127.0.0.1:0", "--trust-proxy", "127.0.0.1", "--redis", redis]);
    command.args(["--opens-in", &format!("{}s", opens_in.as_secs())]);
    command.args(["--stock", &format!("sku={}", args.stock)]).args(&args.flags);
    // What an operator has set for a sale of their own is not for this one.
    command.env_clear();
    let mut process = start(command.env("RUST_LOG", "error").stdout(Stdio::piped()))?;
    let out = BufReader::new(process.stdout.take().ok_or("no stdout")?);
    let line = out.lines().next_line().await?.unwrap_or_default();
    let url = line.strip_prefix("listening on ").ok_or("the server does not start")?;
    Ok((process, url.to_owned()))
}

/// The servers behind a balancer.
struct Shop {
    servers: [(Child, String); 2],
    client: Client<HttpConnector, Body>,
    connections: Semaphore,
    opens: Instant,
    /// What every page shows, for all of them read the level: whether the sale is open, and whether all pieces are paid.
    shown: watch::Sender<(bool, bool)>,
    is_draw: bool,
    /// How long before the opening bots hammer.
    lead: Duration,
}

/// A status, `Retry-After`, and the body.
type Answer = (u16, Option<Duration>, Value);

impl Shop {
    async fn open(args: &Args, redis: &str) -> Result<Self> {
        let lead = SECOND * args.hammer;
        let start = || server(args, redis, LEAD + lead);
        let mut shop = Self {
            servers: [start().await?, start().await?],
            client: Client::builder(TokioExecutor::new()).build_http(),
            connections: Semaphore::new(CONNECTIONS),
            opens: Instant::now(),
            shown: watch::Sender::default(),
            is_draw: false,
            lead,
        };
        let level = shop.level(0).await?;
        let opens_in = level["opens_in_ms"].as_u64().ok_or("the sale is open already")?;
        shop.opens = Instant::now() + Duration::from_millis(opens_in);
        shop.is_draw = level["mode"] == "draw";
        Ok(shop)
    }

    async fn level(&self, number: u32) -> Result<Value> {
        let ip = Ipv4Addr::LOCALHOST.to_string();
        let anybody = Actor { number, user: "anybody".into(), ip, ..Actor::default() };
        Ok(self.ask(&anybody, "GET /seckill/sku", "", "").await?.2)
    }

    /// Follows the sale, without an end.
    async fn follow(&self) -> Result<Infallible> {
        sleep_until(self.opens).await;
        loop {
            let levels = [self.level(0).await?, self.level(1).await?];
            let is_open = levels.iter().all(|it| it["opens_in_ms"].is_null());
            self.shown.send_replace((is_open, levels[0]["over"] == true));
            sleep(if is_open { BEAT } else { BEAT / 100 }).await;
        }
    }

    async fn shows(&self, what: impl FnMut(&(bool, bool)) -> bool) {
        let _ = self.shown.subscribe().wait_for(what).await;
    }

    async fn ask(&self, actor: &Actor, what: &str, ticket: &str, body: &str) -> Result<Answer> {
        let _place = self.connections.acquire().await?;
        let Actor { number, user, ip, .. } = actor;
        let (method, path) = what.split_once(' ').ok_or("no request")?;
        let (_, url) = &self.servers[*number as usize % 2];
        let request = Request::builder().method(method).uri(format!("{url}{path}"));
        let request = request.header("x-user-id", user).header("x-forwarded-for", ip);
        let request = request.header("x-seckill-ticket", ticket).body(body.to_owned().into())?;
        let (head, body) = self.client.request(request).await?.into_parts();
        let wait = head.headers.get(RETRY_AFTER).and_then(|wait| wait.to_str().ok()?.parse().ok());
        let body = to_bytes(Body::new(body), usize::MAX).await?;
        let wait = wait.map(Duration::from_secs);
        Ok((head.status.as_u16(), wait, serde_json::from_slice(&body)?))
    }
}

/// One account, and what came of it.
#[derive(Default)]
struct Actor {
    number: u32,
    user: String,
    ip: String,
    is_honest: bool,
    /// How long after the others it clicks at the earliest.
    click: Duration,
    requests: u32,
    /// It has entered the draw, or has reached the stock.
    is_admitted: bool,
    has_ordered: bool,
}

impl Actor {
    async fn send(&mut self, shop: &Shop, what: &str, ticket: &str) -> Result<Answer> {
        self.requests += 1;
        let answer = shop.ask(self, what, ticket, "").await?;
        self.is_admitted |= [201, 202, 409, 410].contains(&answer.0);
        self.has_ordered |= answer.0 == 201;
        Ok(answer)
    }

    /// Does what the page lets a customer do. Returns when to try again, if there is a use in that.
    async fn click(&mut self, shop: &Shop, is_open: bool) -> Result<Option<Duration>> {
        let order = "POST /seckill/sku/orders";
        let what = match (shop.is_draw, is_open) {
            (true, false) => "POST /seckill/sku/entries",
            (true, true) => "GET /seckill/sku/entry",
            (false, _) => order,
        };
        let (mut status, mut wait, mut body) = self.send(shop, what, "").await?;
        if let Some(ticket) = body["ticket"].as_str().map(str::to_owned) {
            (status, wait, body) = self.send(shop, order, &ticket).await?;
        }
        if let (201, Some(order)) = (status, body["order_id"].as_str()) {
            // As the payment provider does.
            let payment = format!(r#"{{"payment_id": "{order}"}}"#);
            shop.ask(self, &format!("POST /orders/{order}/payment"), "", &payment).await?;
        }
        let again = body["again_in_ms"].as_u64().filter(|_| is_open);
        Ok(again.map(Duration::from_millis).or(wait.filter(|wait| *wait <= PATIENCE)))
    }

    async fn clicks(&mut self, shop: &Shop, is_open: bool, most: usize) -> Result<()> {
        for _ in 0..most {
            let Some(wait) = self.click(shop, is_open).await? else { break };
            if timeout(wait, shop.shows(|(_, is_over)| *is_over)).await.is_ok() {
                break;
            }
        }
        Ok(())
    }

    async fn take_part(&mut self, shop: &Shop) -> Result<()> {
        if !self.is_honest && !shop.lead.is_zero() {
            let mut next = shop.opens - shop.lead;
            while next < shop.opens + AFTER && !self.has_ordered {
                sleep_until(next).await;
                self.click(shop, next >= shop.opens).await?;
                next += BEAT;
            }
            return Ok(());
        }
        if shop.is_draw {
            sleep_until(shop.opens - LEAD / 2 + self.click).await;
            self.clicks(shop, false, 2).await?;
        }
        shop.shows(|(is_open, _)| *is_open).await;
        sleep(self.click).await;
        let most = [2, if self.is_admitted { 100 } else { 0 }][usize::from(shop.is_draw)];
        self.clicks(shop, true, most).await
    }
}

/// Returns all actors. When they click depends on the seed only.
fn actors(args: &Args) -> impl Iterator<Item = Actor> {
    let Args { honest, accounts, addresses, nat_share, mut seed, .. } = *args;
    (0..honest + args.bots * accounts).map(move |number| {
        let is_honest = number < honest;
        let bot = number.saturating_sub(honest) / accounts;
        let (network, host) = match is_honest {
            true if number % 100 < nat_share => ([100, 64, 0, 0], number % 4),
            true => ([10, 0, 0, 0], number),
            false => ([11, 0, 0, 0], bot % addresses),
        };
        // Knuth's generator.
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let click = if is_honest { (seed >> 33) % CLICK_US } else { 0 };
        let ip = Ipv4Addr::from(u32::from_be_bytes(network) | host).to_string();
        let (user, click) = (format!("user-{number}"), Duration::from_micros(click));
        Actor { number, user, ip, is_honest, click, ..Actor::default() }
    })
}

/// Plays a sale, and returns its row.
async fn play(args: &Args) -> Result<String> {
    let (_redis, url) = redis().await?;
    let shop = Arc::new(Shop::open(args, &url).await?);
    let bots = if args.hammer > 0 { format!("hammer-{}s", args.hammer) } else { "one-shot".into() };
    eprintln!("{bots}, stock {}, servers with {:?}", args.stock, args.flags);
    let mut all = JoinSet::new();
    for mut actor in actors(args) {
        let shop = Arc::clone(&shop);
        all.spawn(async move { actor.take_part(&shop).await.map(|()| actor) });
    }
    let actors = tokio::select! {
        actors = all.join_all() => actors.into_iter().collect::<Result<Vec<Actor>>>()?,
        failed = shop.follow() => match failed? {},
    };
    // The servers read the levels four times a second.
    sleep(SECOND).await;
    let sold = shop.level(0).await?["sold"].as_u64().ok_or("what is sold is not known")?;
    let count = |which: fn(&&Actor) -> bool| actors.iter().filter(which).count() as u64;
    let (orders, stock) = (count(|it| it.has_ordered), args.stock.into());
    eprintln!("{} requests, {orders} orders", actors.iter().map(|it| it.requests).sum::<u32>());
    if orders != sold || sold > stock {
        return Err(format!("{orders} orders, and {sold} of {stock} are sold").into());
    }
    let share = |part, whole: u64| 100.0 * part as f64 / whole as f64;
    Ok(format!(
        "| {} | {bots} | {} | {} % | {stock} | {:.1} % | {:.1} % | {} | {} | {} |",
        if shop.is_draw { "draw" } else { "first come" },
        args.addresses,
        args.nat_share,
        share(count(|it| it.is_admitted && !it.is_honest), count(|it| it.is_admitted)),
        share(count(|it| it.has_ordered && !it.is_honest), stock),
        count(|it| it.is_honest && !it.is_admitted),
        actors.iter().filter(|it| it.is_honest).map(|it| it.requests).max().unwrap_or(0),
        stock - sold,
    ))
}
