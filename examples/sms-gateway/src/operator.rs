//! The routes of the admin listener: thresholds, the lists of institutions, channels and destinations,
//! refusals, and the simulated downstream.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, put};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::alerts::Alerts;
use crate::downstream::Conduct;
use crate::entry::Entry;
use crate::gateway::Gateway;
use crate::policies::{Change, ChangeError, Policies};
use crate::problem;
use crate::refusals::Refuser;
use crate::thresholds::{Level, List, Target, UnknownTarget};
use example_support::body::WholeBody;
use example_support::flags::span;
use example_support::problem::Problem;

/// What the handlers share.
#[derive(Clone)]
pub(crate) struct Operation {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) policies: Arc<Policies>,
    pub(crate) alerts: Arc<Alerts>,
}

/// Returns the routes of the admin listener.
pub(crate) fn routes(operation: Operation) -> Router {
    let mut routes = Router::new()
        .route("/policies", get(policies))
        .route("/policies/{*target}", put(set).delete(follow))
        .route("/refusals", get(refusals))
        .route("/downstream", get(downstream).put(set_downstream));
    for list in List::ALL {
        let add = move |operation, name, body| add(operation, list, name, body);
        let remove = move |operation, name| remove(operation, list, name);
        routes = routes.route(&format!("/{}/{{name}}", list.name()), put(add).delete(remove));
    }
    routes.with_state(operation)
}

type TextPath = Result<Path<String>, PathRejection>;

async fn policies(State(operation): State<Operation>) -> Result<Json<Value>, Problem> {
    let Operation { gateway, policies, alerts } = &operation;
    let mut answer = json!({
        "version": policies.version(),
        "stale": policies.are_stale(),
        "global": {
            "configured": gateway.bucket.quota().to_string(),
            "alert": alerts.is_on(Refuser::Global),
        },
    });
    for level in Level::ALL {
        let mut entry = shown(gateway, &Target::Level(level))?;
        entry["alert"] = alerts.is_on(Refuser::Level(level)).into();
        answer[level.name()] = entry;
    }
    let configured = gateway.levels.configured();
    for list in List::ALL {
        for (name, own) in configured.list(list) {
            // It may have been removed meanwhile.
            let Ok(mut entry) = shown(gateway, &Target::Member(list, name.clone())) else {
                continue;
            };
            entry["follows_level"] = own.is_none().into();
            answer[list.level().name()][list.name()][name.as_str()] = entry;
        }
    }
    Ok(Json(answer))
}

/// Shows a threshold as it was configured, and as the controller has left it.
fn shown(gateway: &Gateway, target: &Target) -> Result<Value, Problem> {
    let (configured, effective) = gateway.levels.both(target).map_err(ChangeError::from)?;
    Ok(json!({ "configured": configured.to_string(), "effective": effective.to_string() }))
}

/// Counts of each institution: refusals from the start and in the window of the alerts, and messages
/// that wait now.
async fn refusals(State(operation): State<Operation>) -> Json<Value> {
    let gateway = &operation.gateway;
    let mut institutions = Map::new();
    for name in gateway.levels.configured().list(List::Institutions).keys() {
        let [mut total, mut recent] = [Map::new(), Map::new()];
        for (refuser, from_start, recently) in gateway.refusals.of(name) {
            total.insert(refuser.name().to_owned(), from_start.into());
            recent.insert(refuser.name().to_owned(), recently.into());
        }
        let waiting = gateway.hold.waiting(name);
        let counts = json!({ "total": total, "recent": recent, "waiting": waiting });
        institutions.insert(name.as_str().to_owned(), counts);
    }
    let window = gateway.refusals.window().as_secs_f64();
    Json(json!({ "recent_seconds": window, "institutions": institutions }))
}

async fn set(
    State(operation): State<Operation>,
    target: TextPath,
    WholeBody(body): WholeBody,
) -> Result<Json<Value>, Problem> {
    let target = read_target(target)?;
    let policy = problem::policy(&body)?;
    operation.change(&target, Entry::Policy(policy), Change::OfMembers).await?;
    shown(&operation.gateway, &target).map(Json)
}

async fn follow(
    State(operation): State<Operation>,
    target: TextPath,
) -> Result<Json<Value>, Problem> {
    let target = read_target(target)?;
    if let Target::Level(_) = target {
        return Err(Problem::plain(StatusCode::METHOD_NOT_ALLOWED)
            .detail("A level always has a threshold: PUT another one."));
    }
    operation.change(&target, Entry::Level, Change::OfMembers).await?;
    shown(&operation.gateway, &target).map(Json)
}

fn read_target(target: TextPath) -> Result<Target, Problem> {
    let target = target.ok().and_then(|Path(target)| target.parse().ok());
    Ok(target.ok_or(ChangeError::Unknown(UnknownTarget))?)
}

/// Adds a member, or changes one that is there. Without a policy it follows its level.
async fn add(
    State(operation): State<Operation>,
    list: List,
    name: TextPath,
    WholeBody(body): WholeBody,
) -> Result<(StatusCode, Json<Value>), Problem> {
    let target = read_member(list, name)?;
    let is_empty = body.iter().all(u8::is_ascii_whitespace);
    let entry = if is_empty { Entry::Level } else { Entry::Policy(problem::policy(&body)?) };
    let is_new = operation.change(&target, entry, Change::Put).await?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(shown(&operation.gateway, &target)?)))
}

async fn remove(
    State(operation): State<Operation>,
    list: List,
    name: TextPath,
) -> Result<StatusCode, Problem> {
    let target = read_member(list, name)?;
    operation.change(&target, Entry::Removed, Change::OfMembers).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn read_member(list: List, name: TextPath) -> Result<Target, Problem> {
    let name = name.map_err(|_| problem::bad_value("The path is not UTF-8."))?;
    let name = list.member(&name).map_err(|error| problem::bad_value(format!("{error}.")))?;
    Ok(Target::Member(list, name))
}

impl Operation {
    /// Makes a change. One that has begun is finished even if the caller no longer waits.
    async fn change(&self, target: &Target, entry: Entry, change: Change) -> Result<bool, Problem> {
        let (policies, target) = (self.policies.clone(), target.clone());
        let changed = tokio::spawn(async move { policies.change(&target, &entry, change).await });
        Ok(changed.await.unwrap_or(Err(ChangeError::Contended))?)
    }
}

/// The knobs of the simulated downstream, each of which may be left as it is.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Knobs {
    latency: Option<String>,
    errors: Option<String>,
}

async fn downstream(State(operation): State<Operation>) -> Json<Value> {
    let Operation { gateway, .. } = operation;
    let Conduct { downstream_latency: latency, downstream_errors: errors } =
        gateway.downstream.conduct();
    let health = gateway.results.health();
    Json(json!({
        "latency": format!("{}ms", latency.as_millis()),
        "errors": errors.to_string(),
        "under_way": gateway.downstream.under_way(),
        "window": { "results": health.results, "failed": health.failed, "slow": health.slow },
    }))
}

async fn set_downstream(
    State(operation): State<Operation>,
    WholeBody(body): WholeBody,
) -> Result<Json<Value>, Problem> {
    let knobs: Knobs = serde_json::from_slice(&body).map_err(|error| problem::bad_json(&error))?;
    let mut conduct = operation.gateway.downstream.conduct();
    if let Some(latency) = knobs.latency {
        conduct.downstream_latency =
            span(&latency).map_err(|error| problem::bad_value(format!("latency: {error}.")))?;
    }
    if let Some(errors) = knobs.errors {
        conduct.downstream_errors =
            errors.parse().map_err(|error| problem::bad_value(format!("errors: {error}.")))?;
    }
    operation.gateway.downstream.set(conduct);
    Ok(downstream(State(operation)).await)
}
