//! The routes of the admin listener: an operator looks at mutes, imposes and lifts them.

use std::fmt::Display;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use humantime::format_rfc3339_seconds;
use serde::Deserialize;
use serde_json::{Value, json};
use tower_sliding_window::moderation::{Mute, SpeechMonitor};

use crate::names::{Name, Named};
use example_support::body::WholeBody;
use example_support::flags::span;
use example_support::problem::{Problem, whole_seconds};

/// Returns the routes for an operator.
pub(crate) fn routes(monitor: SpeechMonitor) -> Router {
    Router::new()
        .route("/admin/mutes/{user}", get(show).put(impose).delete(lift))
        .with_state(monitor)
}

/// Shows a mute in a response.
fn shown(user: &Name, mute: &Mute) -> Value {
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
    Ok(Json(shown(&user, &mute)))
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
    Ok(Json(shown(&user, &mute)))
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
