//! From the command line to the app: opens the stores, or says why that can't be.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError, RedisResult};
use tower_sliding_window::{MemoryStore, Policy, RedisStore};

use crate::args::Args;
use crate::order::Sku;
use crate::page::page;
use crate::routes::{Rules, Shop, routes};
use crate::stock::{MemoryStock, RedisStock, Stock};

/// How long Redis may take to answer. A sale would rather wait than turn people away.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long making a connection to Redis may take.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(2);

/// Opens the stores and puts the app together.
pub(crate) async fn app(args: Args) -> Result<Router, StartError> {
    let opening = args.opening();
    let rules = Rules {
        user: args.quota.named("user"),
        ip: args.ip_quota.map(|quota: Policy| quota.named("ip")),
        user_from: args.user_from,
    };
    let skus: Vec<(Sku, u32)> = args.stock.into_iter().map(|it| (it.sku, it.count)).collect();
    let page = page(skus.iter().map(|(sku, _)| sku), &rules.user_from);

    let Some(url) = args.redis else {
        tracing::info!("windows, stock and orders are kept in this process");
        let stock = Stock::Memory(MemoryStock::new(skus));
        return Ok(routes(Shop { stock, opening, page }, rules, MemoryStore::new()));
    };
    let target = url.into_connection_info().map_err(StartError::RedisUrl)?;
    let address = target.addr().clone();
    let failed = |source| StartError::Redis { address: address.clone(), source };
    // Windows and stock share one connection: commands of concurrent requests are pipelined.
    let connection = connect(target).await.map_err(failed)?;
    let stock = RedisStock::open(connection.clone(), &args.prefix.0, skus).await.map_err(failed)?;
    let windows = RedisStore::builder()
        .prefix(args.prefix.0)
        .response_timeout(RESPONSE_TIMEOUT)
        .connection(connection);
    tracing::info!(%address, "windows, stock and orders are kept in Redis");
    Ok(routes(Shop { stock: Stock::Redis(stock), opening, page }, rules, windows))
}

async fn connect(target: ConnectionInfo) -> RedisResult<ConnectionManager> {
    let config = ConnectionManagerConfig::new()
        .set_response_timeout(Some(RESPONSE_TIMEOUT))
        .set_connection_timeout(Some(CONNECTION_TIMEOUT))
        .set_number_of_retries(1);
    ConnectionManager::new_with_config(Client::open(target)?, config).await
}

/// Why the server does not run, and what to do about it.
///
/// No message shows the Redis URL, which may hold a password.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(
        "can't listen on {listen}: {source}\n\
         hint: stop what listens there, or choose another address with --listen IP:PORT (port 0 \
         takes a free one)"
    )]
    Listen { listen: SocketAddr, source: std::io::Error },
    #[error(
        "the value of --redis is not a Redis URL: {0}\n\
         hint: write redis://[:PASSWORD@]HOST[:PORT][/DB], such as redis://127.0.0.1:6379"
    )]
    RedisUrl(RedisError),
    #[error(
        "can't use the Redis at {address}: {source}\n\
         hint: start one with `redis-server`, correct --redis, or leave it out to keep everything \
         in this process"
    )]
    Redis { address: ConnectionAddr, source: RedisError },
    #[error("can't print the address to stdout: {0}")]
    Announce(std::io::Error),
    #[error("can't listen for signals: {0}")]
    Signals(std::io::Error),
    #[error("can't tell the address that was taken: {0}")]
    Address(std::io::Error),
}
