//! [`Admin`]: a second listener, for the operator of a server. It is on a loopback address, and each request
//! carries a token. A page of another site in the operator's browser does not have the token, also if its
//! name leads here.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, Query, Request, State};
use axum::http::StatusCode;
use axum::http::header::WWW_AUTHENTICATE;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use clap::Args;
use serde::Deserialize;
use serde_json::{Value, json};
use subtle::ConstantTimeEq;
use tower_sliding_window::{Key, KeyExtractor, key};

use crate::logs::Throttle;
use crate::problem::{Problem, with_fallbacks};
use crate::server::{Server, ServerError};

/// The longest body, in bytes.
const LONGEST_BODY: usize = 4096;

static REFUSED: Throttle = Throttle::new();

/// Where the admin listener is, and its token. It is off if `--admin` is left out.
///
/// `mut_arg` gives `--admin-token` the environment variable of the server.
#[derive(Args)]
pub struct AdminFlags {
    /// Loopback address of the admin listener; port 0 takes a free one. The server prints the address
    /// in a second line. Needs a token. Off if left out.
    #[arg(long, value_name = "IP:PORT", value_parser = loopback)]
    pub admin: Option<SocketAddr>,

    /// Token that requests to --admin carry, 16 characters or more. Every user of this machine can
    /// see it in `ps`: better set the variable.
    // Text here, so that an error of clap, which repeats the value, can't show a token.
    #[arg(long, value_name = "TOKEN", hide_env_values = true)]
    admin_token: Option<String>,
}

/// Reads an address that only this machine can reach.
fn loopback(text: &str) -> Result<SocketAddr, String> {
    let form = "write IP:PORT, such as 127.0.0.1:3001 or [::1]:3001";
    let address: SocketAddr = text.parse().map_err(|error| format!("{error}: {form}"))?;
    let is_reachable = "other machines could reach it: the IP must be of 127.0.0.0/8 or ::1";
    if address.ip().is_loopback() { Ok(address) } else { Err(is_reachable.to_owned()) }
}

/// An admin listener that has its address.
pub struct Admin {
    server: Server,
    token: Arc<str>,
    routes: Router,
}

impl Admin {
    /// Takes the address of `--admin`, if it is there, for a listener that stops together with the
    /// server of the clients.
    ///
    /// With the feature `metrics` it has `GET /metrics`, in the text format of Prometheus.
    pub async fn bind(flags: &AdminFlags, clients: &Server) -> Result<Option<Self>, AdminError> {
        let Some(listen) = flags.admin else { return Ok(None) };
        let token = checked(flags.admin_token.as_deref().unwrap_or_default())?;
        #[cfg(feature = "metrics")]
        let routes = metrics()?;
        #[cfg(not(feature = "metrics"))]
        let routes = Router::new();
        Ok(Some(Self { server: clients.bind_beside(listen, "--admin").await?, token, routes }))
    }
}

/// Prints where the server listens, and serves its clients until it is asked to stop. With an admin listener
/// also the routes of the operator, for requests with the token, with bodies of up to 4 KiB unless they say more.
///
/// The `pages` there need no token, which a browser can't send when it opens a page. They hold nothing
/// but what is in the program's source, and send the token with each request for more.
pub async fn serve(
    server: Server,
    clients: Router,
    admin: Option<Admin>,
    operator: Router,
    pages: Router,
) -> Result<(), ServerError> {
    server.announce("listening on")?;
    let Some(admin) = admin else {
        drop(operator);
        server.serve(clients).await;
        return Ok(());
    };
    admin.server.announce("admin on")?;
    let operator = with_fallbacks(admin.routes.merge(operator))
        .layer(DefaultBodyLimit::max(LONGEST_BODY))
        .layer(from_fn_with_state(admin.token, with_token));
    tokio::join!(server.serve(clients), admin.server.serve(operator.merge(pages)));
    Ok(())
}

/// Lets only requests that carry a token through to these routes.
pub fn guarded<S>(routes: Router<S>, token: &str) -> Result<Router<S>, AdminError>
where
    S: Clone + Send + Sync + 'static,
{
    Ok(routes.route_layer(from_fn_with_state(checked(token)?, with_token)))
}

async fn with_token(State(token): State<Arc<str>>, request: Request, next: Next) -> Response {
    // The time that a comparison takes depends on the length only.
    let is_token = move |text: &str| bool::from(token.as_bytes().ct_eq(text.as_bytes()));
    let is_admin = key::bearer(move |text| is_token(text).then(|| Key::from("admin")));
    let (parts, body) = request.into_parts();
    if is_admin.extract(&parts).is_ok() {
        return next.run(Request::from_parts(parts, body)).await;
    }
    REFUSED.log(|times| tracing::warn!(times, "audit: refused a request without the token"));
    let title = "The request does not carry the token";
    let problem = Problem::new(StatusCode::UNAUTHORIZED, "no-token", title)
        .detail("Send `Authorization: Bearer TOKEN`, with the token the server was started with.");
    ([(WWW_AUTHENTICATE, "Bearer")], problem).into_response()
}

/// Checks a token: 16 to 256 characters of those that a bearer token may have. 16 random ones can't be
/// guessed.
pub fn checked(token: &str) -> Result<Arc<str>, AdminError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    let fits = (16..=256).contains(&token.len()) && token.bytes().all(allowed);
    if fits { Ok(token.into()) } else { Err(AdminError::Token) }
}

/// Why there is no admin listener, and what to do about it. No message shows a token.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum AdminError {
    #[error(
        "the token is missing, or not 16 to 256 characters of A-Z a-z 0-9 - . _ ~ + / =\n\
         hint: set the variable that --help shows for it, or for --admin-token, to what `openssl rand -hex 32` prints"
    )]
    Token,
    #[error(transparent)]
    Server(#[from] ServerError),
    #[cfg(feature = "metrics")]
    #[error(transparent)]
    Metrics(#[from] metrics_exporter_prometheus::BuildError),
}

/// Installs the recorder of this process, and returns the route of its metrics.
#[cfg(feature = "metrics")]
fn metrics() -> Result<Router, metrics_exporter_prometheus::BuildError> {
    use axum::http::header::CONTENT_TYPE;
    use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};

    // From a call to a Redis nearby to the longest wait.
    const SECONDS: &[f64] = &[
        0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
        30.0,
    ];
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), SECONDS)?
        .install_recorder()?;
    let upkeep = handle.clone();
    // What was measured is put into its buckets now and then, also if no one reads it.
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(std::time::Duration::from_secs(5)).await;
            upkeep.run_upkeep();
        }
    });
    let text = "text/plain; version=0.0.4; charset=utf-8";
    let metrics = async move || ([(CONTENT_TYPE, text)], handle.render());
    Ok(Router::new().route("/metrics", axum::routing::get(metrics)))
}

/// The query `?cursor=...&limit=...` of a list.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PageQuery {
    cursor: u64,
    limit: usize,
}

impl Default for PageQuery {
    fn default() -> Self {
        Self { cursor: 0, limit: 100 }
    }
}

impl PageQuery {
    /// Returns where the page begins, and about how many rows it is to have: up to a thousand, and a
    /// hundred unless the query says it. Or a 400 if it names no page.
    pub fn read(query: Result<Query<Self>, QueryRejection>) -> Result<(u64, usize), Problem> {
        if let Ok(Query(Self { cursor, limit: limit @ 1..=1000 })) = query {
            return Ok((cursor, limit));
        }
        let title = "The query names no page of the list";
        Err(Problem::new(StatusCode::BAD_REQUEST, "bad-page", title).detail(
            "It may be `limit`, from 1 to 1000, and `cursor`, the `next` of the page before.",
        ))
    }
}

/// Returns a page of the list `name`, with the cursor of the next page if there is one.
pub fn page(name: &str, rows: Vec<Value>, next: Option<u64>) -> Json<Value> {
    Json(json!({ name: rows, "next": next.map(|cursor| cursor.to_string()) }))
}
