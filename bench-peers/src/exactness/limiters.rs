//! The limiters that are judged, each behind the same function: a key in, a reply out.

use std::collections::HashMap;
use std::future::Future;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use axum::Router;
use axum::body::Body;
use axum::http::header::RETRY_AFTER;
use axum::http::{Request, StatusCode};
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, RateLimiter};
use rate_net::Algorithm;
use throttle_kit::{InMemoryBackend, KeyedRateLimiter, RateLimitBackend};
use tower::util::service_fn;
use tower::{Layer, ServiceExt};
use tower_resilience_ratelimiter::{RateLimiterLayer, WindowType};
use tower_sliding_window::{Decision, MemoryStore, Quota};
use trypema::{BucketSize, RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize};

use crate::cases::{Case, patient};
use crate::setup::{LIMIT, Window};

const WINDOW: Duration = Window::Second.length();

/// What a limiter replies to a request.
pub(crate) struct Reply {
    pub(crate) is_admitted: bool,
    pub(crate) retry_after: Option<Duration>,
}

impl Reply {
    const ADMITTED: Self = Self { is_admitted: true, retry_after: None };

    fn denied(retry_after: Option<Duration>) -> Self {
        Self { is_admitted: false, retry_after }
    }
}

type Ours = tower_sliding_window::Limiter;
type Pending = Pin<Box<dyn Future<Output = Result<Reply>> + Send>>;

/// A limiter of five requests a second for each key.
#[derive(Clone)]
pub(crate) struct Limiter {
    pub(crate) name: String,
    pub(crate) check: Arc<dyn Fn(String) -> Pending + Send + Sync>,
}

impl Limiter {
    fn new<F>(name: impl Into<String>, check: impl Fn(String) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Reply>> + Send + 'static,
    {
        Self { name: name.into(), check: Arc::new(move |key| Box::pin(check(key))) }
    }

    /// A limiter that replies at once.
    fn at_once(
        name: impl Into<String>,
        check: impl Fn(String) -> Result<Reply> + Send + Sync + 'static,
    ) -> Self {
        let check = Arc::new(check);
        Self::new(name, move |key| {
            let check = check.clone();
            async move { check(key) }
        })
    }
}

/// Returns all limiters. `redis` is the URL of a server.
pub(crate) async fn all(redis: &str) -> Result<Vec<Limiter>> {
    let quota = Quota::new(LIMIT, WINDOW);
    let shared = async || anyhow::Ok(Ours::new(quota, patient().connect(redis).await?));
    let mut limiters = vec![
        ours("ours, Limiter on MemoryStore", [Ours::new(quota, MemoryStore::new())]),
        ours("ours, Limiter on RedisStore", [shared().await?]),
        ours("ours, Limiter on RedisStore, two processes", [shared().await?, shared().await?]),
    ];
    for case in Case::LIMITERS {
        if !matches!(case, Case::RedisUncached) {
            limiters.push(middleware(case, redis).await?);
        }
    }
    limiters.push(governor()?);
    limiters.push(throttle_kit("throttle-kit, GCRA", InMemoryBackend::new()));
    limiters.push(throttle_kit(
        "throttle-kit, sliding window",
        throttle_kit::SlidingWindowBackend::new(),
    ));
    limiters.push(throttle_kit(
        "throttle-kit, GCRA (Redis)",
        throttle_kit::RedisBackend::connect(redis).await?,
    ));
    limiters.push(rate_net("rate-net, token bucket", Algorithm::TokenBucket));
    limiters.push(rate_net("rate-net, sliding log", Algorithm::SlidingWindowLog));
    limiters.push(rate_net("rate-net, sliding counter", Algorithm::SlidingWindowCounter));
    limiters.push(tower_resilience());
    limiters.push(trypema()?);
    Ok(limiters)
}

/// Our limiter. Several stand for several processes, which requests reach in turn.
fn ours<const N: usize>(name: &str, limiters: [Ours; N]) -> Limiter {
    let limiters = Arc::new(limiters);
    let turn = Arc::new(Mutex::new(0_usize));
    Limiter::new(name, move |key| {
        let (limiters, turn) = (limiters.clone(), turn.clone());
        async move {
            let index = {
                let mut turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
                *turn += 1;
                *turn % N
            };
            Ok(match limiters[index].check(key).await? {
                Decision::Admitted(_) => Reply::ADMITTED,
                Decision::Denied(denied) => Reply::denied(Some(denied.retry_after())),
            })
        }
    })
}

/// A layer in front of a route, called as a service.
async fn middleware(case: Case, redis: &str) -> Result<Limiter> {
    let router = case.router(Some(redis), Window::Second).await?;
    let name = match case {
        Case::Memory => "ours, layer on MemoryStore",
        Case::Redis => "ours, layer on RedisStore",
        _ => case.label(),
    };
    Ok(Limiter::new(name, move |key| respond(router.clone(), key)))
}

async fn respond(router: Router, key: String) -> Result<Reply> {
    let request = Request::get(format!("/?user={key}")).body(Body::empty())?;
    let response = router.oneshot(request).await?;
    match response.status() {
        StatusCode::OK => Ok(Reply::ADMITTED),
        StatusCode::TOO_MANY_REQUESTS => {
            let header = response.headers().get(RETRY_AFTER);
            let seconds = header.map(|value| value.to_str()?.parse().context("no seconds"));
            Ok(Reply::denied(seconds.transpose()?.map(Duration::from_secs)))
        }
        status => bail!("status {status}"),
    }
}

fn governor() -> Result<Limiter> {
    let quota = governor::Quota::with_period(WINDOW / LIMIT).context("no window")?;
    let burst = NonZeroU32::new(LIMIT).context("no limit")?;
    let limiter: DefaultKeyedRateLimiter<String> = RateLimiter::keyed(quota.allow_burst(burst));
    let clock = DefaultClock::default();
    Ok(Limiter::at_once("governor", move |key| {
        Ok(match limiter.check_key(&key) {
            Ok(()) => Reply::ADMITTED,
            Err(denied) => Reply::denied(Some(denied.wait_time_from(clock.now()))),
        })
    }))
}

fn throttle_kit(name: &str, backend: impl RateLimitBackend) -> Limiter {
    let quota = throttle_kit::Quota::from_parts(WINDOW / LIMIT, LIMIT);
    let limiter = Arc::new(KeyedRateLimiter::new(quota, backend));
    Limiter::new(name, move |key| {
        let limiter = limiter.clone();
        async move {
            let result = limiter.check(&key).await;
            Ok(Reply { is_admitted: result.allowed, retry_after: result.retry_after })
        }
    })
}

fn rate_net(name: &str, algorithm: Algorithm) -> Limiter {
    let limiter =
        rate_net::RateLimiter::builder().algorithm(algorithm).quota(LIMIT, WINDOW).build();
    Limiter::at_once(name, move |key| {
        let decision = limiter.check(key.as_str());
        Ok(Reply { is_admitted: decision.is_allow(), retry_after: decision.retry_after() })
    })
}

/// A layer of tower-resilience has no keys: each key gets its own. It does not say how long to wait.
fn tower_resilience() -> Limiter {
    let services = Mutex::new(HashMap::new());
    let services = Arc::new(services);
    Limiter::new("tower-resilience, sliding log", move |key| {
        let services = services.clone();
        async move {
            let service = {
                let mut services = services.lock().unwrap_or_else(PoisonError::into_inner);
                if !services.contains_key(&key) {
                    let layer = RateLimiterLayer::builder()
                        .limit_for_period(LIMIT as usize)
                        .refresh_period(WINDOW)
                        .window_type(WindowType::SlidingLog)
                        .timeout_duration(Duration::ZERO)
                        .build()?;
                    let inner = service_fn(async |()| Ok::<_, std::convert::Infallible>(()));
                    services.insert(key.clone(), layer.layer(inner));
                }
                services.get(&key).context("no service")?.clone()
            };
            match service.oneshot(()).await {
                Ok(()) => Ok(Reply::ADMITTED),
                Err(error) if error.is_rate_limited() => Ok(Reply::denied(None)),
                Err(_) => bail!("tower-resilience fails"),
            }
        }
    })
}

fn trypema() -> Result<Limiter> {
    let provider = trypema::local::LocalRateLimiterProvider::builder()
        .window_size(WindowSize::seconds(WINDOW.as_secs())?)
        .bucket_size(BucketSize::milliseconds(10)?)
        .disable_cleanup()
        .build()?;
    let rate = RateLimit::per_second(f64::from(LIMIT))?;
    Ok(Limiter::at_once("trypema, absolute", move |key| {
        Ok(match provider.absolute().inc(&key, &rate, 1) {
            RateLimitDecision::Allowed => Reply::ADMITTED,
            RateLimitDecision::Rejected { retry_after, .. } => Reply::denied(Some(retry_after)),
            RateLimitDecision::Suppressed { .. } => bail!("trypema suppresses"),
        })
    }))
}
