//! What stands in front of a route: this crate, a textbook script or another crate.
//!
//! Each limiter is set up as its documentation shows: five requests a window, or where there is no window a burst of
//! five, and one more request every fifth of the window.

use std::convert::Infallible;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Body;
use axum::error_handling::HandleErrorLayer;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use axum::http::request::Parts;
use axum::http::{StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum_limit::{LimitState, MemoryBackend, RateLimitBackend, RedisBackend, SlidingWindowPolicy};
use clap::ValueEnum;
use fred::prelude::ClientLike;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisResult, Script};
use test_support::patient;
use tower::ServiceBuilder;
use tower_sliding_window::store::Store;
use tower_sliding_window::{Key, KeyError, MemoryStore, Policy, Quota, SlidingWindowLayer, key};
use uuid::Uuid;

pub(crate) const LIMIT: u32 = 5;
pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);
/// The header with the address, and so many requests of an address that it is never denied: all of the load come
/// from one.
const ADDRESS: &str = "x-address";
const ADDRESS_LIMIT: u32 = 1_000_000;
/// The body of a response to an admitted request.
const BODY: &str = "ordered";

/// What stands in front of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub(crate) enum Case {
    #[value(name = "bare route, always our 429")]
    Denied,
    #[value(name = "bare route, always 200")]
    Admitted,
    #[value(name = "bare route, one PING")]
    Ping,
    #[value(name = "ours, MemoryStore")]
    Memory,
    #[value(name = "ours, RedisStore")]
    Redis,
    #[value(name = "ours, RedisStore without deny cache")]
    RedisUncached,
    #[value(name = "ours, RedisStore, two rules")]
    RedisTwoRules,
    #[value(name = "textbook middleware (Redis)")]
    Textbook,
    #[value(name = "textbook middleware (Redis), two rules")]
    TextbookTwoRules,
    #[value(name = "tower_governor")]
    TowerGovernor,
    #[value(name = "axum-governor")]
    AxumGovernor,
    #[value(name = "axum_gcra")]
    AxumGcra,
    #[value(name = "axum-limit (in process)")]
    AxumLimit,
    #[value(name = "axum-limit (Redis)")]
    AxumLimitRedis,
    #[value(name = "tower-rate-limit-redis")]
    TowerRateLimitRedis,
    #[value(name = "tower-rate-limit-fred (Redis)")]
    TowerRateLimitFred,
}

impl Case {
    /// Every limiter with one rule.
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

    /// Returns its name in the tables, and as an argument of this program.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().expect("no case is hidden").get_name().to_owned()
    }

    pub(crate) fn needs_redis(self) -> bool {
        use Case::*;
        let in_process =
            [Denied, Admitted, Memory, TowerGovernor, AxumGovernor, AxumGcra, AxumLimit];
        !in_process.contains(&self)
    }

    /// Builds the route. `redis` is the URL of a server, for the cases that need one.
    pub(crate) async fn router(self, redis: Option<&str>, window: Duration) -> Result<Router> {
        let url = redis.context("no Redis server given");
        let route = Router::new().route("/", get(|| async { BODY }));
        Ok(match self {
            Self::Denied => Router::new().route("/", get(our_429)),
            Self::Admitted => route,
            Self::Ping => Router::new().route("/", get(ping)).with_state(connect(url?).await?),
            Self::Memory => route.layer(ours(MemoryStore::new(), window)),
            Self::Redis => route.layer(ours(patient().connect(url?).await?, window)),
            Self::RedisUncached => {
                route.layer(ours(patient().deny_cache(false).connect(url?).await?, window))
            }
            Self::RedisTwoRules => {
                let address = Policy::new("ip").quota(Quota::new(ADDRESS_LIMIT, window));
                let layer = ours(patient().connect(url?).await?, window);
                route.layer(layer.rule(address, key::header(ADDRESS)))
            }
            Self::Textbook | Self::TextbookTwoRules => {
                let textbook = Textbook::new(url?, window).await?;
                let state = (textbook, self == Self::TextbookTwoRules);
                route.layer(from_fn_with_state(state, textbook_middleware))
            }
            Self::TowerGovernor => tower_governor(route, window)?,
            Self::AxumGovernor => axum_governor(route, window)?,
            Self::AxumGcra => axum_gcra(route, window),
            Self::AxumLimit => axum_limit(MemoryBackend::default(), window),
            Self::AxumLimitRedis => axum_limit(RedisBackend::connect(url?).await?, window),
            Self::TowerRateLimitRedis => tower_rate_limit_redis(route, url?, window).await?,
            Self::TowerRateLimitFred => tower_rate_limit_fred(route, url?, window).await?,
        })
    }
}

/// The response that our layer sends to a denied request, from constants.
async fn our_429() -> impl IntoResponse {
    const PROBLEM: &str = r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"violated-policies":["default"]}"#;
    const HEADERS: [(HeaderName, HeaderValue); 4] = [
        (CONTENT_TYPE, HeaderValue::from_static("application/problem+json")),
        (RETRY_AFTER, HeaderValue::from_static("60")),
        (
            HeaderName::from_static("ratelimit-policy"),
            HeaderValue::from_static(r#""default";q=5;w=60"#),
        ),
        (HeaderName::from_static("ratelimit"), HeaderValue::from_static(r#""default";r=0;t=60"#)),
    ];
    (StatusCode::TOO_MANY_REQUESTS, HEADERS, Body::from(PROBLEM))
}

async fn ping(State(mut connection): State<MultiplexedConnection>) -> RedisResponse {
    redis::cmd("PING").query_async::<()>(&mut connection).await.map_err(unavailable)?;
    Ok(BODY.into_response())
}

type RedisResponse = Result<Response, StatusCode>;

fn unavailable(_: redis::RedisError) -> StatusCode {
    StatusCode::SERVICE_UNAVAILABLE
}

pub(crate) async fn connect(url: &str) -> Result<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let client = redis::Client::open(url)?;
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}

/// Returns the user that a request names in its query.
fn user_of(uri: &Uri) -> Option<&str> {
    uri.query()?.strip_prefix("user=")
}

fn ours(store: impl Store, window: Duration) -> SlidingWindowLayer {
    let user = |parts: &Parts| user_of(&parts.uri).map(Key::from).ok_or(KeyError::Missing);
    SlidingWindowLayer::new(Quota::new(LIMIT, window), user, store)
}

/// The limiter of a textbook: one script call for each rule, the client's clock in milliseconds, and yes or no as the
/// reply.
#[derive(Clone)]
pub(crate) struct Textbook {
    connection: MultiplexedConnection,
    script: Arc<Script>,
    window: Duration,
}

impl Textbook {
    const SCRIPT: &str = "\
local now, window, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now - window)
if redis.call('ZCARD', KEYS[1]) < limit then
  redis.call('ZADD', KEYS[1], now, ARGV[4])
  redis.call('PEXPIRE', KEYS[1], window)
  return 1
end
return 0
";

    pub(crate) async fn new(url: &str, window: Duration) -> Result<Self> {
        let script = Arc::new(Script::new(Self::SCRIPT));
        Ok(Self { connection: connect(url).await?, script, window })
    }

    /// Returns whether a key has room, and records the request if it has.
    pub(crate) async fn admit(&self, key: &str, limit: u32) -> RedisResult<bool> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.script
            .key(format!("ratelimit:{key}"))
            .arg(now.as_millis() as u64)
            .arg(self.window.as_millis() as u64)
            .arg(limit)
            .arg(Uuid::new_v4().to_string())
            .invoke_async(&mut self.connection.clone())
            .await
    }
}

async fn textbook_middleware(
    State((textbook, two_rules)): State<(Textbook, bool)>,
    request: Request,
    next: Next,
) -> RedisResponse {
    let user = user_of(request.uri()).ok_or(StatusCode::UNAUTHORIZED)?;
    let mut is_admitted = textbook.admit(user, LIMIT).await.map_err(unavailable)?;
    if two_rules && is_admitted {
        let address = request.headers().get(ADDRESS).and_then(|value| value.to_str().ok());
        let address = address.ok_or(StatusCode::UNAUTHORIZED)?;
        is_admitted = textbook.admit(address, ADDRESS_LIMIT).await.map_err(unavailable)?;
    }
    if is_admitted { Ok(next.run(request).await) } else { Err(StatusCode::TOO_MANY_REQUESTS) }
}

#[derive(Clone, Debug)]
struct User;

impl tower_governor::key_extractor::KeyExtractor for User {
    type Key = String;

    fn extract<T>(
        &self,
        request: &axum::http::Request<T>,
    ) -> Result<String, tower_governor::GovernorError> {
        let user = user_of(request.uri()).map(str::to_owned);
        user.ok_or(tower_governor::GovernorError::UnableToExtractKey)
    }
}

fn tower_governor(route: Router, window: Duration) -> Result<Router> {
    let config = tower_governor::governor::GovernorConfigBuilder::default()
        .period(window / LIMIT)
        .burst_size(LIMIT)
        .key_extractor(User)
        .finish()
        .context("tower_governor refuses its configuration")?;
    Ok(route.layer(tower_governor::GovernorLayer::new(config)))
}

impl axum_governor::extractor::KeyExtractor for User {
    type Key = String;

    fn extract(
        &self,
        parts: &Parts,
    ) -> Result<axum_governor::extractor::KeyOutcome<String>, axum_governor::ExtractionError> {
        let user = user_of(&parts.uri).map(str::to_owned);
        user.map(axum_governor::extractor::KeyOutcome::new)
            .ok_or_else(|| axum_governor::ExtractionError::Other("no user".into()))
    }
}

fn axum_governor(route: Router, window: Duration) -> Result<Router> {
    let limit = NonZeroU32::new(LIMIT).context("no limit")?;
    let quota = governor::Quota::with_period(window / LIMIT).context("no window")?;
    let config = axum_governor::GovernorConfigBuilder::default()
        .with_extractor(User)
        .quota_default(quota.allow_burst(limit).into())
        .finish()?;
    Ok(route.layer(axum_governor::GovernorLayer::new(config)))
}

/// The key of axum_gcra is an extractor of axum 0.7; its service is generic and runs under 0.8.
#[derive(Clone, PartialEq, Eq, Hash)]
struct GcraUser(String);

#[async_trait::async_trait]
impl<S> axum_07::extract::FromRequestParts<S> for GcraUser {
    type Rejection = axum_07::http::StatusCode;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let user = user_of(&parts.uri).map(str::to_owned);
        user.map(Self).ok_or(StatusCode::UNAUTHORIZED)
    }
}

fn axum_gcra(route: Router, window: Duration) -> Router {
    let limit = NonZeroU32::new(LIMIT).unwrap_or(NonZeroU32::MIN);
    let limiter = axum_gcra::RateLimitLayer::<GcraUser>::builder()
        .with_default_quota(axum_gcra::gcra::Quota::new(window / LIMIT, limit.into()))
        .build();
    let response = HandleErrorLayer::new(
        async |error: axum_gcra::Error<Infallible, StatusCode>| match error {
            // The same as axum_gcra's default.
            axum_gcra::Error::RateLimit(error) => {
                (StatusCode::TOO_MANY_REQUESTS, error.to_string()).into_response()
            }
            axum_gcra::Error::KeyRejection(status) => status.into_response(),
            axum_gcra::Error::Inner(never) => match never {},
        },
    );
    route.layer(ServiceBuilder::new().layer(response).layer(limiter))
}

type AxumLimit<const MS: u64, B> = axum_limit::SlidingWindowLimit<5, MS, Uri, B>;

/// A limit of axum-limit is an argument of the handler, and its key is the URI.
fn axum_limit<B: RateLimitBackend>(backend: B, window: Duration) -> Router {
    let state = LimitState::<Uri, SlidingWindowPolicy, B>::new(backend);
    // Its window is part of a type.
    let route = match window {
        SECOND => get(async move |_: AxumLimit<1_000, B>| BODY),
        _ => get(async move |_: AxumLimit<60_000, B>| BODY),
    };
    Router::new().route("/", route).with_state(state)
}

impl tower_rate_limit_redis::KeyResolver for User {
    type Key = String;
    type ErrorBody = Body;

    fn key<T>(&self, request: &axum::http::Request<T>) -> Result<String, Response<Body>> {
        let user = user_of(request.uri()).map(str::to_owned);
        user.ok_or_else(|| StatusCode::UNAUTHORIZED.into_response())
    }
}

async fn tower_rate_limit_redis(route: Router, url: &str, window: Duration) -> Result<Router> {
    let client = redis_032::Client::open(url)?;
    let layer = tower_rate_limit_redis::RateLimitLayer::builder()
        .conn(client.get_multiplexed_async_connection().await?)
        .key_resolver(User)
        .capacity(LIMIT as u16)
        .emission_interval(window / LIMIT)
        .build();
    Ok(route.layer(layer))
}

impl tower_rate_limit_fred::KeyResolver for User {
    type ErrorBody = Body;

    fn key<T>(
        &self,
        request: &axum::http::Request<T>,
    ) -> Result<Option<fred::types::Key>, Response<Body>> {
        let user = user_of(request.uri()).map(fred::types::Key::from);
        user.map(Some).ok_or_else(|| StatusCode::UNAUTHORIZED.into_response())
    }
}

async fn tower_rate_limit_fred(route: Router, url: &str, window: Duration) -> Result<Router> {
    let config = fred::types::config::Config::from_url(url)?;
    let client = fred::types::Builder::from_config(config).build()?;
    client.init().await?;
    let layer = tower_rate_limit_fred::RateLimitLayer::builder()
        .conn(client)
        .key_resolver(User)
        .capacity(LIMIT as u16)
        .emission_interval(window / LIMIT)
        .build();
    Ok(route.layer(layer))
}
