//! The live page of the admin listener: what the server decides. [`Meter`] counts, and `GET /admin/live`
//! shows the counts, the stock and the state of the store at the moment. The page asks once a second.

use std::array;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tower_sliding_window::store::RedisCommands;
use tower_sliding_window::{Bans, DecidedBy, Decision, Policy, StoreError, TopOffenders};

use crate::names::Sku;
use crate::pages::Asset;
use crate::policies::{Fleet, USER, shown};
use crate::routes::Shop;
use example_support::lock;
use example_support::problem::whole_seconds;

/// How many keys of each policy are told apart among those denied most, and how many are shown.
const OFFENDERS: (usize, usize) = (200, 10);
/// How long the store may take to reply before the page says that it does not.
const PATIENCE: Duration = Duration::from_secs(1);
/// Each bucket of times ends at twice the time of the one before, the first at 2 us, the last at 34 s.
const BUCKETS: usize = 25;
/// The seconds whose times make the percentiles.
const RECENT: usize = 10;

type Times = [u64; BUCKETS];

/// What came of a request: 201, 409, 410, 429, 403, 5xx, and the rest.
const CLASSES: usize = 7;
const BANNED: usize = 4;
const UNAVAILABLE: usize = 5;
const OTHER: usize = 6;

fn class(response: &Response) -> usize {
    // What the limit says to a client of gRPC, always with status 200.
    if let Some(status) = response.headers().get("grpc-status") {
        return match status.as_bytes() {
            b"8" => 3,
            b"7" => BANNED,
            b"13" | b"14" => UNAVAILABLE,
            _ => OTHER,
        };
    }
    match response.status() {
        StatusCode::CREATED => 0,
        StatusCode::CONFLICT => 1,
        StatusCode::GONE => 2,
        StatusCode::TOO_MANY_REQUESTS => 3,
        StatusCode::FORBIDDEN if response.extensions().get::<Passed>().is_none() => BANNED,
        status if status.is_server_error() => UNAVAILABLE,
        _ => OTHER,
    }
}

/// Marks the response to a request that the limit has let pass.
#[derive(Clone, Copy)]
struct Passed;

/// Counts since the start.
pub(crate) struct Meter {
    classes: [AtomicU64; CLASSES],
    times: [AtomicU64; BUCKETS],
    /// By the store, by the log of this process, and by the failure policy alone.
    decided_by: [AtomicU64; 3],
    policies: Vec<PolicyCounters>,
    offenders: TopOffenders,
    /// The times of the last seconds, the oldest first.
    recent: Mutex<VecDeque<Times>>,
}

/// What a policy has refused, and what its candidates would have refused besides.
struct PolicyCounters {
    name: String,
    refused: AtomicU64,
    would_refuse: AtomicU64,
    trial: Mutex<Trial>,
}

/// Since when a policy has its candidates, and the counts then.
struct Trial {
    policy: Arc<Policy>,
    begun: Instant,
    refused: u64,
    would_refuse: u64,
}

fn zeros<const N: usize>() -> [AtomicU64; N] {
    array::from_fn(|_| AtomicU64::new(0))
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn all<const N: usize>(counters: &[AtomicU64; N]) -> [u64; N] {
    array::from_fn(|at| counters[at].load(Ordering::Relaxed))
}

impl Meter {
    pub(crate) fn new(policies: Vec<Arc<Policy>>) -> Arc<Self> {
        let counters = |policy: Arc<Policy>| PolicyCounters {
            name: policy.name().to_owned(),
            refused: AtomicU64::new(0),
            would_refuse: AtomicU64::new(0),
            trial: Mutex::new(Trial { policy, begun: Instant::now(), refused: 0, would_refuse: 0 }),
        };
        Arc::new(Self {
            classes: zeros(),
            times: zeros(),
            decided_by: zeros(),
            policies: policies.into_iter().map(counters).collect(),
            offenders: TopOffenders::new(OFFENDERS.0),
            recent: Mutex::default(),
        })
    }

    /// Returns what counts the keys that are denied.
    pub(crate) fn offenders(&self) -> &TopOffenders {
        &self.offenders
    }

    /// Counts a decision of the layer.
    pub(crate) fn decided(&self, decision: &Decision) {
        add(&self.decided_by[match decision.decided_by() {
            DecidedBy::LocalLog => 1,
            DecidedBy::FailurePolicy => 2,
            // The rest is the store.
            _ => 0,
        }]);
        let counters = |name: &str| self.policies.iter().find(|policy| policy.name == name);
        if let Decision::Denied(denied) = decision {
            denied.violated().filter_map(counters).for_each(|policy| add(&policy.refused));
            return;
        }
        // An admitted request that a candidate would have refused counts once for each policy.
        let mut last = None;
        for (policy, _, state) in decision.usage().candidates() {
            if state.is_full() && last != Some(policy.name()) {
                last = Some(policy.name());
                if let Some(policy) = counters(policy.name()) {
                    add(&policy.would_refuse);
                }
            }
        }
    }

    /// Notes once a second, for ever, the times and which candidates are new.
    pub(crate) async fn follow(&self, fleet: &Fleet) {
        let mut ticks = interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let mut recent = lock(&self.recent);
            if recent.len() > RECENT {
                recent.pop_front();
            }
            recent.push_back(all(&self.times));
            drop(recent);
            self.note_trials(fleet);
        }
    }

    fn note_trials(&self, fleet: &Fleet) {
        for policy in fleet.set().all() {
            let Some(counters) = self.policies.iter().find(|it| it.name == policy.name()) else {
                continue;
            };
            let mut trial = lock(&counters.trial);
            if trial.policy.candidates() != policy.candidates() {
                let [refused, would_refuse] = [&counters.refused, &counters.would_refuse]
                    .map(|counter| counter.load(Ordering::Relaxed));
                *trial = Trial { policy, begun: Instant::now(), refused, would_refuse };
            }
        }
    }

    /// Shows the policies, and beside what they refuse what their candidates would refuse.
    fn policies(&self, fleet: &Fleet) -> Value {
        self.note_trials(fleet);
        let mut shown = shown(fleet);
        for policy in shown["policies"].as_array_mut().into_iter().flatten() {
            let Some(counters) = self.policies.iter().find(|it| policy["name"] == it.name) else {
                continue;
            };
            let trial = lock(&counters.trial);
            policy["trial"] = json!({
                "seconds": trial.begun.elapsed().as_secs(),
                "refused": counters.refused.load(Ordering::Relaxed) - trial.refused,
                "would_refuse": counters.would_refuse.load(Ordering::Relaxed) - trial.would_refuse,
            });
        }
        shown
    }

    /// Shows percentiles of the last seconds in milliseconds, each rounded up to the end of its bucket,
    /// or null without a request.
    fn latency(&self) -> Value {
        let now = all(&self.times);
        let before = lock(&self.recent).front().copied().unwrap_or_default();
        let times: Times = array::from_fn(|at| now[at] - before[at]);
        let count: u64 = times.iter().sum();
        if count == 0 {
            return Value::Null;
        }
        let at = |percent: u64| {
            let mut left = (count * percent).div_ceil(100);
            let is_in = |in_bucket: &u64| {
                let is_in = left <= *in_bucket;
                left = left.saturating_sub(*in_bucket);
                is_in
            };
            let bucket = times.iter().position(is_in).unwrap_or(BUCKETS - 1);
            (2_u64 << bucket) as f64 / 1e3
        };
        json!({ "p50": at(50), "p90": at(90), "p99": at(99), "max": at(100) })
    }
}

/// Counts the requests of a route. It runs in front of the limit.
pub(crate) async fn count(
    State(meter): State<Arc<Meter>>,
    request: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let response = next.run(request).await;
    add(&meter.classes[class(&response)]);
    let micros = started.elapsed().as_micros().clamp(1, u128::from(u32::MAX)) as u32;
    add(&meter.times[(micros.ilog2() as usize).min(BUCKETS - 1)]);
    response
}

/// Marks the responses of what is behind the limit: a 403 from there is no ban.
pub(crate) async fn mark_passed(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    response.extensions_mut().insert(Passed);
    response
}

/// What the page shows.
pub(crate) struct Live {
    pub(crate) meter: Arc<Meter>,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) shop: Arc<Shop>,
    pub(crate) skus: Vec<Sku>,
    pub(crate) bans: Bans,
    /// `None` if everything is in this process.
    pub(crate) redis: Option<RedisCommands>,
}

/// Returns the files of the page. They hold no data, so they need no token.
pub(crate) fn pages() -> Router {
    Router::new()
        .route("/", Asset::html(include_str!("pages/live.html")).route())
        .route("/live.css", Asset::css(include_str!("pages/live.css")).route())
        .route("/live.js", Asset::script(include_str!("pages/live.js")).route())
}

/// Returns the route of the figures.
pub(crate) fn routes(live: Live) -> Router {
    Router::new().route("/admin/live", get(show)).with_state(Arc::new(live))
}

async fn show(State(live): State<Arc<Live>>) -> Json<Value> {
    let Live { meter, fleet, shop, skus, bans, redis } = &*live;
    let store = match redis {
        Some(commands) => state_of(commands).await,
        None => json!({ "kind": "memory" }),
    };
    let mut stock = Vec::new();
    for sku in skus {
        // What is not known is not shown: the state of the store says why.
        if let Ok(Some(level)) = shop.stock.level(sku).await {
            stock.push(json!({ "sku": sku, "stock": level.stock, "sold": level.sold }));
        }
    }
    let mut banned = HashMap::new();
    let mut offenders = meter.offenders.of(USER);
    offenders.truncate(OFFENDERS.1);
    // A store that does not reply is not asked once more for each of them.
    for offender in offenders.iter().filter(|_| store.get("error").is_none()) {
        if let Ok(Some(ban)) = bans.get(offender.key().clone()).await {
            banned.insert(offender.key().clone(), whole_seconds(ban.remaining()));
        }
    }
    let offender = |it: &tower_sliding_window::Offender| {
        let user = String::from_utf8_lossy(it.key().as_bytes());
        json!({ "user": user, "denials": it.denials(), "banned_seconds": banned.get(it.key()) })
    };
    let [by_store, by_local_log, by_failure_policy] = all(&meter.decided_by);
    Json(json!({
        "counts": all(&meter.classes),
        "latency": meter.latency(),
        "stock": stock,
        "opens_in_ms": shop.opening.opens_in().map(|wait| wait.as_millis() as u64),
        "store": store,
        "decided_by": { "store": by_store, "local": by_local_log, "policy": by_failure_policy },
        "policies": meter.policies(fleet),
        "offenders": offenders.iter().map(offender).collect::<Vec<_>>(),
    }))
}

/// Tells how Redis replies, and what its circuit breaker does.
async fn state_of(commands: &RedisCommands) -> Value {
    let sent = Instant::now();
    let ping = redis::cmd("PING");
    let reply = timeout(PATIENCE, commands.query::<redis::Value>(&ping)).await;
    let reply = reply.unwrap_or(Err(StoreError::Timeout));
    let breaker = if matches!(reply, Err(StoreError::Unavailable)) { "open" } else { "closed" };
    let mut state = json!({ "kind": "redis", "breaker": breaker });
    match reply {
        Ok(_) => state["round_trip_ms"] = (sent.elapsed().as_secs_f64() * 1e3).into(),
        Err(error) => state["error"] = error.to_string().into(),
    }
    state
}
