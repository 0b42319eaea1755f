//! The admin listener: an operator looks at bans, imposes and lifts them.

pub(crate) mod explain;
pub(crate) mod policies;

use std::fmt::Display;
use std::time::{Duration, SystemTime};

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use humantime::format_rfc3339_seconds;
use serde::Deserialize;
use serde_json::{Value, json};
use tower_sliding_window::{Ban, BanEvent, BanPage, Bans, Key};

use crate::user::UserId;
use example_support::admin::{PageQuery, no_page, page};
use example_support::body::WholeBody;
use example_support::flags::penalty_length;
use example_support::problem::{Problem, whole_seconds};

/// The most bans in a page.
const LARGEST_PAGE: usize = 10_000;

/// Returns the routes of the admin listener.
pub(crate) fn routes(bans: Bans) -> Router {
    let bans = bans.on_event(audit);
    Router::new()
        .route("/admin/bans", get(list))
        .route("/admin/bans/{user}", get(show).put(impose).delete(lift))
        .with_state(bans)
}

/// Where a real shop writes its audit log. User ids, and reasons that may contain one, appear at the
/// level debug only.
fn audit(event: &BanEvent) {
    match event {
        BanEvent::Imposed { policy, key, ban } => {
            tracing::info!(%policy, length = ?ban.remaining(), "audit: a ban was imposed");
            let user = String::from_utf8_lossy(key.as_bytes());
            tracing::debug!(?user, reason = ?ban.reason(), "audit: a ban was imposed");
        }
        BanEvent::Lifted { policy, key } => {
            tracing::info!(%policy, "audit: a ban was lifted");
            tracing::debug!(user = ?String::from_utf8_lossy(key.as_bytes()), "audit: a ban was lifted");
        }
        _ => tracing::info!("audit: a ban was changed"),
    }
}

type UserPath = Result<Path<String>, PathRejection>;

/// Reads a user id by the same rules as the order route.
fn user(path: UserPath) -> Result<UserId, Problem> {
    path.ok().and_then(|Path(text)| UserId::new(text)).ok_or_else(|| {
        Problem::new(StatusCode::BAD_REQUEST, "bad-user", "The path names no user")
            .detail("A user id is 1 to 128 bytes of UTF-8, percent-encoded in the path.")
    })
}

/// Shows a ban in a response.
fn shown(user: &str, ban: &Ban) -> Value {
    let until = SystemTime::now().checked_add(ban.remaining());
    json!({
        "user": user,
        "until": until.map(|until| format_rfc3339_seconds(until).to_string()),
        "remaining_seconds": whole_seconds(ban.remaining()),
        "reason": ban.reason(),
    })
}

/// Responds with a page of the bans, the longest of the page first, and with the cursor of the next
/// page, if there is one.
async fn list(
    State(bans): State<Bans>,
    query: Result<Query<PageQuery>, QueryRejection>,
) -> Result<Json<Value>, Problem> {
    let (cursor, limit) = PageQuery::read(query, LARGEST_PAGE)?;
    let BanPage { mut bans, next, .. } =
        bans.page(cursor, limit).await.map_err(|error| no_page(error, "/admin/bans/{user}"))?;
    bans.sort_by_key(|(_, ban)| std::cmp::Reverse(ban.remaining()));
    let user = |key: &Key| String::from_utf8_lossy(key.as_bytes()).into_owned();
    let listed = bans.iter().map(|(key, ban)| shown(&user(key), ban)).collect();
    Ok(page("bans", listed, next))
}

async fn show(State(bans): State<Bans>, path: UserPath) -> Result<Json<Value>, Problem> {
    let user = user(path)?;
    let ban = bans.get(&user).await?.ok_or_else(not_banned)?;
    Ok(Json(shown(user.as_str(), &ban)))
}

/// The body of a PUT. The content type does not matter.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct Wanted {
    #[serde(rename = "for")]
    length: String,
    reason: String,
}

impl Wanted {
    fn read(body: &[u8]) -> Result<(Duration, String), Problem> {
        let Self { length, reason } = serde_json::from_slice(body).map_err(bad_ban)?;
        let length = penalty_length(&length).map_err(|why| bad_ban(format!("`for`: {why}")))?;
        if reason.len() > 500 {
            return Err(bad_ban("`reason`: it is longer than 500 bytes"));
        }
        Ok((length, reason))
    }
}

/// Responds with the ban that stands, which may be a longer one from before.
async fn impose(
    State(bans): State<Bans>,
    path: UserPath,
    WholeBody(body): WholeBody,
) -> Result<Json<Value>, Problem> {
    let user = user(path)?;
    let (length, reason) = Wanted::read(&body)?;
    let ban = bans.impose(&user, length, &reason).await?;
    Ok(Json(shown(user.as_str(), &ban)))
}

async fn lift(State(bans): State<Bans>, path: UserPath) -> Result<StatusCode, Problem> {
    match bans.lift(&user(path)?).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(not_banned()),
    }
}

fn not_banned() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "not-banned", "The user is not banned")
}

fn bad_ban(why: impl Display) -> Problem {
    let title = "The ban is malformed";
    Problem::new(StatusCode::BAD_REQUEST, "bad-ban", title).detail(format!(
        "The body must be {{\"for\": \"1h\", \"reason\": \"...\"}}, in UTF-8: {why}."
    ))
}
