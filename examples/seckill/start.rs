//! From the command line to the app: opens the stores, or says why that can't be.

use axum::Router;
use tower_sliding_window::{MemoryStore, Policy};

use crate::args::Args;
use crate::common::redis::OpenError;
use crate::common::server::ServerError;
use crate::order::Sku;
use crate::page::page;
use crate::routes::{Rules, Shop, routes};
use crate::stock::{MemoryStock, RedisStock, Stock};

/// Opens the stores and puts the app together.
pub(crate) async fn app(args: Args) -> Result<Router, StartError> {
    let opening = args.opening();
    let rules = Rules {
        user: args.quota.named("user"),
        ip: args.ip_quota.map(|quota: Policy| quota.named("ip")),
        user_from: args.user_from,
        on_failure: args.on_failure,
    };
    let skus: Vec<(Sku, u32)> = args.stock.into_iter().map(|it| (it.sku, it.count)).collect();
    let page = page(skus.iter().map(|(sku, _)| sku), &rules.user_from);

    let Some(redis) = args.redis.redis()? else {
        tracing::info!("windows, stock and orders are kept in this process");
        let stock = Stock::Memory(MemoryStock::new(skus));
        return Ok(routes(Shop { stock, opening, page }, rules, MemoryStore::new()));
    };
    let stock = RedisStock::open(redis.connection().await?, &args.prefix.0, skus)
        .await
        .map_err(|source| redis.unusable(source))?;
    let windows = redis.windows(&args.prefix).await?;
    tracing::info!(addresses = %redis.addresses, "windows, stock and orders are kept in Redis");
    Ok(routes(Shop { stock: Stock::Redis(stock), opening, page }, rules, windows))
}

/// Why the server does not run, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Redis(#[from] OpenError),
    #[error(transparent)]
    Server(#[from] ServerError),
}
