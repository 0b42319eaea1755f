//! The limiters of other crates, each set up as its documentation shows. Those without a window get a
//! burst of five, and one more request every fifth of the window.

use std::convert::Infallible;
use std::num::NonZeroU32;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Body;
use axum::error_handling::HandleErrorLayer;
use axum::http::request::Parts;
use axum::http::{Request, Response, StatusCode, Uri};
use axum::response::IntoResponse;
use axum::routing::get;
use fred::prelude::ClientLike;
use tower::ServiceBuilder;

use crate::setup::{LIMIT, user_of};

#[derive(Clone, Debug)]
struct User;

impl tower_governor::key_extractor::KeyExtractor for User {
    type Key = String;

    fn extract<T>(&self, request: &Request<T>) -> Result<String, tower_governor::GovernorError> {
        let user = user_of(request.uri()).map(str::to_owned);
        user.ok_or(tower_governor::GovernorError::UnableToExtractKey)
    }
}

pub(crate) fn tower_governor(route: Router, window: Duration) -> Result<Router> {
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

pub(crate) fn axum_governor(route: Router, window: Duration) -> Result<Router> {
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

pub(crate) fn axum_gcra(route: Router, window: Duration) -> Router {
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
type AxumLimitState<B> = axum_limit::LimitState<Uri, axum_limit::SlidingWindowPolicy, B>;

/// A limit of axum-limit is an argument of the handler; its window is part of the type, and its key is
/// the URI.
pub(crate) fn axum_limit<const MS: u64>(body: &'static str) -> Router {
    type Backend = axum_limit::MemoryBackend;
    let handler = async move |_: AxumLimit<MS, Backend>| body;
    let state = AxumLimitState::<Backend>::default();
    Router::new().route("/", get(handler)).with_state(state)
}

pub(crate) async fn axum_limit_redis<const MS: u64>(
    body: &'static str,
    url: &str,
) -> Result<Router> {
    type Backend = axum_limit::RedisBackend;
    let handler = async move |_: AxumLimit<MS, Backend>| body;
    let state = AxumLimitState::<Backend>::new(Backend::connect(url).await?);
    Ok(Router::new().route("/", get(handler)).with_state(state))
}

impl tower_rate_limit_redis::KeyResolver for User {
    type Key = String;
    type ErrorBody = Body;

    fn key<T>(&self, request: &Request<T>) -> Result<String, Response<Body>> {
        let user = user_of(request.uri()).map(str::to_owned);
        user.ok_or_else(|| StatusCode::UNAUTHORIZED.into_response())
    }
}

pub(crate) async fn tower_rate_limit_redis(
    route: Router,
    url: &str,
    window: Duration,
) -> Result<Router> {
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

    fn key<T>(&self, request: &Request<T>) -> Result<Option<fred::types::Key>, Response<Body>> {
        let user = user_of(request.uri()).map(fred::types::Key::from);
        user.map(Some).ok_or_else(|| StatusCode::UNAUTHORIZED.into_response())
    }
}

pub(crate) async fn tower_rate_limit_fred(
    route: Router,
    url: &str,
    window: Duration,
) -> Result<Router> {
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
