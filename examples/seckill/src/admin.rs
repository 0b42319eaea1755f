//! The admin listener: an operator looks at bans, imposes and lifts them, has a user's log explained, and
//! changes policies on every server.

use std::collections::HashMap;
use std::fmt::Display;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{Method, StatusCode};
use axum::routing::{get, put};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use tower_sliding_window::key::peer_ip;
use tower_sliding_window::store::Store;
use tower_sliding_window::{
    Ban, BanEvent, BanPage, Bans, Explanation, FailurePolicy, Key, Limiter,
};

use crate::live;
use crate::names::UserId;
use crate::policies::{Changes, Fleet, USER, shown};
use crate::routes::{Answer, PathText, Shop};
use example_support::admin::{PageQuery, page};
use example_support::flags::penalty_length;
use example_support::problem::{Problem, WholeBody, whole_seconds};

/// What the routes share.
#[derive(Clone)]
pub(crate) struct Operator {
    pub(crate) shop: Arc<Shop>,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) bans: Bans,
    /// The store of the clients, and what decides while it does not answer.
    pub(crate) windows: Arc<dyn Store>,
    pub(crate) on_failure: FailurePolicy,
}

/// Returns the routes of the admin listener.
pub(crate) fn routes(operator: Operator) -> Router {
    #[cfg(feature = "metrics")]
    tokio::spawn(live::report(Arc::clone(&operator.shop)));
    Router::new()
        .route("/admin/live", get(live::show))
        .route("/admin/bans", get(list))
        .route("/admin/bans/{user}", get(show).put(impose).delete(lift))
        .route("/admin/explain/{user}", get(explain))
        .route("/admin/policies", get(policies))
        .route("/admin/policies/{name}", put(change).delete(change))
        .with_state(operator)
}

/// Where a real shop writes its audit log. User ids, and reasons that may contain one, appear at the
/// level debug only.
pub(crate) fn audit(event: &BanEvent) {
    let (what, key, reason) = match event {
        BanEvent::Imposed { key, ban, .. } => ("imposed", key, &*ban.reason),
        BanEvent::Lifted { key, .. } => ("lifted", key, ""),
        _ => return,
    };
    tracing::info!("audit: a ban was {what}");
    let user = String::from_utf8_lossy(key.as_bytes());
    tracing::debug!(?user, ?reason, "audit: a ban was {what}");
}

/// Reads a user id by the same rules as the order route.
fn user(path: PathText) -> Result<UserId, Problem> {
    path.ok().and_then(|Path(text)| UserId::new(text)).ok_or_else(|| {
        Problem::new(StatusCode::BAD_REQUEST, "bad-user", "The path names no user")
            .detail("A user id is 1 to 128 bytes of UTF-8, percent-encoded in the path.")
    })
}

/// Shows a ban in a response.
fn shown_ban(user: &str, ban: &Ban) -> Value {
    let remaining = whole_seconds(ban.remaining);
    json!({ "user": user, "remaining_seconds": remaining, "reason": ban.reason })
}

/// Responds with a page of the bans, and with the cursor of the next page, if there is one.
async fn list(
    State(it): State<Operator>,
    query: Result<Query<PageQuery>, QueryRejection>,
) -> Answer {
    let (cursor, limit) = PageQuery::read(query)?;
    let BanPage { bans, next, .. } = it.bans.page(cursor, limit).await?;
    let user = |key: &Key| String::from_utf8_lossy(key.as_bytes()).into_owned();
    let listed = bans.iter().map(|(key, ban)| shown_ban(&user(key), ban)).collect();
    Ok(page("bans", listed, next))
}

async fn show(State(it): State<Operator>, path: PathText) -> Answer {
    let user = user(path)?;
    let ban = it.bans.get(user.as_str()).await?.ok_or_else(not_banned)?;
    Ok(Json(shown_ban(user.as_str(), &ban)))
}

/// The body of the PUT of a ban. The content type does not matter.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct WantedBan {
    #[serde(rename = "for")]
    length: String,
    reason: String,
}

/// Responds with the ban that stands, which may be a longer one from before.
async fn impose(State(it): State<Operator>, path: PathText, body: WholeBody) -> Answer {
    let user = user(path)?;
    let WantedBan { length, reason } = body.object().map_err(bad_ban)?;
    let length = penalty_length(&length).map_err(|why| bad_ban(format!("`for`: {why}")))?;
    let imposed = it.bans.impose(user.as_str(), length, &reason).await;
    let ban = imposed.map_err(Problem::of_unconfirmed_change)?;
    Ok(Json(shown_ban(user.as_str(), &ban)))
}

async fn lift(State(it): State<Operator>, path: PathText) -> Result<StatusCode, Problem> {
    let lifted = it.bans.lift(user(path)?.as_str()).await;
    let is_lifted = lifted.map_err(Problem::of_unconfirmed_change)?;
    if is_lifted { Ok(StatusCode::NO_CONTENT) } else { Err(not_banned()) }
}

fn not_banned() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "not-banned", "The user is not banned")
}

fn bad_ban(why: impl Display) -> Problem {
    let detail =
        format!("The body must be {{\"for\": \"1h\", \"reason\": \"...\"}}, in UTF-8: {why}.");
    Problem::new(StatusCode::BAD_REQUEST, "bad-ban", "The ban is malformed").detail(detail)
}

/// Reads the log of a user, or of an address under its policy. It is not changed, and nothing is counted.
async fn explain(
    State(it): State<Operator>,
    Query(query): Query<HashMap<String, String>>,
    path: PathText,
) -> Result<Json<Explanation>, Problem> {
    let user = user(path)?;
    let policy = query.get("policy").map_or(USER, String::as_str);
    // The log of an IPv6 address is that of its network.
    let address = user.as_str().parse::<IpAddr>().ok().filter(|_| policy != USER);
    let key = address.map_or_else(|| Key::from(user.as_str()), |it| peer_ip().key_of(it));
    let policy = it.fleet.set().of(policy, &key).ok_or_else(unknown_policy)?;
    let limiter = Limiter::new(policy, it.windows).failure_policy(it.on_failure);
    Ok(Json(limiter.explain(key).await?))
}

async fn policies(State(it): State<Operator>) -> Json<Value> {
    Json(shown(&it.fleet).await)
}

/// The body of the PUT of a policy, or of its DELETE, which may have none.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct WantedPolicy {
    quotas: Option<String>,
    /// The version that the policies must have, if the operator has seen one.
    version: Option<u64>,
}

/// Sets quotas by PUT, and follows the flags again by DELETE.
async fn change(
    State(it): State<Operator>,
    method: Method,
    name: PathText,
    body: WholeBody,
) -> Answer {
    let wanted = match method == Method::DELETE && body.0.is_empty() {
        true => Ok(WantedPolicy::default()),
        false => body.object(),
    };
    let WantedPolicy { quotas, version } = wanted.map_err(bad_policy)?;
    if quotas.is_some() != (method == Method::PUT) {
        return Err(bad_policy("a PUT has `quotas`, and a DELETE has none"));
    }
    let name = name.ok().map(|Path(name)| name).filter(|name| it.fleet.set().has(name));
    let name = name.ok_or_else(unknown_policy)?;
    let edit = |mut changes: Changes| {
        match quotas {
            Some(quotas) => changes.insert(name, quotas),
            None => changes.remove(&name),
        };
        Ok(changes)
    };
    it.fleet.change(version, edit, bad_policy).await?;
    Ok(policies(State(it)).await)
}

fn unknown_policy() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "unknown-policy", "There is no such policy").detail(
        "`user` and, unless addresses have no limit, `ip` can change, and `accounts` be explained.",
    )
}

fn bad_policy(why: impl Display) -> Problem {
    let detail = format!("The body must be {{\"quotas\": \"2/1s,5/60s\"}}: {why}.");
    Problem::new(StatusCode::BAD_REQUEST, "bad-policy", "The policy is malformed").detail(detail)
}
