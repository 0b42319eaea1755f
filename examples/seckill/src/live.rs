//! The live page of the admin listener: what the server decides. [`Meter`] counts, and `GET /admin/live`
//! shows the counts, the stock and the state of the store at the moment. The page asks once a second.

use std::array;
use std::collections::HashMap;
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
use tokio::time::{Instant, timeout};
use tower_sliding_window::store::RedisCommands;
use tower_sliding_window::{Bans, DecidedBy, Decision, Offender, Policy, StoreError, TopOffenders};

use crate::policies::{Fleet, USER, shown};
use crate::routes::Shop;
use example_support::lock;
use example_support::problem::whole_seconds;

/// How many keys of each policy are told apart among those denied most, and how many are shown.
const OFFENDERS: (usize, usize) = (200, 10);
/// How long the store may take to reply before the page says that it does not.
const PATIENCE: Duration = Duration::from_secs(1);
/// What comes of a request: 201, 409, 410, 429, a ban, 5xx, and the rest.
const CLASSES: usize = 7;

fn class(response: &Response) -> usize {
    match response.status() {
        StatusCode::CREATED => 0,
        StatusCode::CONFLICT => 1,
        StatusCode::GONE => 2,
        StatusCode::TOO_MANY_REQUESTS => 3,
        StatusCode::FORBIDDEN if response.extensions().get::<Passed>().is_none() => 4,
        status if status.is_server_error() => 5,
        _ => 6,
    }
}

/// Marks the response to a request that the limit has let pass.
#[derive(Clone, Copy)]
struct Passed;

/// Counts since the start.
pub(crate) struct Meter {
    classes: [AtomicU64; CLASSES],
    /// By the store, by the log of this process, and by the failure policy alone.
    decided_by: [AtomicU64; 3],
    policies: Vec<PolicyCounters>,
    offenders: TopOffenders,
}

/// What a policy has refused, and what its candidates would have refused besides.
struct PolicyCounters {
    name: String,
    refused: AtomicU64,
    would_refuse: AtomicU64,
    trial: Mutex<Trial>,
}

/// Since when a policy is seen to have its candidates, and the counts then.
struct Trial {
    policy: Arc<Policy>,
    begun: Instant,
    refused: u64,
    would_refuse: u64,
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
            classes: Default::default(),
            decided_by: Default::default(),
            policies: policies.into_iter().map(counters).collect(),
            offenders: TopOffenders::new(OFFENDERS.0),
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

    /// Shows the policies, and beside what they refuse what their candidates would refuse.
    fn policies(&self, fleet: &Fleet) -> Value {
        let mut shown = shown(fleet);
        for policy in fleet.set().all() {
            let Some(counters) = self.policies.iter().find(|it| it.name == policy.name()) else {
                continue;
            };
            let [refused, would_refuse] = [&counters.refused, &counters.would_refuse]
                .map(|counter| counter.load(Ordering::Relaxed));
            let mut trial = lock(&counters.trial);
            if trial.policy.candidates() != policy.candidates() {
                *trial = Trial { policy, begun: Instant::now(), refused, would_refuse };
            }
            let policies = shown["policies"].as_array_mut().into_iter().flatten();
            for shown in policies.filter(|shown| shown["name"] == counters.name) {
                shown["trial"] = json!({
                    "seconds": trial.begun.elapsed().as_secs(),
                    "refused": refused - trial.refused,
                    "would_refuse": would_refuse - trial.would_refuse,
                });
            }
        }
        shown
    }
}

/// Counts the requests of a route. It runs in front of the limit.
pub(crate) async fn count(
    State(meter): State<Arc<Meter>>,
    request: Request,
    next: Next,
) -> Response {
    let response = next.run(request).await;
    add(&meter.classes[class(&response)]);
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
    pub(crate) bans: Bans,
    /// `None` if everything is in this process.
    pub(crate) redis: Option<RedisCommands>,
}

/// Returns the route of the figures.
pub(crate) fn routes(live: Live) -> Router {
    Router::new().route("/admin/live", get(show)).with_state(Arc::new(live))
}

async fn show(State(live): State<Arc<Live>>) -> Json<Value> {
    let Live { meter, fleet, shop, bans, redis } = &*live;
    let store = match redis {
        Some(commands) => state_of(commands).await,
        None => json!({ "kind": "memory" }),
    };
    let mut stock = Vec::new();
    for sku in &shop.skus {
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
    let offender = |it: &Offender| {
        let user = String::from_utf8_lossy(it.key().as_bytes());
        json!({ "user": user, "denials": it.denials(), "banned_seconds": banned.get(it.key()) })
    };
    let [by_store, by_local_log, by_failure_policy] = all(&meter.decided_by);
    Json(json!({
        "counts": all(&meter.classes),
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
