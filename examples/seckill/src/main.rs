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
mod opening;
mod order;
mod pages;
#[cfg(test)]
mod parsers_tests;
mod policies;
mod routes;
mod stock;
mod stock_cache;
mod user;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use axum::Router;
use tokio::sync::watch;
use tower_sliding_window::store::Store;
use tower_sliding_window::{Bans, Limiter, MemoryStore};

use crate::args::Args;
use crate::live::{Meter, Sampler, Source, StoreKind};
use crate::opening::{Opening, RedisClock, agree};
use crate::order::Sku;
use crate::policies::{Fleet, Limits};
use crate::routes::{Rules, Shop, routes};
use crate::stock::{MemoryStock, RedisStock, Replicas, Stock, StockError};
use crate::stock_cache::StockCache;
use example_support::admin::Admin;
use example_support::flags::RedisFlags;
use example_support::policies::{PolicyFile, Shared};
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
    let apps = apps(args, server.stopping()).await?;
    let fleet = apps.fleet;
    if let Some(reloads) = reloads {
        let fleet = Arc::clone(&fleet);
        tokio::spawn(async move { fleet.follow(reloads).await });
    }
    tokio::spawn(async move { fleet.run().await });

    server.announce("listening on")?;
    if let Some(admin) = &admin {
        admin.announce()?;
    }
    let serve_admin = async {
        if let Some(admin) = admin {
            admin.serve_with_pages(apps.operator, live::pages()).await;
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
async fn apps(args: Args, stopping: watch::Receiver<bool>) -> Result<Apps, Box<dyn Error>> {
    let limits = Limits::new(&args)?;
    let (opening, replicas, proxies) = (args.opening(), args.replicas(), args.proxies()?);
    let has_admin = args.admin.admin.is_some();
    let rules = Rules {
        user: limits.user()?,
        ip: limits.ip(),
        read_user: args.read_quota.named("read"),
        read_ip: args.read_ip_quota.map(|quota| quota.named("read-ip")),
        proxies,
        on_failure: args.on_failure,
        // Nothing shows the counts otherwise.
        meter: if has_admin { Meter::new(limits.names()) } else { None },
    };
    let (skus, new_sale) = (args.stock, args.new_sale);
    let own: Vec<Sku> = skus.iter().map(|(sku, _)| sku.clone()).collect();
    let user_from = args.user_from;
    let page = pages::shop(own.iter(), &user_from);

    let Some(redis) = args.redis.connect().await? else {
        tracing::info!("windows, stock and orders are kept in this process");
        let stock = StockCache::new(Stock::Memory(MemoryStock::new(skus)), []);
        let opening = Opening::here(opening);
        let fleet = Arc::new(Fleet::new(limits, None).await?);
        let parts = Parts { fleet, store: StoreKind::Memory, own, stopping };
        let shop = Shop { stock, opening, page, user_from };
        return Ok(together(Arc::new(shop), rules, MemoryStore::new(), parts));
    };
    let prefix = &args.redis.prefix;
    let clock = RedisClock::new(redis.store.commands(), prefix);
    let opening = agree(opening, clock).await.map_err(|source| redis.unusable(source))?;
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
    let stock = RedisStock::open(orders, reads, prefix, skus, replicas, new_sale);
    let stock = stock.await.map_err(|error| -> Box<dyn Error> {
        match error {
            StockError::Store(source) => redis.unusable(source).into(),
            lost => format!(
                "{lost}, and maybe its orders\n\
                 hint: restore both from a backup, or begin a new sale: start one server with --new-sale"
            )
            .into(),
        }
    })?;
    let opening = opening.start().await.map_err(|source| redis.unusable(source))?;
    let stock = StockCache::new(Stock::Redis(stock), own.clone());
    let shared = Shared::new(redis.store.commands(), prefix);
    let fleet = Fleet::new(limits, Some(shared)).await.map_err(|source| redis.unusable(source))?;
    tracing::info!(addresses = %redis.addresses, "windows, stock and orders are kept in Redis");
    let store = StoreKind::Redis(redis.store.commands());
    let parts = Parts { fleet: Arc::new(fleet), store, own, stopping };
    let shop = Shop { stock, opening, page, user_from };
    Ok(together(Arc::new(shop), rules, redis.store, parts))
}

/// What the routes of the operator need besides the shop.
struct Parts {
    fleet: Arc<Fleet>,
    store: StoreKind,
    own: Vec<Sku>,
    stopping: watch::Receiver<bool>,
}

/// Puts the routes of both listeners together, and takes samples for the live page if there is an
/// admin listener.
fn together<S>(shop: Arc<Shop>, rules: Rules, windows: S, parts: Parts) -> Apps
where
    S: Store + Clone,
{
    let Parts { fleet, store, own, stopping } = parts;
    let mut operator = Router::new();
    if let Some(meter) = rules.meter.clone() {
        let bans = Bans::new(rules.user.clone(), windows.clone());
        let limiter = Limiter::new(rules.user.clone(), windows.clone());
        let limiter = limiter.failure_policy(rules.on_failure);
        let source = Source { store, shop: Arc::clone(&shop), skus: own, bans: bans.clone() };
        let sampler = Arc::new(Sampler::new(meter, Arc::clone(&fleet), source));
        operator = admin::routes(bans)
            .merge(admin::explain::routes(limiter))
            .merge(admin::policies::routes(Arc::clone(&fleet)))
            .merge(live::routes(Arc::clone(&sampler), stopping));
        tokio::spawn(async move { sampler.run().await });
    }
    Apps { clients: routes(shop, rules, windows), operator, fleet }
}
