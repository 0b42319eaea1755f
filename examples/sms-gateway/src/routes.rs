//! The server's routes, and what each of them does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{ConnectInfo, DefaultBodyLimit, FromRequest, Path, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::downstream::Conduct;
use crate::gateway::Gateway;
use crate::message::Message;
use crate::policies::{ChangeError, Policies};
use crate::problem;
use crate::thresholds::{Level, Target, UnknownTarget};
use example_support::flags::span;
use example_support::problem::{Problem, with_fallbacks};

/// The longest body, in bytes.
const LONGEST_BODY: usize = 16 * 1024;

/// What the handlers share.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) policies: Arc<Policies>,
    /// How long a client may take over the body of a request.
    pub(crate) idle_timeout: Duration,
}

/// Puts the server together.
pub(crate) fn routes(app: App) -> Router {
    let operation = Router::new()
        .route("/policies", get(policies))
        .route("/policies/{*target}", put(change))
        .route("/downstream", get(downstream).put(set_downstream))
        .route_layer(from_fn(only_local));
    let routes = Router::new()
        .route("/sms", post(send))
        .route("/healthz", get(|| async { "ok" }))
        .merge(operation);
    with_fallbacks(routes).layer(DefaultBodyLimit::max(LONGEST_BODY)).with_state(app)
}

/// Admits requests from this machine only. A real gateway has its authentication here. A proxy on the
/// same machine must not forward these routes.
async fn only_local(request: Request, next: Next) -> Result<Response, Problem> {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    match peer.map(|ConnectInfo(address)| address.ip().to_canonical()) {
        Some(address) if address.is_loopback() => Ok(next.run(request).await),
        _ => {
            let title = "Only requests from the server's own machine are served here";
            Err(Problem::new(StatusCode::FORBIDDEN, "not-local", title))
        }
    }
}

async fn send(State(app): State<App>, Whole(body): Whole) -> Result<Response, Problem> {
    let message: Message =
        serde_json::from_slice(&body).map_err(|error| problem::bad_message(&error))?;
    Ok(match app.gateway.send(message).await {
        Ok(id) => {
            (StatusCode::ACCEPTED, Json(json!({ "message_id": id.to_string() }))).into_response()
        }
        Err(refusal) => problem::refused(refusal, app.gateway.bucket.quota()),
    })
}

async fn policies(State(app): State<App>) -> Result<Json<Value>, Problem> {
    let gateway = &app.gateway;
    let (global, alert) = (gateway.bucket.quota().to_string(), gateway.alerts.is_on("global"));
    let mut answer = json!({
        "version": app.policies.version(),
        "stale": app.policies.are_stale(),
        "global": { "configured": global, "alert": alert },
    });
    for level in Level::ALL {
        let mut entry = shown(gateway, &Target::Level(level))?;
        entry["alert"] = gateway.alerts.is_on(level.name()).into();
        answer[level.name()] = entry;
    }
    for (name, _) in gateway.levels.configured().institutions() {
        let own = shown(gateway, &Target::Institution(name.clone()))?;
        answer["institution"]["institutions"][name.as_str()] = own;
    }
    Ok(Json(answer))
}

/// Shows a threshold as it was configured, and as the controller has left it.
fn shown(gateway: &Gateway, target: &Target) -> Result<Value, Problem> {
    let (configured, effective) = gateway.levels.both(target).map_err(ChangeError::from)?;
    Ok(json!({ "configured": configured.to_string(), "effective": effective.to_string() }))
}

async fn change(
    State(app): State<App>,
    target: Result<Path<String>, PathRejection>,
    Whole(body): Whole,
) -> Result<Json<Value>, Problem> {
    let target = target.ok().and_then(|Path(target)| target.parse().ok());
    let target: Target = target.ok_or(ChangeError::Unknown(UnknownTarget))?;
    let text = policy_text(&body)?;
    let new = text.parse().map_err(|error| problem::bad_value(format!("{error}.")))?;
    // A change that has begun is finished even if the caller no longer waits.
    let (policies, changed) = (app.policies.clone(), target.clone());
    let change = tokio::spawn(async move { policies.change(&changed, new).await });
    change.await.unwrap_or(Err(ChangeError::Contended))?;
    shown(&app.gateway, &target).map(Json)
}

/// Reads a JSON string, or text as it is: `"500/1s"` and `500/1s` are the same.
fn policy_text(body: &[u8]) -> Result<String, Problem> {
    let text = std::str::from_utf8(body)
        .map_err(|_| problem::unreadable("The body is not UTF-8."))?
        .trim();
    if text.starts_with('"') {
        return serde_json::from_str(text).map_err(|error| problem::bad_json(&error));
    }
    Ok(text.to_owned())
}

/// The knobs of the simulated downstream, each of which may be left as it is.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Knobs {
    latency: Option<String>,
    errors: Option<String>,
}

async fn downstream(State(app): State<App>) -> Json<Value> {
    let Conduct { downstream_latency: latency, downstream_errors: errors } =
        app.gateway.downstream.conduct();
    let health = app.gateway.results.health();
    Json(json!({
        "latency": format!("{}ms", latency.as_millis()),
        "errors": errors.to_string(),
        "under_way": app.gateway.downstream.under_way(),
        "window": { "results": health.results, "failed": health.failed, "slow": health.slow },
    }))
}

async fn set_downstream(
    State(app): State<App>,
    Whole(body): Whole,
) -> Result<Json<Value>, Problem> {
    let knobs: Knobs = serde_json::from_slice(&body).map_err(|error| problem::bad_json(&error))?;
    let mut conduct = app.gateway.downstream.conduct();
    if let Some(latency) = knobs.latency {
        conduct.downstream_latency =
            span(&latency).map_err(|error| problem::bad_value(format!("latency: {error}.")))?;
    }
    if let Some(errors) = knobs.errors {
        conduct.downstream_errors =
            errors.parse().map_err(|error| problem::bad_value(format!("errors: {error}.")))?;
    }
    app.gateway.downstream.set(conduct);
    Ok(downstream(State(app)).await)
}

/// The body of a request, read to its end in no longer than a client may take.
struct Whole(Bytes);

impl FromRequest<App> for Whole {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let body = timeout(app.idle_timeout, Bytes::from_request(request, app)).await;
        let body = body.map_err(|_| Problem::plain(StatusCode::REQUEST_TIMEOUT))?;
        body.map(Self).map_err(|rejection| Problem::plain(rejection.status()))
    }
}
