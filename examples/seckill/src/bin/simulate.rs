//! A sale under robots: two servers on one Redis, customers, and bots with many accounts. The program stands where
//! a balancer would, so that everybody has an address. `--help` says what it can play.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::{Parser, ValueEnum, value_parser};
use example_support::lock;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::TcpStream;
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
    /// What each account of a bot does.
    #[arg(long, value_enum, default_value = "one-shot")]
    strategy: Strategy,
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
    /// A Redis on this machine in place of one of its own. The keys of the sale, simulate-*, are left there.
    #[arg(long, value_name = "URL", value_parser = here)]
    redis: Option<String>,
    /// The server, if it is not beside this program.
    #[arg(long, value_name = "PATH")]
    server: Option<PathBuf>,
    /// More flags for the servers.
    #[arg(last = true)]
    flags: Vec<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Strategy {
    /// What a customer does, at the very opening.
    OneShot,
    /// Two requests a second, from five seconds before the opening on.
    #[value(name = "hammer-5s")]
    Hammer5s,
    /// The same from a whole window of 60 s before the opening on.
    HammerWindow,
}

/// Nobody else's Redis gets this load by accident.
fn here(url: &str) -> std::result::Result<String, &'static str> {
    let is_here = ["redis://127.0.0.1:", "redis://localhost:", "unix:"];
    let is_here = is_here.iter().any(|it| url.starts_with(it));
    if is_here { Ok(url.to_owned()) } else { Err("write redis://127.0.0.1:PORT or unix:PATH") }
}

#[tokio::main]
async fn main() -> ExitCode {
    let Err(error) = run(Args::parse()).await else { return ExitCode::SUCCESS };
    eprintln!("error: {error}");
    ExitCode::FAILURE
}

async fn run(mut args: Args) -> Result<()> {
    if let (None, Some(cargo)) = (&args.server, std::env::var_os("CARGO")) {
        // `cargo run` has built this program, and not the other.
        let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
        let build = ["build", "-q", "-p", "seckill", "--bin", "seckill", "--profile", profile];
        Command::new(cargo).args(build).status()?;
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
    use Strategy::{Hammer5s, HammerWindow, OneShot};
    let once = [(OneShot, 100, 20, 0), (OneShot, 1000, 20, 0), (OneShot, 100, 200, 0)];
    let more = [(OneShot, 1000, 200, 0), (OneShot, 100, 20, 60), (Hammer5s, 100, 20, 0)];
    let cases = once.into_iter().chain(more).chain([(HammerWindow, 100, 20, 0)]);
    let sale = |mode, (strategy, stock, addresses, nat_share)| {
        let nat = (nat_share > 0).then_some("--nat=100.64.0.0/30=1000");
        let flags = nat.into_iter().chain(mode).map(str::to_owned).chain(args.flags.clone());
        Args { strategy, stock, addresses, nat_share, flags: flags.collect(), ..args.clone() }
    };
    [Some("--first-come"), None]
        .iter()
        .flat_map(|mode| cases.clone().map(|case| sale(*mode, case)))
        .collect()
}

/// A process that ends with the sale.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Result<Self> {
        let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        Ok(Self(started.map_err(|error| format!("{:?}: {error}", command.get_program()))?))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

/// Starts a Redis that keeps nothing.
async fn redis() -> Result<(Process, String)> {
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let mut redis = Command::new("redis-server");
    redis.args(["--bind", "127.0.0.1", "--save", "", "--port", &address.port().to_string()]);
    let process = Process::start(&mut redis)?;
    while TcpStream::connect(address).await.is_err() {
        sleep(BEAT / 10).await;
    }
    Ok((process, format!("redis://{address}")))
}

struct Server {
    _process: Process,
    address: String,
    idle: Mutex<Vec<BufStream<TcpStream>>>,
}

/// The servers behind a balancer.
struct Shop {
    servers: [Server; 2],
    connections: Semaphore,
    opens: Instant,
    is_open: watch::Sender<bool>,
    is_draw: bool,
    /// How long before the opening bots hammer.
    lead: Duration,
}

/// A status, `Retry-After`, and the body.
type Answer = (u16, Option<Duration>, Value);

impl Shop {
    async fn open(args: &Args, redis: &str) -> Result<Self> {
        let prefix = format!("simulate-{}", uuid::Uuid::new_v4().simple());
        let lead = SECOND * [0, 5, 60][args.strategy as usize];
        let opens_in = format!("{}s", (LEAD + lead).as_secs());
        let start = || -> Result<Server> {
            let mut command = Command::new(args.server.as_deref().unwrap_or("seckill".as_ref()));
            command.args(["--listen", "127.0.0.1:0", "--trust-proxy", "127.0.0.1"]);
            command.args(["--redis", redis, "--prefix", &prefix, "--opens-in", &opens_in]);
            command.args(["--stock", &format!("sku={}", args.stock)]).args(&args.flags);
            let mut process = Process::start(command.env("RUST_LOG", "error"))?;
            let (mut line, out) = (String::new(), process.0.stdout.as_mut().ok_or("no stdout")?);
            BufReader::new(out).read_line(&mut line)?;
            let address = line.trim().strip_prefix("listening on http://");
            let address = address.ok_or("the server does not start")?;
            Ok(Server { address: address.to_owned(), _process: process, idle: Mutex::default() })
        };
        let mut shop = Self {
            servers: [start()?, start()?],
            connections: Semaphore::new(CONNECTIONS),
            opens: Instant::now(),
            is_open: watch::Sender::new(false),
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
        Ok(self.ask(&anybody, LEVEL, "", "").await?.2)
    }

    /// Sends a request on an idle connection, or on a new one.
    async fn ask(&self, actor: &Actor, what: &str, header: &str, body: &str) -> Result<Answer> {
        let _place = self.connections.acquire().await?;
        let Actor { number, user, ip, .. } = actor;
        let Server { address, idle, .. } = &self.servers[*number as usize % 2];
        let held = lock(idle).pop();
        let mut stream = match held {
            Some(stream) => stream,
            None => BufStream::new(TcpStream::connect(address).await?),
        };
        let head = format!(
            "{what} HTTP/1.1\r\nhost: {address}\r\nx-user-id: {user}\r\nx-forwarded-for: {ip}\r\n{header}\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.flush().await?;
        let (mut line, mut length, mut wait) = (String::new(), 0, None);
        stream.read_line(&mut line).await?;
        let status = line.split(' ').nth(1).ok_or("a server hangs up")?.parse()?;
        while line != "\r\n" {
            line.clear();
            stream.read_line(&mut line).await?;
            match line.trim().split_once(": ") {
                Some(("content-length", value)) => length = value.parse()?,
                Some(("retry-after", value)) => wait = Some(SECOND * value.parse()?),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        lock(idle).push(stream);
        Ok((status, wait, serde_json::from_slice(&body)?))
    }
}

const LEVEL: &str = "GET /seckill/sku";
const ORDER: &str = "POST /seckill/sku/orders";
const ENTER: &str = "POST /seckill/sku/entries";
const PAYMENT: &str = r#"{"payment_id": "simulated"}"#;
const ENTRY: &str = "GET /seckill/sku/entry";

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
    async fn send(&mut self, shop: &Shop, what: &str, header: &str) -> Result<Answer> {
        self.requests += 1;
        let answer = shop.ask(self, what, header, "").await?;
        self.is_admitted |= [201, 202, 409, 410].contains(&answer.0);
        self.has_ordered |= answer.0 == 201;
        Ok(answer)
    }

    /// Does what the page lets a customer do. Returns when to try again, if there is a use in that.
    async fn click(&mut self, shop: &Shop, is_open: bool) -> Result<Option<Duration>> {
        let what = match (shop.is_draw, is_open) {
            (true, false) => ENTER,
            (true, true) => ENTRY,
            (false, _) => ORDER,
        };
        let (mut status, mut wait, mut body) = self.send(shop, what, "").await?;
        if let Some(ticket) = body["ticket"].as_str() {
            let ticket = format!("x-seckill-ticket: {ticket}\r\n");
            (status, wait, body) = self.send(shop, ORDER, &ticket).await?;
        }
        if let (201, Some(order)) = (status, body["order_id"].as_str()) {
            // As the payment provider does.
            shop.ask(self, &format!("POST /orders/{order}/payment"), "", PAYMENT).await?;
        }
        let again = body["again_in_ms"].as_u64().filter(|_| is_open);
        Ok(again.map(Duration::from_millis).or(wait.filter(|wait| *wait <= PATIENCE)))
    }

    async fn clicks(&mut self, shop: &Shop, is_open: bool, most: usize) -> Result<()> {
        for _ in 0..most {
            match self.click(shop, is_open).await? {
                Some(wait) => sleep(wait).await,
                None => break,
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
        let _ = shop.is_open.subscribe().wait_for(|is_open| *is_open).await;
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
    let own = if args.redis.is_none() { Some(redis().await?) } else { None };
    let url = args.redis.as_ref().or(own.as_ref().map(|(_, url)| url)).ok_or("no Redis")?;
    let shop = Arc::new(Shop::open(args, url).await?);
    eprintln!("{:?}, stock {}, servers with {:?}", args.strategy, args.stock, args.flags);
    let mut all = JoinSet::new();
    for mut actor in actors(args) {
        let shop = Arc::clone(&shop);
        all.spawn(async move { actor.take_part(&shop).await.map(|()| actor) });
    }
    sleep_until(shop.opens).await;
    for number in 0..2 {
        while !shop.level(number).await?["opens_in_ms"].is_null() {
            sleep(BEAT / 100).await;
        }
    }
    shop.is_open.send_replace(true);
    let actors: Vec<Actor> = all.join_all().await.into_iter().collect::<Result<_>>()?;
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
        "| {} | {} | {} | {} % | {stock} | {:.1} % | {:.1} % | {} | {} | {} |",
        if shop.is_draw { "draw" } else { "first come" },
        args.strategy.to_possible_value().as_ref().map_or("", |it| it.get_name()),
        args.addresses,
        args.nat_share,
        share(count(|it| it.is_admitted && !it.is_honest), count(|it| it.is_admitted)),
        share(count(|it| it.has_ordered && !it.is_honest), stock),
        count(|it| it.is_honest && !it.is_admitted),
        actors.iter().filter(|it| it.is_honest).map(|it| it.requests).max().unwrap_or(0),
        stock - sold,
    ))
}
