//! The routes of the admin listener: an operator looks at mutes, imposes and lifts them.

use std::fmt::Display;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use humantime::format_rfc3339_seconds;
use serde::Deserialize;
use serde_json::{Value, json};
use tower_sliding_window::moderation::{Mute, MuteCursor, MutePage, SpeechMonitor};
use tower_sliding_window::{Key, StoreError};

use crate::names::Named;
use example_support::body::WholeBody;
use example_support::flags::span;
use example_support::problem::{Problem, whole_seconds};

/// Returns the routes for an operator.
pub(crate) fn routes(monitor: SpeechMonitor) -> Router {
    Router::new()
        .route("/admin/mutes", get(list))
        .route("/admin/mutes/{user}", get(show).put(impose).delete(lift))
        .with_state(monitor)
}

/// The page of mutes that the query asks for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WantedPage {
    cursor: Option<String>,
    limit: Option<usize>,
}

impl WantedPage {
    /// Returns where the page begins, and about how many mutes it is to have.
    fn read(query: Result<Query<Self>, QueryRejection>) -> Result<(MuteCursor, usize), Problem> {
        let Query(Self { cursor, limit }) = query.map_err(|why| bad_page(why.body_text()))?;
        let limit = limit.unwrap_or(100);
        if !(1..=1_000).contains(&limit) {
            return Err(bad_page("the limit is out of range"));
        }
        let cursor = cursor.map_or(Ok(MuteCursor::default()), |cursor| cursor.parse());
        Ok((cursor.map_err(bad_page)?, limit))
    }
}

/// Responds with a page of the mutes, and with the cursor of the next page, if there is one.
async fn list(
    State(monitor): State<SpeechMonitor>,
    query: Result<Query<WantedPage>, QueryRejection>,
) -> Result<Json<Value>, Problem> {
    let (cursor, limit) = WantedPage::read(query)?;
    let MutePage { mutes, next, .. } = monitor.mutes(cursor, limit).await.map_err(no_page)?;
    let row = |(user, mute): &(Key, Mute)| shown(&String::from_utf8_lossy(user.as_bytes()), mute);
    let mut page = json!({ "mutes": mutes.iter().map(row).collect::<Vec<_>>() });
    if let Some(next) = next {
        page["next"] = next.to_string().into();
    }
    Ok(Json(page))
}

/// Shows a mute in a response.
fn shown(user: &str, mute: &Mute) -> Value {
    json!({
        "user": user,
        "rule": mute.rule().to_string(),
        "reason": mute.reason().to_string(),
        "until": format_rfc3339_seconds(mute.until()).to_string(),
        "remaining_seconds": whole_seconds(mute.remaining()),
    })
}

async fn show(
    State(monitor): State<SpeechMonitor>,
    Named(user): Named,
) -> Result<Json<Value>, Problem> {
    let mute = monitor
        .mute_of(&user)
        .await?
        .ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, "not-muted", "The user is not muted"))?;
    Ok(Json(shown(user.as_str(), &mute)))
}

/// The body of a PUT. The content type does not matter.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct Wanted {
    #[serde(rename = "for")]
    length: String,
}

impl Wanted {
    fn read(body: &[u8]) -> Result<Duration, Problem> {
        let Self { length } = serde_json::from_slice(body).map_err(bad_mute)?;
        let length = span(&length).map_err(|why| bad_mute(format!("`for`: {why}")))?;
        if length < Duration::from_secs(1) {
            return Err(bad_mute("`for`: it is shorter than a second"));
        }
        Ok(length)
    }
}

/// Responds with the mute that is active afterwards, which may be a longer one from before.
async fn impose(
    State(monitor): State<SpeechMonitor>,
    Named(user): Named,
    WholeBody(body): WholeBody,
) -> Result<Json<Value>, Problem> {
    let mute = monitor.mute(&user, Wanted::read(&body)?).await?;
    Ok(Json(shown(user.as_str(), &mute)))
}

async fn lift(
    State(monitor): State<SpeechMonitor>,
    Named(user): Named,
) -> Result<StatusCode, Problem> {
    monitor.unmute(&user).await?;
    tracing::info!("audit: a mute was lifted");
    tracing::debug!(user = ?user.as_str(), "audit: a mute was lifted");
    Ok(StatusCode::NO_CONTENT)
}

fn bad_mute(why: impl Display) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "bad-mute", "The mute is malformed")
        .detail(format!("The body must be {{\"for\": \"1h\"}}, in UTF-8: {why}."))
}

fn bad_page(why: impl Display) -> Problem {
    let title = "The query names no page of mutes";
    Problem::new(StatusCode::BAD_REQUEST, "bad-page", title).detail(format!(
        "It may be `limit`, from 1 to 1000, and `cursor`, the `next` of the page before: {why}."
    ))
}

/// Says that this store can't list mutes, if that is the error.
fn no_page(error: StoreError) -> Problem {
    if !matches!(error, StoreError::Unsupported { .. }) {
        return error.into();
    }
    let title = "The mutes of a Redis Cluster can't be listed";
    Problem::new(StatusCode::NOT_IMPLEMENTED, "no-list", title)
        .detail("Ask for one user: GET /admin/mutes/{user}.")
}
