//! Sends requests to an application, so that valgrind can count what each takes. `.ci/instructions` runs this with the name
//! of a path and the URL of an empty Redis.
//!
//! The application limits as the programs in `examples/` do: axum's router, a rule for users and one for addresses,
//! reported to `metrics` and `tracing`.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::http::StatusCode;
use axum::routing::post;
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tower_service::Service;
use tower_sliding_window::store::Store;
use tower_sliding_window::{MemoryStore, Policy, Quota, RedisStore, SlidingWindowLayer, key};
use tracing_subscriber::filter::LevelFilter;

/// How many requests are counted. `.ci/instructions` divides by it.
const TIMES: usize = 990;
const USER_LIMIT: usize = 5;
const ADDRESS_LIMIT: usize = 100;
/// So few that valgrind brings them within the 5 ms in which checks gather for one call. Of 33 it did so only at times, and then
/// there was a call more.
const AT_ONCE: usize = 15;
/// Valgrind slows the client down, and other programs may run at the same time.
const PATIENCE: Duration = Duration::from_secs(30);

/// A path: its name, whether it needs Redis, how many requests are under way at once, and their status.
const PATHS: [(&str, bool, usize, StatusCode); 5] = [
    ("memory-admission", false, 1, StatusCode::OK),
    ("memory-denial", false, 1, StatusCode::TOO_MANY_REQUESTS),
    ("redis-admission", true, 1, StatusCode::OK),
    ("redis-admissions-at-once", true, AT_ONCE, StatusCode::OK),
    // The store remembers that the log is full, and does not ask Redis.
    ("redis-denial", true, 1, StatusCode::TOO_MANY_REQUESTS),
];

fn main() -> ExitCode {
    let Some(name) = std::env::args().nth(1) else {
        PATHS.iter().for_each(|path| println!("{}", path.0));
        return ExitCode::SUCCESS;
    };
    let Some((_, on_redis, at_once, status)) = PATHS.into_iter().find(|path| path.0 == name) else {
        eprintln!("there is no path {name}: without an argument, this program prints the paths");
        return ExitCode::FAILURE;
    };
    // As a server in production, but they write nowhere.
    PrometheusBuilder::new().install_recorder().expect("the only recorder");
    let subscriber = tracing_subscriber::fmt().with_max_level(LevelFilter::INFO);
    subscriber.with_writer(std::io::sink).init();

    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let app = if on_redis {
        let url = std::env::args().nth(2).expect("the URL of a Redis");
        let patient = RedisStore::builder().response_timeout(PATIENCE);
        let store = patient.deny_cache_max_age(PATIENCE).connect(url.as_str());
        limited(runtime.block_on(store).expect("a connection"))
    } else {
        limited(MemoryStore::new())
    };
    let is_denied = status == StatusCode::TOO_MANY_REQUESTS;
    // The first denial may differ from the others.
    let before = if is_denied { USER_LIMIT + 1 } else { 0 };
    send(&runtime, &app, (0..before).map(|_| request(0)).collect(), 1);
    let requests = (0..TIMES).map(|number| request(if is_denied { 0 } else { number })).collect();
    let statuses = counted(&runtime, &app, requests, at_once);
    assert_eq!(statuses, [status; TIMES]);
    ExitCode::SUCCESS
}

fn limited(store: impl Store) -> Router {
    let user = Policy::new("user").quota(Quota::per_minute(5));
    let address = Policy::new("ip").quota(Quota::per_minute(100));
    let limit = SlidingWindowLayer::new(user, key::header("x-user-id"), store);
    let limit = limit.rule(address, key::peer_ip());
    Router::new().route("/orders", post(async || "ordered")).layer(limit)
}

/// Returns a request. Each user and each address makes as many as its rule admits.
fn request(number: usize) -> Request {
    let address = u8::try_from(number / ADDRESS_LIMIT).expect("few addresses");
    let address: SocketAddr = (Ipv4Addr::new(203, 0, 113, address), 51_000).into();
    let user = format!("user-{:07}", number / USER_LIMIT);
    let request = Request::post("/orders").header("x-user-id", user);
    request.extension(ConnectInfo(address)).body(Body::empty()).expect("valid")
}

/// What happens in here is counted.
#[inline(never)]
fn counted(
    runtime: &Runtime,
    app: &Router,
    requests: Vec<Request>,
    at_once: usize,
) -> Vec<StatusCode> {
    send(runtime, app, requests, at_once)
}

fn send(
    runtime: &Runtime,
    app: &Router,
    requests: Vec<Request>,
    at_once: usize,
) -> Vec<StatusCode> {
    let mut statuses = Vec::with_capacity(requests.len());
    let mut requests = requests.into_iter();
    runtime.block_on(async {
        while requests.len() > 0 {
            let round = requests.by_ref().take(at_once).map(|request| app.clone().call(request));
            let responses = round.collect::<JoinSet<_>>().join_all().await;
            statuses.extend(responses.into_iter().map(|it| it.expect("infallible").status()));
        }
    });
    statuses
}
