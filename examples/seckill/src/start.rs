//! From the command line to the app: opens the stores, or says why that can't be.

use axum::Router;
use tower_sliding_window::store::{BanStore, Store};
use tower_sliding_window::{Bans, MemoryStore, Policy};

use crate::admin::{self, Token, TokenError};
use crate::args::Args;
use crate::order::Sku;
use crate::page::page;
use crate::routes::{Rules, Shop, routes};
use crate::stock::{MemoryStock, RedisStock, Stock};
use example_support::redis::OpenError;
use example_support::server::ServerError;

/// What is served.
pub(crate) struct Apps {
    pub(crate) shop: Router,
    /// The routes of the admin listener, if there is one.
    pub(crate) admin: Option<Router>,
}

/// Opens the stores and puts the apps together.
pub(crate) async fn apps(args: Args) -> Result<Apps, StartError> {
    let opening = args.opening();
    let token = match args.admin {
        Some(_) => Some(Token::find(args.admin_token, args.admin_token_file.as_deref())?),
        None => None,
    };
    let mut user = args.quota.named("user");
    if let Some(penalty) = args.ban {
        tracing::info!(%penalty, "users that are denied again and again are banned");
        user = user.penalty(penalty);
    }
    let rules = Rules {
        user,
        ip: args.ip_quota.0.map(|quota: Policy| quota.named("ip")),
        user_from: args.user_from,
        on_failure: args.failure.on_failure,
    };
    let skus: Vec<(Sku, u32)> = args.stock.into_iter().map(|it| (it.sku, it.count)).collect();
    let page = page(skus.iter().map(|(sku, _)| sku), &rules.user_from);

    let Some(redis) = args.redis.connect(&args.prefix).await? else {
        tracing::info!("windows, stock and orders are kept in this process");
        let stock = Stock::Memory(MemoryStock::new(skus));
        return Ok(together(Shop { stock, opening, page }, rules, MemoryStore::new(), token));
    };
    let stock = RedisStock::open(redis.store.commands(), &args.prefix.0, skus)
        .await
        .map_err(|source| redis.unusable(source))?;
    tracing::info!(addresses = %redis.addresses, "windows, stock and orders are kept in Redis");
    Ok(together(Shop { stock: Stock::Redis(stock), opening, page }, rules, redis.store, token))
}

fn together<S>(shop: Shop, rules: Rules, windows: S, token: Option<Token>) -> Apps
where
    S: Store + BanStore + Clone,
{
    let bans = || Bans::new(rules.user.clone(), windows.clone());
    let admin = token.map(|token| admin::routes(bans(), token));
    Apps { shop: routes(shop, rules, windows), admin }
}

/// Why the server does not run, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error(transparent)]
    Redis(#[from] OpenError),
    #[error(transparent)]
    Server(#[from] ServerError),
}
