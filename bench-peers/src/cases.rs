//! [`Case`]: a server to measure, and the routes it serves.

use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::HeaderValue;
use axum::http::request::Parts;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use clap::ValueEnum;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tower_sliding_window::store::Store;
use tower_sliding_window::{
    Key, KeyError, MemoryStore, Policy, Quota, RedisStore, SlidingWindowLayer, key,
};

use crate::least::LeastLayer;
use crate::problem::problem;
use crate::setup::{ADDRESS, ADDRESS_LIMIT, LIMIT, Window, user_of};
use crate::{peers, textbook};

/// The body of a response to an admitted request.
const BODY: &str = "ordered";

/// What stands in front of the route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Case {
    Bare429,
    BareProblem,
    Least,
    Bare200,
    Ping,
    Memory,
    MemoryObserved,
    Redis,
    RedisObserved,
    RedisUncached,
    RedisTwoRules,
    Textbook,
    TextbookTwoRules,
    TowerGovernor,
    AxumGovernor,
    AxumGcra,
    AxumLimit,
    AxumLimitRedis,
    TowerRateLimitRedis,
    TowerRateLimitFred,
}

impl Case {
    /// Every limiter.
    pub(crate) const LIMITERS: [Self; 11] = [
        Self::Memory,
        Self::Redis,
        Self::RedisUncached,
        Self::Textbook,
        Self::TowerGovernor,
        Self::AxumGovernor,
        Self::AxumGcra,
        Self::AxumLimit,
        Self::AxumLimitRedis,
        Self::TowerRateLimitRedis,
        Self::TowerRateLimitFred,
    ];

    /// Returns its name in the tables.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Bare429 => "bare route, always 429",
            Self::BareProblem => "bare route, always our 429",
            Self::Least => "the least layer",
            Self::Bare200 => "bare route, always 200",
            Self::Ping => "bare route, one PING",
            Self::Memory => "ours, MemoryStore",
            Self::MemoryObserved => "ours, MemoryStore, observed",
            Self::Redis => "ours, RedisStore",
            Self::RedisObserved => "ours, RedisStore, observed",
            Self::RedisUncached => "ours, RedisStore without deny cache",
            Self::RedisTwoRules => "ours, RedisStore, two rules",
            Self::Textbook => "textbook middleware (Redis)",
            Self::TextbookTwoRules => "textbook middleware (Redis), two rules",
            Self::TowerGovernor => "tower_governor",
            Self::AxumGovernor => "axum-governor",
            Self::AxumGcra => "axum_gcra",
            Self::AxumLimit => "axum-limit (in process)",
            Self::AxumLimitRedis => "axum-limit (Redis)",
            Self::TowerRateLimitRedis => "tower-rate-limit-redis",
            Self::TowerRateLimitFred => "tower-rate-limit-fred (Redis)",
        }
    }

    /// Returns whether it needs a Redis server.
    pub(crate) fn needs_redis(self) -> bool {
        matches!(
            self,
            Self::Ping
                | Self::Redis
                | Self::RedisObserved
                | Self::RedisUncached
                | Self::RedisTwoRules
                | Self::Textbook
                | Self::TextbookTwoRules
                | Self::AxumLimitRedis
                | Self::TowerRateLimitRedis
                | Self::TowerRateLimitFred
        )
    }

    /// Returns whether it needs a build with the feature `observed`.
    pub(crate) fn is_observed(self) -> bool {
        matches!(self, Self::MemoryObserved | Self::RedisObserved)
    }

    /// Builds the routes. `redis` is the URL of a server, for the cases that need one.
    pub(crate) async fn router(self, redis: Option<&str>, window: Window) -> Result<Router> {
        let url = redis.context("no Redis server given");
        let length = window.length();
        let route = Router::new().route("/", get(|| async { BODY }));
        Ok(match self {
            Self::Bare429 => {
                Router::new().route("/", get(|| async { StatusCode::TOO_MANY_REQUESTS }))
            }
            Self::BareProblem => {
                let fields = ["60", r#""default";r=0;t=60"#].map(HeaderValue::from_static);
                let [retry_after, rate_limit] = fields;
                let always = async move || problem(retry_after.clone(), rate_limit.clone());
                Router::new().route("/", get(always))
            }
            Self::Least => route.layer(LeastLayer::new(length)),
            Self::Bare200 => route,
            Self::Ping => Router::new().route("/", get(ping)).with_state(connect(url?).await?),
            Self::Memory | Self::MemoryObserved => route.layer(ours(MemoryStore::new(), length)),
            Self::Redis | Self::RedisObserved => {
                route.layer(ours(patient().connect(url?).await?, length))
            }
            Self::RedisUncached => {
                route.layer(ours(patient().deny_cache(false).connect(url?).await?, length))
            }
            Self::RedisTwoRules => {
                let address = Policy::new("ip").quota(Quota::new(ADDRESS_LIMIT, length));
                let layer = ours(patient().connect(url?).await?, length);
                route.layer(layer.rule(address, key::header(ADDRESS)))
            }
            Self::Textbook | Self::TextbookTwoRules => {
                let two_rules = self == Self::TextbookTwoRules;
                let textbook = textbook::Textbook::new(connect(url?).await?, length, two_rules);
                route.layer(from_fn_with_state(textbook, textbook::limit))
            }
            Self::TowerGovernor => peers::tower_governor(route, length)?,
            Self::AxumGovernor => peers::axum_governor(route, length)?,
            Self::AxumGcra => peers::axum_gcra(route, length),
            Self::AxumLimit => match window {
                Window::Second => peers::axum_limit::<1_000>(BODY),
                Window::Minute => peers::axum_limit::<60_000>(BODY),
            },
            Self::AxumLimitRedis => match window {
                Window::Second => peers::axum_limit_redis::<1_000>(BODY, url?).await?,
                Window::Minute => peers::axum_limit_redis::<60_000>(BODY, url?).await?,
            },
            Self::TowerRateLimitRedis => peers::tower_rate_limit_redis(route, url?, length).await?,
            Self::TowerRateLimitFred => peers::tower_rate_limit_fred(route, url?, length).await?,
        })
    }
}

fn ours(store: impl Store, window: Duration) -> SlidingWindowLayer {
    let user = |parts: &Parts| user_of(&parts.uri).map(Key::from).ok_or(KeyError::Missing);
    let layer = SlidingWindowLayer::new(Quota::new(LIMIT, window), user, store);
    #[cfg(feature = "observed")]
    let layer = layer.top_offenders(&tower_sliding_window::TopOffenders::new(100));
    layer
}

/// With the default timeout, a busy machine makes the store repeat calls, which distorts the counts.
pub(crate) fn patient() -> tower_sliding_window::store::RedisStoreBuilder {
    RedisStore::builder().response_timeout(Duration::from_secs(10))
}

pub(crate) async fn connect(url: &str) -> Result<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let client = redis::Client::open(url)?;
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}

async fn ping(
    State(mut connection): State<MultiplexedConnection>,
) -> Result<&'static str, StatusCode> {
    match redis::cmd("PING").query_async::<()>(&mut connection).await {
        Ok(()) => Ok(BODY),
        Err(_) => Err(StatusCode::SERVICE_UNAVAILABLE),
    }
}
