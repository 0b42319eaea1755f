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

use axum::Router;
use tower_sliding_window::store::{RedisCommands, Store};
use tower_sliding_window::{Bans, Limiter, MemoryStore};

use crate::args::Args;
use crate::live::{Live, Meter};
use crate::opening::Opening;
use crate::policies::{Fleet, Limits, follow_file};
use crate::routes::{Shop, routes};
use crate::stock::{MemoryStock, RedisStock, Replicas, Stock, StockError};
use example_support::admin::Admin;
use example_support::flags::RedisFlags;
use example_support::policies::{PolicyFile, SharedPolicies};
use example_support::program::exit_code;
use example_support::server::Server;

#[tokio::main]
async fn main() -> ExitCode {
    exit_code(run(Args::read())).await
}

async fn run(args: Args) -> Result<(), Box<dyn Error>> {
    let server = Server::bind(&args.listen).await?;
    let admin = Admin::bind(&args.admin, &server).await?;
    let reloads = args.policies.as_ref().map(PolicyFile::reloads).transpose()?;
    let apps = apps(args).await?;
    if let Some(reloads) = reloads {
        tokio::spawn(follow_file(Arc::clone(&apps.fleet), reloads));
    }
    tokio::spawn(async move { apps.fleet.follow().await });

    server.announce("listening on")?;
    if let Some(admin) = &admin {
        admin.announce()?;
    }
    let serve_admin = async {
        if let Some(admin) = admin {
            admin.serve_with_pages(apps.operator, pages::live()).await;
        }
    };
    tokio::join!(server.serve(apps.clients), serve_admin);
    Ok(())
}

/// The routes of both listeners.
struct Apps {
    clients: Router,
    operator: Router,
    fleet: Arc<Fleet>,
}

/// Opens the stores and puts the apps together.
async fn apps(args: Args) -> Result<Apps, Box<dyn Error>> {
    let limits = Limits::new(&args)?;
    let skus = args.stock.iter().map(|(sku, _)| sku.clone()).collect();
    let Some(redis) = args.redis.connect().await? else {
        tracing::info!("windows, stock and orders are kept in this process");
        let stock = Stock::Memory(MemoryStock::new(args.stock.clone()));
        let opening = Opening::here(&args);
        let user_from = args.user_from.clone();
        let shop = Shop { stock, opening, skus, user_from };
        let parts = Parts { fleet: SharedPolicies::here(limits), shop, redis: None };
        return together(&args, parts, MemoryStore::new());
    };
    let unusable = |source| redis.unusable(source);
    let (prefix, replicas) = (&args.redis.prefix, args.replicas());
    let opening = Opening::agreed(&args, redis.store.commands()).await.map_err(unusable)?;
    // Its own connection, on which nothing else waits for replicas.
    let orders = match replicas.wanted {
        0 => None,
        _ => {
            let response_timeout = args.redis.response_timeout + Replicas::LATER;
            RedisFlags { response_timeout, ..args.redis.clone() }.connect().await?
        }
    };
    let orders = orders.as_ref().unwrap_or(&redis).store.commands();
    // And one for what clients only read: neither a check nor an order waits behind that.
    let reads = args.redis.connect().await?;
    let reads = reads.as_ref().unwrap_or(&redis).store.commands();
    let on_sale = args.stock.clone();
    let stock = RedisStock::open(orders, reads, prefix, on_sale, replicas, args.new_sale).await;
    let stock = stock.map_err(|error| -> Box<dyn Error> {
        match error {
            StockError::Store(source) => redis.unusable(source).into(),
            lost => format!(
                "{lost}, and maybe its orders\n\
                 hint: restore both from a backup, or begin a new sale: start one server with --new-sale"
            )
            .into(),
        }
    })?;
    let fleet = SharedPolicies::in_redis(limits, redis.store.commands(), prefix);
    fleet.look().await.map_err(unusable)?;
    tracing::info!(addresses = %redis.addresses, "windows, stock and orders are kept in Redis");
    let user_from = args.user_from.clone();
    let shop = Shop { stock: Stock::Redis(stock), opening, skus, user_from };
    let parts = Parts { fleet, shop, redis: Some(redis.store.commands()) };
    together(&args, parts, redis.store)
}

/// What differs between a server with Redis and one without, besides the store of the windows.
struct Parts {
    fleet: Fleet,
    shop: Shop,
    redis: Option<RedisCommands>,
}

/// Puts the routes of both listeners together.
fn together<S>(args: &Args, parts: Parts, windows: S) -> Result<Apps, Box<dyn Error>>
where
    S: Store + Clone,
{
    let Parts { fleet, shop, redis } = parts;
    let (fleet, shop) = (Arc::new(fleet), Arc::new(shop));
    let limits = fleet.set();
    // Nothing shows the counts otherwise.
    let meter = args.admin.admin.map(|_| Meter::new(limits.all()));
    let clients = routes(args, Arc::clone(&shop), limits, meter.clone(), windows.clone())?;
    let mut operator = Router::new();
    if let Some(meter) = meter {
        let bans = Bans::new(limits.user()?, windows.clone());
        let limiter = Limiter::new(limits.user()?, windows).failure_policy(args.on_failure);
        operator = admin::routes(bans.clone(), limiter, Arc::clone(&fleet))
            .merge(live::routes(Live { meter, fleet: Arc::clone(&fleet), shop, bans, redis }));
    }
    Ok(Apps { clients, operator, fleet })
}
