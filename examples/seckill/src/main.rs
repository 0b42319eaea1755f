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

use axum::Router;
use tower_sliding_window::store::{BanStore, Store};
use tower_sliding_window::{Bans, MemoryStore};

use crate::args::Args;
use crate::opening::{Opening, RedisClock, agree};
use crate::order::Sku;
use crate::policies::Limits;
use crate::routes::{Rules, Shop, routes};
use crate::stock::{MemoryStock, RedisStock, Replicas, Stock};
use crate::stock_cache::StockCache;
use example_support::admin::Admin;
use example_support::flags::RedisFlags;
use example_support::policies::PolicyFile;
use example_support::program::exit_code;
use example_support::server::Server;

#[tokio::main]
async fn main() -> ExitCode {
    exit_code(run(Args::read())).await
}

async fn run(args: Args) -> Result<(), Box<dyn Error>> {
    let server = Server::bind(&args.listen).await?;
    let admin = Admin::bind(&args.admin, &server).await?;
    let limits = Limits::new(&args)?;
    let reloads = args.policies.as_ref().map(PolicyFile::reloads).transpose()?;
    let (shop, bans) = apps(args, &limits).await?;
    if let Some(reloads) = reloads {
        tokio::spawn(limits.follow(reloads));
    }

    server.announce("listening on")?;
    if let Some(admin) = &admin {
        admin.announce()?;
    }
    let serve_admin = async {
        if let Some((admin, bans)) = admin.zip(bans) {
            admin.serve(admin::routes(bans)).await;
        }
    };
    tokio::join!(server.serve(shop), serve_admin);
    Ok(())
}

/// Opens the stores and puts the apps together.
///
/// Returns the routes of the shop, and the bans of its users if there can be any.
async fn apps(args: Args, limits: &Limits) -> Result<(Router, Option<Bans>), Box<dyn Error>> {
    let (opening, replicas, proxies) = (args.opening(), args.replicas(), args.proxies());
    let rules = Rules {
        user: limits.user()?,
        ip: limits.ip(),
        proxies,
        user_from: args.user_from,
        on_failure: args.on_failure,
    };
    let skus = args.stock;
    let page = pages::shop(skus.iter().map(|(sku, _)| sku), &rules.user_from);

    let Some(redis) = args.redis.connect().await? else {
        tracing::info!("windows, stock and orders are kept in this process");
        let stock = StockCache::new(Stock::Memory(MemoryStock::new(skus)), []);
        let opening = Opening::here(opening);
        return Ok(together(Shop { stock, opening, page }, rules, MemoryStore::new()));
    };
    let prefix = &args.redis.prefix;
    let clock = RedisClock::new(redis.store.commands(), prefix);
    let opening = agree(opening, clock).await.map_err(|source| redis.unusable(source))?;
    let own: Vec<Sku> = skus.iter().map(|(sku, _)| sku.clone()).collect();
    // Its own connection, on which nothing else waits for replicas.
    let orders = match replicas.wanted {
        0 => None,
        _ => {
            let response_timeout = args.redis.response_timeout + Replicas::LATER;
            RedisFlags { response_timeout, ..args.redis.clone() }.connect().await?
        }
    };
    let orders = orders.as_ref().unwrap_or(&redis).store.commands();
    let stock = RedisStock::open(orders, redis.store.commands(), prefix, skus, replicas)
        .await
        .map_err(|source| redis.unusable(source))?;
    let stock = StockCache::new(Stock::Redis(stock), own);
    tracing::info!(addresses = %redis.addresses, "windows, stock and orders are kept in Redis");
    Ok(together(Shop { stock, opening, page }, rules, redis.store))
}

fn together<S>(shop: Shop, rules: Rules, windows: S) -> (Router, Option<Bans>)
where
    S: Store + BanStore + Clone,
{
    let bans = rules.user.get().get_penalty().is_some();
    let bans = bans.then(|| Bans::new(rules.user.clone(), windows.clone()));
    (routes(shop, rules, windows), bans)
}
