//! Plans with quotas of their own, an agreement with one user, and the monitoring without a limit.
//!
//! ```text
//! cargo run --example plans
//! ```

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::{get, put};
use tokio::net::TcpListener;
use tower_sliding_window::{
    Key, MemoryStore, Overrides, Policy, PolicyError, PolicyHandle, Quota, SlidingWindowLayer, key,
};

const HELP: &str = "\
Serves http://127.0.0.1:3000/: two requests a minute for each user, and three for users who pay.
  curl -i -H 'x-user-id: alice' http://127.0.0.1:3000/
  curl -i -H 'x-user-id: bob' -H 'x-plan: paid' http://127.0.0.1:3000/
  curl -X PUT --data 100/60s http://127.0.0.1:3000/overrides/alice    # or exempt";

#[derive(Clone)]
struct User {
    id: String,
    is_paying: bool,
}

impl From<&User> for Key {
    fn from(user: &User) -> Self {
        Self::from(&user.id)
    }
}

/// Finds out who sends a request. A real application checks a token.
async fn authenticate(headers: HeaderMap, mut request: Request, next: Next) -> Response {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(id) = header("x-user-id") {
        let user = User { id: id.to_owned(), is_paying: header("x-plan") == Some("paid") };
        request.extensions_mut().insert(user);
    }
    next.run(request).await
}

/// Sets the quotas of a user. A real application allows this to administrators only.
async fn set_override(
    State(users): State<Overrides>,
    Path(user): Path<String>,
    quotas: String,
) -> Result<String, (StatusCode, String)> {
    let set = || users.set(user.as_str(), quotas.parse()?);
    set().map_err(|error: PolicyError| (StatusCode::BAD_REQUEST, format!("{error}\n")))?;
    Ok(format!("{user}: {quotas}\n"))
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    println!("{HELP}");
    if std::env::args().len() > 1 {
        return Ok(());
    }

    // All plans have one name. So a user has one log, and keeps it when the plan changes.
    let plan = |quota| PolicyHandle::new(Policy::new("user").quota(quota));
    let (free, paid) = (plan(Quota::per_minute(2)), plan(Quota::per_minute(3)));
    let users = Overrides::new(&free);

    let overrides = users.clone();
    let limit = SlidingWindowLayer::choosing(
        move |request, key| {
            let is_paying = request.extensions.get::<User>().is_some_and(|user| user.is_paying);
            let of_plan = || Some(if is_paying { paid.clone() } else { free.clone() });
            // An override comes before the plan.
            overrides.override_of(key).unwrap_or_else(of_plan)
        },
        key::extension::<User>(),
        MemoryStore::new(),
    );

    // The layer added last runs first, and inserts the user that the limit needs.
    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .route_layer(limit)
        .route_layer(from_fn(authenticate))
        .route("/overrides/{user}", put(set_override))
        .with_state(users);
    axum::serve(TcpListener::bind("127.0.0.1:3000").await?, app).await
}
