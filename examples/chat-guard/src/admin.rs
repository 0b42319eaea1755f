//! The routes of the admin listener: an operator looks at mutes, imposes and lifts them.

use std::fmt::Display;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use example_support::admin::{PageQuery, page};
use example_support::flags::penalty_length;
use example_support::problem::{Problem, WholeBody, whole_seconds};
use serde::Deserialize;
use serde_json::{Value, json};
use speech_monitor::{Mute, SpeechMonitor};
use tower_sliding_window::Key;

use crate::chat::Chat;
use crate::routes::Named;

/// Returns the routes for an operator.
pub(crate) fn routes(monitor: SpeechMonitor, chat: Chat) -> Router {
    let waiting = async move || Json(json!({ "messages": chat.waiting() }));
    Router::new()
        .route("/admin/waiting", get(waiting))
        .route("/admin/mutes", get(list))
        .route("/admin/mutes/{user}", get(show).put(impose).delete(lift))
        .with_state(monitor)
}

/// Responds with a page of the mutes, and with the cursor of the next page, if there is one.
async fn list(
    State(monitor): State<SpeechMonitor>,
    query: Result<Query<PageQuery>, QueryRejection>,
) -> Result<Json<Value>, Problem> {
    let (cursor, limit) = PageQuery::read(query)?;
    let (mutes, next) = monitor.mutes(cursor, limit).await?;
    let row = |(user, mute): &(Key, Mute)| shown(&String::from_utf8_lossy(user.as_bytes()), mute);
    Ok(page("mutes", mutes.iter().map(row).collect(), next))
}

fn shown(user: &str, mute: &Mute) -> Value {
    json!({
        "user": user,
        "reason": mute.reason,
        "remaining_seconds": whole_seconds(mute.remaining),
    })
}

async fn show(
    State(monitor): State<SpeechMonitor>,
    Named(user): Named,
) -> Result<Json<Value>, Problem> {
    let title = "The user is not muted";
    let mute = monitor.mute_of(&*user).await?;
    let mute = mute.ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, "not-muted", title))?;
    Ok(Json(shown(&user, &mute)))
}

/// The body of a PUT. The content type does not matter.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    #[serde(rename = "for")]
    length: String,
}

/// Responds with the mute that is active afterwards, which may be a longer one from before.
async fn impose(
    State(monitor): State<SpeechMonitor>,
    Named(user): Named,
    body: WholeBody,
) -> Result<Json<Value>, Problem> {
    let Wanted { length } = body.object().map_err(|why| bad_mute(&why))?;
    let length = penalty_length(&length).map_err(|why| bad_mute(&why))?;
    let muted = monitor.mute(&*user, length).await;
    Ok(Json(shown(&user, &muted.map_err(Problem::of_unconfirmed_change)?)))
}

async fn lift(
    State(monitor): State<SpeechMonitor>,
    Named(user): Named,
) -> Result<StatusCode, Problem> {
    let lifted = monitor.unmute(&*user).await;
    // Also if the reply was lost: a further try finds no mute.
    if !matches!(lifted, Ok(false)) {
        let is_confirmed = lifted.is_ok();
        tracing::info!(is_confirmed, "audit: a mute was lifted");
        tracing::debug!(?user, "audit: a mute was lifted");
    }
    lifted.map(|_| StatusCode::NO_CONTENT).map_err(Problem::of_unconfirmed_change)
}

fn bad_mute(why: &dyn Display) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "bad-mute", "The mute is malformed")
        .detail(format!("The body must be {{\"for\": \"1h\"}}, in UTF-8: {why}."))
}
