//! The route that explains what the log of a user decides.

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use tower_sliding_window::{Explanation, Limiter};

use super::{UserPath, user};
use example_support::problem::Problem;

/// Returns the route of explanations, by a limiter that has the policy and the store of the users.
pub(crate) fn routes(limiter: Limiter) -> Router {
    Router::new().route("/admin/explain/{user}", get(explain)).with_state(limiter)
}

/// Reads the log of a user. It is not changed, and nothing is counted.
async fn explain(
    State(limiter): State<Limiter>,
    path: UserPath,
) -> Result<Json<Explanation>, Problem> {
    let user = user(path)?;
    Ok(Json(limiter.explain(&user).await?))
}
