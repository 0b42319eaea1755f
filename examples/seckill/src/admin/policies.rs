//! The routes of the thresholds, which an operator changes on every server.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::Value;

use crate::policies::{ChangeError, Entry, Fleet};
use example_support::body::WholeBody;
use example_support::problem::Problem;

/// Returns the routes of the thresholds.
pub(crate) fn routes(fleet: Arc<Fleet>) -> Router {
    Router::new()
        .route("/admin/policies", get(show))
        .route("/admin/policies/{name}", axum::routing::put(set).delete(reset))
        .with_state(fleet)
}

type NamePath = Result<Path<String>, PathRejection>;

async fn show(State(fleet): State<Arc<Fleet>>) -> Json<Value> {
    Json(fleet.shown())
}

async fn set(
    State(fleet): State<Arc<Fleet>>,
    name: NamePath,
    WholeBody(body): WholeBody,
) -> Result<Json<Value>, Problem> {
    let thresholds = serde_json::from_slice(&body).map_err(|error| bad_policy(&error))?;
    change(fleet, name, Entry::Set(thresholds)).await
}

/// Follows the flags or the file again.
async fn reset(State(fleet): State<Arc<Fleet>>, name: NamePath) -> Result<Json<Value>, Problem> {
    change(fleet, name, Entry::Configured).await
}

/// Makes a change. One that has begun is finished even if the caller no longer waits.
async fn change(fleet: Arc<Fleet>, name: NamePath, entry: Entry) -> Result<Json<Value>, Problem> {
    let Path(name) = name.map_err(|_| unknown())?;
    let changed = tokio::spawn(async move {
        fleet.change(&name, &entry).await?;
        Ok(Json(fleet.shown()))
    });
    Ok(changed.await.unwrap_or(Err(ChangeError::Contended))?)
}

impl From<ChangeError> for Problem {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Unknown => unknown(),
            ChangeError::Thresholds(error) => bad_policy(&error),
            ChangeError::Redis(error) => error.into(),
            ChangeError::Limits(_) | ChangeError::Contended => {
                let title = "Nothing was changed";
                Self::new(StatusCode::CONFLICT, "not-changed", title)
                    .detail(format!("Try again: {error}."))
            }
        }
    }
}

fn unknown() -> Problem {
    let title = "There is no such policy";
    Problem::new(StatusCode::NOT_FOUND, "unknown-policy", title)
        .detail("There are `user` and, unless addresses have no limit, `ip`.")
}

fn bad_policy(why: &dyn std::fmt::Display) -> Problem {
    let title = "The policy is malformed";
    Problem::new(StatusCode::BAD_REQUEST, "bad-policy", title).detail(format!(
        "The body must be {{\"quotas\": \"2/1s,5/60s\", \"candidates\": \"4/60s\"}}, where \
         `candidates` may be left out: {why}."
    ))
}
