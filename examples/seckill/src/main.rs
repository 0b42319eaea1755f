//! A flash sale behind a sliding window: five requests a minute for each user on all servers
//! together, and a stock that is never oversold.
//!
//! ```text
//! cargo run --release -p seckill
//! cargo run --release -p seckill -- --redis redis://127.0.0.1:6379 --stock iphone=100
//! cargo run --release -p seckill -- --help
//! ```

mod admin;
mod args;
mod draw;
mod live;
mod names;
mod opening;
mod pages;
mod policies;
mod routes;
mod stock;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use axum::Router;
use tower_sliding_window::store::Store;
use tower_sliding_window::{Bans, MemoryStore, StoreError};

use crate::admin::{Operator, audit};
use crate::args::Args;
use crate::draw::Draw;
use crate::live::{Meter, new_sales};
use crate::names::{Sku, user_key};
use crate::opening::Opening;
use crate::policies::Limits;
use crate::routes::{Shop, routes};
use crate::stock::{MemoryStock, OnSale, Records, RedisStock, StockError, Terms};
use example_support::admin::{Admin, checked, serve};
use example_support::logs::exit_code;
use example_support::policies::SharedPolicies;
use example_support::server::Server;

#[tokio::main]
async fn main() -> ExitCode {
    exit_code(run(Args::read())).await
}

async fn run(args: Args) -> Result<(), Box<dyn Error>> {
    let server = Server::bind(&args.listen).await?;
    let admin = Admin::bind(&args.admin, &server).await?;
    let limits = Limits::new(&args)?;
    // Before Redis hears of a sale that does not begin.
    args.payment_token.as_deref().map(checked).transpose()?;
    let (redis, prefix) = (args.redis.connect().await?, &args.redis.prefix);
    let commands = redis.as_ref().map(|redis| redis.store.commands());
    let unusable = |error: StoreError| -> Box<dyn Error> {
        match &redis {
            Some(redis) => redis.unusable(error).into(),
            None => error.into(),
        }
    };
    let opening = Opening::start(&args, commands.clone()).await.map_err(unusable)?;
    // The date may have nanoseconds.
    let is_later = |date| date >= UNIX_EPOCH + Duration::from_micros(opening.micros() + 1);
    if opening.opens_in().is_none() && args.opens_at.is_some_and(is_later) {
        let error = format!(
            "--opens-at is later than the opening in the key {prefix}:opening, and the sale is open\n\
             hint: leave the date as it was, or for a new sale stop all servers, and delete {prefix}:opening and \
             {prefix}:{{SKU}}:*, but keep :refunds until they are paid back"
        );
        return Err(error.into());
    }
    let draws = opening.micros() > 0 && !args.first_come;
    let terms = Terms { opening, draws, turn: args.turn, pay_within: args.pay_within };
    let stock = match commands.clone() {
        None => {
            let on_sale = |(sku, pieces): &(Sku, u32)| OnSale {
                sku: sku.clone(),
                draw: if terms.draws { Draw::of(&Draw::seed()) } else { None },
                records: Records::Memory(Box::new(MemoryStock::new(*pieces, &terms))),
            };
            args.stock.iter().map(on_sale).collect()
        }
        Some(commands) => {
            let min = args.replicas();
            // What waits for replicas has a connection on which nothing else waits with it.
            let waiting = if min.wanted > 0 { args.redis.connect().await? } else { None };
            let waiting = waiting.map(|redis| redis.store.commands());
            let terms = terms.clone();
            let opened = RedisStock::open(commands, waiting, prefix, &args.stock, min, terms).await;
            let (stock, lost) = opened.map_err(|error| match error {
                StockError::Store(error) => unusable(error),
                error => error.into(),
            })?;
            if !lost.is_empty() {
                let (what, hint) = new_sales(prefix, &lost, stock.is_empty());
                return Err(format!("{what}, and maybe the orders\nhint: {hint}").into());
            }
            stock
        }
    };
    let shared = commands.map(|commands| (commands, &**prefix));
    let fleet = Arc::new(SharedPolicies::new(limits, Default::default(), shared));
    fleet.look().await.map_err(unusable)?;
    let followed = Arc::clone(&fleet);
    tokio::spawn(async move { followed.follow().await });
    let windows: Arc<dyn Store> = match redis {
        Some(redis) => {
            tracing::info!(addresses = %redis.addresses, "windows, stock and orders are kept in Redis");
            Arc::new(redis.store)
        }
        None => {
            tracing::info!("windows, stock and orders are kept in this process");
            Arc::new(MemoryStore::new())
        }
    };
    if args.user_query.is_some() {
        tracing::warn!(
            "every client is the user that it names: --user-query is for load generators"
        );
    }
    let shop = Arc::new(Shop {
        stock,
        terms,
        prefix: args.redis.prefix.clone(),
        user: user_key(args.user_query.as_deref()),
        keeps_refunds: args.payment_token.is_some() && !args.redis.redis.is_empty(),
        meter: Meter::new(),
    });
    let clients = routes(&args, Arc::clone(&shop), fleet.set(), Arc::clone(&windows))?;
    let mut operator = Router::new();
    if args.admin.admin.is_some() {
        let bans = Bans::new(fleet.set().user(), Arc::clone(&windows)).on_event(audit);
        let on_failure = args.on_failure;
        operator = admin::routes(Operator { shop, fleet, bans, windows, on_failure });
    }
    serve(server, clients, admin, operator, pages::live()).await?;
    Ok(())
}
