//! [`Admin`]: a second listener, for the operator of a server.
//!
//! It listens on a loopback address, which is not enough: a page in a browser on this machine can
//! send requests there, under a name that it has pointed at 127.0.0.1 (DNS rebinding), and a proxy on
//! this machine can forward the requests of strangers. So each request must name a loopback host, must
//! not be forwarded, must not come from a page of another site, and must carry a token.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, Query, Request, State};
use axum::http::header::{FORWARDED, HOST, VIA, WWW_AUTHENTICATE};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use clap::Args;
use serde::Deserialize;
use serde_json::{Value, json};
use subtle::ConstantTimeEq;
use tower_http::csrf::{CsrfLayer, ProtectionError};
use tower_sliding_window::{Key, KeyExtractor, StoreError, key};

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
    /// see it in `ps`: better set the variable, or use --admin-token-file.
    // Text here, so that an error of clap, which repeats the value, can't show a token.
    #[arg(long, value_name = "TOKEN", hide_env_values = true, conflicts_with = "admin_token_file")]
    admin_token: Option<String>,

    /// File that holds the token for --admin.
    #[arg(long, value_name = "FILE", requires = "admin")]
    admin_token_file: Option<PathBuf>,

    /// File that holds a token with which Prometheus can read GET /metrics on --admin, and nothing else.
    /// The token of the operator reads it too.
    #[cfg(feature = "metrics")]
    #[arg(long, value_name = "FILE", requires = "admin")]
    scrape_token_file: Option<PathBuf>,
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
    token: Token,
    #[cfg(feature = "metrics")]
    metrics: Router,
}

impl Admin {
    /// Takes the address of `--admin`, if it is there, for a listener that stops together with the
    /// server of the clients.
    ///
    /// # Errors
    ///
    /// [`AdminError`] if there is no token or the address is taken.
    pub async fn bind(flags: &AdminFlags, clients: &Server) -> Result<Option<Self>, AdminError> {
        let Some(listen) = flags.admin else { return Ok(None) };
        let token = match (&flags.admin_token, &flags.admin_token_file) {
            (Some(given), _) => Token::new(given)?,
            (None, Some(file)) => Token::read(file)?,
            (None, None) => return Err(AdminError::NoToken),
        };
        #[cfg(feature = "metrics")]
        let metrics = {
            let scrape = flags.scrape_token_file.as_deref().map(Token::read).transpose()?;
            with_one_of(metrics()?, [token.clone()].into_iter().chain(scrape))
        };
        Ok(Some(Self {
            server: clients.bind_beside(listen, "--admin").await?,
            token,
            #[cfg(feature = "metrics")]
            metrics,
        }))
    }

    /// Prints where it listens.
    ///
    /// # Errors
    ///
    /// [`ServerError`] if stdout is closed.
    pub fn announce(&self) -> Result<(), ServerError> {
        self.server.announce("admin on")
    }

    /// Serves these routes, and only requests with the token, until it is asked to stop. A route may
    /// have a body of 4 KiB.
    ///
    /// With the feature `metrics` it also serves `GET /metrics`, in the text format of Prometheus.
    pub async fn serve(self, routes: Router) {
        self.serve_with_pages(routes, Router::new()).await;
    }

    /// Serves these routes as [`Admin::serve`] does, and `pages` also without the token, which a browser
    /// can't send when it opens a page. The pages hold nothing but what is in the program's source, and
    /// send the token with each request for more.
    pub async fn serve_with_pages(self, routes: Router, pages: Router) {
        #[cfg(feature = "metrics")]
        let pages = pages.merge(self.metrics);
        let routes = with_fallbacks(routes).layer(DefaultBodyLimit::max(LONGEST_BODY));
        let routes = with_one_of(routes, [self.token])
            .merge(pages.method_not_allowed_fallback(|| async {
                Problem::plain(StatusCode::METHOD_NOT_ALLOWED)
            }))
            // By `Origin` and `Sec-Fetch-Site`.
            .layer(CsrfLayer::new().with_rejection_response(|_: ProtectionError| {
                refused("a page of another site has sent it")
            }))
            .layer(from_fn(direct));
        self.server.serve(routes).await;
    }
}

/// Guards routes, and the paths that they do not have. A request must carry one of the tokens.
fn with_one_of(routes: Router, tokens: impl IntoIterator<Item = Token>) -> Router {
    let tokens: Arc<[Token]> = tokens.into_iter().collect();
    routes.layer(from_fn_with_state(tokens, with_token))
}

async fn with_token(State(tokens): State<Arc<[Token]>>, request: Request, next: Next) -> Response {
    let is_one = move |text: &str| tokens.iter().any(|token| token.is(text));
    let is_admin = key::bearer(move |text| is_one(text).then(|| Key::from("admin")));
    let (parts, body) = request.into_parts();
    if is_admin.extract(&parts).is_err() {
        log("it does not carry the admin token");
        let title = "The request does not carry the admin token";
        let problem = Problem::new(StatusCode::UNAUTHORIZED, "no-token", title).detail(
            "Send `Authorization: Bearer TOKEN`, with the token the server was started with.",
        );
        return ([(WWW_AUTHENTICATE, "Bearer")], problem).into_response();
    }
    next.run(Request::from_parts(parts, body)).await
}

/// Admits requests that were sent to this machine by one of its own programs.
async fn direct(request: Request, next: Next) -> Response {
    if is_forwarded(request.headers()) {
        return refused("a proxy has forwarded it");
    }
    if !names_this_machine(request.headers()) {
        return refused("its `Host` is neither `localhost` nor a loopback address");
    }
    next.run(request).await
}

/// Tells whether a proxy has left its mark.
fn is_forwarded(headers: &HeaderMap) -> bool {
    let is_mark = |name: &str| name.starts_with("x-forwarded-") || name == "x-real-ip";
    headers.contains_key(FORWARDED)
        || headers.contains_key(VIA)
        || headers.keys().any(|name| is_mark(name.as_str()))
}

/// Tells whether there is one `Host`, and it is a name that no other site can have.
///
/// RFC 6761 reserves `localhost`.
fn names_this_machine(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    let Ok(authority) = Authority::try_from(host.as_bytes()) else { return false };
    let name = authority.host();
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

fn refused(why: &'static str) -> Response {
    log(why);
    let title = "Only programs on the server's own machine are served here";
    Problem::new(StatusCode::FORBIDDEN, "not-local", title)
        .detail(format!("The request is refused: {why}."))
        .into_response()
}

fn log(why: &'static str) {
    REFUSED.log(move |times| {
        tracing::warn!(why, times, "audit: refused a request to the admin listener");
    });
}

/// A secret: 16 to 256 characters of those that a bearer token may have. 16 random ones can't be guessed.
#[derive(Clone)]
struct Token(String);

impl Token {
    fn new(text: &str) -> Result<Self, AdminError> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
        let fits = (16..=256).contains(&text.len()) && text.bytes().all(allowed);
        if fits { Ok(Self(text.to_owned())) } else { Err(AdminError::Token) }
    }

    fn read(file: &Path) -> Result<Self, AdminError> {
        let text = std::fs::read_to_string(file)
            .map_err(|source| AdminError::TokenFile { path: file.to_owned(), source })?;
        Self::new(text.trim_end())
    }

    /// Returns whether this is the token. The time it takes depends on the length only.
    fn is(&self, text: &str) -> bool {
        self.0.as_bytes().ct_eq(text.as_bytes()).into()
    }
}

/// Why there is no admin listener, and what to do about it. No message shows a token.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum AdminError {
    #[error(
        "--admin needs a token\n\
         hint: set the variable that --help shows for --admin-token, to what `openssl rand -hex 32` \
         prints for instance, or name a file that holds it with --admin-token-file"
    )]
    NoToken,
    #[error(
        "can't read the token in {}: {source}\n\
         hint: let the flag name a file of text that this user may read",
        path.display()
    )]
    TokenFile { path: PathBuf, source: std::io::Error },
    #[error(
        "the token is not 16 to 256 characters of A-Z a-z 0-9 - . _ ~ + / =\n\
         hint: take what `openssl rand -hex 32` prints"
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
    // The requests in a call to Redis. There are at most 32.
    const BATCH: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0];
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), SECONDS)?
        .set_buckets_for_metric(Matcher::Suffix("_batch_size".to_owned()), BATCH)?
        .install_recorder()?;
    let upkeep = handle.clone();
    // What was measured is put into its buckets now and then, also if no one reads it.
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(std::time::Duration::from_secs(5));
        loop {
            ticks.tick().await;
            upkeep.run_upkeep();
        }
    });
    let text = "text/plain; version=0.0.4; charset=utf-8";
    let metrics = async move || ([(CONTENT_TYPE, text)], handle.render());
    Ok(Router::new().route("/metrics", axum::routing::get(metrics)))
}

/// The query `?cursor=...&limit=...` of a list.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageQuery {
    cursor: Option<String>,
    limit: Option<usize>,
}

impl PageQuery {
    /// Returns where the page begins, and about how many rows it is to have: up to `most`, and a tenth
    /// of that unless the query says it.
    ///
    /// # Errors
    ///
    /// A [`Problem`] of status 400 if the query names no page.
    pub fn read<C>(
        query: Result<Query<Self>, QueryRejection>,
        most: usize,
    ) -> Result<(C, usize), Problem>
    where
        C: FromStr<Err: Display> + Default,
    {
        let malformed = |why: &dyn Display| {
            let title = "The query names no page of the list";
            Problem::new(StatusCode::BAD_REQUEST, "bad-page", title).detail(format!(
                "It may be `limit`, from 1 to {most}, and `cursor`, the `next` of the page before: \
                 {why}."
            ))
        };
        let Query(Self { cursor, limit }) = query.map_err(|why| malformed(&why.body_text()))?;
        let limit = limit.unwrap_or(most / 10);
        if !(1..=most).contains(&limit) {
            return Err(malformed(&"the limit is out of range"));
        }
        let cursor = cursor.map_or(Ok(C::default()), |cursor| cursor.parse());
        Ok((cursor.map_err(|why| malformed(&why))?, limit))
    }
}

/// Returns a page of the list `name`, with the cursor of the next page if there is one.
pub fn page(name: &str, rows: Vec<Value>, next: Option<impl Display>) -> Json<Value> {
    let mut page = json!({ name: rows });
    if let Some(next) = next {
        page["next"] = next.to_string().into();
    }
    Json(page)
}

/// Says that this store has no list, if that is the error. `instead` is the route for one user.
pub fn no_page(error: StoreError, instead: &str) -> Problem {
    if !matches!(error, StoreError::Unsupported { .. }) {
        return error.into();
    }
    let title = "A Redis Cluster has no list of all users";
    Problem::new(StatusCode::NOT_IMPLEMENTED, "no-list", title)
        .detail(format!("Ask for one user: GET {instead}."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_loopback_host_is_this_machine() {
        let is_this = |hosts: &[&str]| {
            let hosts = hosts.iter().map(|host| (HOST, host.parse().unwrap()));
            names_this_machine(&hosts.collect())
        };
        for host in ["localhost", "LOCALHOST:3001", "127.0.0.1:3001", "127.9.9.9", "[::1]:3001"] {
            assert!(is_this(&[host]), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1"]
        {
            assert!(!is_this(&[host]), "{host}");
        }
        for host in ["", "0.0.0.0", "[::]", "[::ffff:10.0.0.1]:80", "x@y z"] {
            assert!(!is_this(&[host]), "{host}");
        }
        assert!(!is_this(&[]) && !is_this(&["localhost", "evil.example"]));
    }
}
