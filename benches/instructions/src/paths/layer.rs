//! Requests through the layer: the bare service call, and a connection of a whole axum server.

use std::convert::Infallible;
use std::future::{Ready, pending, ready};
use std::io;
use std::task::{Context, Poll};

use axum::Router;
use axum::response::IntoResponse;
use axum::routing::post;
use axum::serve::Listener;
use http::{Request, Response, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tower_layer::Layer;
use tower_service::Service;
use tower_sliding_window::{MemoryStore, SlidingWindowLayer, TopOffenders, key};

use super::{LIMIT, five_a_minute, keys, now};

const REQUEST: &[u8] = b"POST /orders HTTP/1.1\r\nhost: localhost\r\nx-user-id: mallory\r\n\r\n";
/// The most bytes of a response. All responses are shorter.
const RESPONSE: usize = 4096;

fn layer() -> SlidingWindowLayer {
    SlidingWindowLayer::new(five_a_minute(), key::header("x-user-id"), MemoryStore::new())
}

/// The service behind the layer, which responds at once.
#[derive(Clone)]
struct Order;

impl Service<Request<()>> for Order {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Ready<Result<Response<()>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(())))
    }
}

/// Returns a function that sends a request of a user and returns the status of the response.
fn orders() -> impl FnMut(&str) -> StatusCode {
    let mut service = layer().layer(Order);
    move |user| {
        let request = Request::post("/orders").header("x-user-id", user).body(()).expect("valid");
        now(service.call(request)).expect("a response").status()
    }
}

pub(super) fn admission(times: u32, _: &str) {
    let mut order = orders();
    for user in keys().iter().take(times as usize) {
        assert_eq!(order(user), StatusCode::OK);
    }
}

pub(super) fn denial(times: u32, _: &str) {
    let mut order = orders();
    for _ in 0..LIMIT {
        assert_eq!(order("mallory"), StatusCode::OK);
    }
    for _ in 0..times {
        assert_eq!(order("mallory"), StatusCode::TOO_MANY_REQUESTS);
    }
}

/// Accepts one connection, which is in memory: no system call depends on what else the machine does.
struct OneConnection(Option<DuplexStream>);

impl Listener for OneConnection {
    type Io = DuplexStream;
    type Addr = ();

    async fn accept(&mut self) -> (DuplexStream, ()) {
        match self.0.take() {
            Some(connection) => (connection, ()),
            None => pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends requests to an axum server, and expects each response after the first few to be a 429.
fn flood(app: Router, times: u32) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime").block_on(async {
        let (mut client, connection) = duplex(RESPONSE);
        tokio::spawn(axum::serve(OneConnection(Some(connection)), app).into_future());
        let mut response = [0; RESPONSE];
        for time in 0..LIMIT + times {
            client.write_all(REQUEST).await.expect("sent");
            let length = client.read(&mut response).await.expect("received");
            let is_denial = response[..length].starts_with(b"HTTP/1.1 429 ");
            assert!(is_denial || time < LIMIT, "{}", response[..length].escape_ascii());
        }
    });
}

pub(super) fn axum_denial(times: u32, _: &str) {
    flood(Router::new().route("/orders", post(async || "ordered")).layer(layer()), times);
}

/// A denial that is also counted among the keys denied most.
pub(super) fn axum_denial_offenders(times: u32, _: &str) {
    let layer = layer().top_offenders(&TopOffenders::new(100));
    flood(Router::new().route("/orders", post(async || "ordered")).layer(layer), times);
}

/// The same response as a denial has, made from constants.
pub(super) fn axum_constant(times: u32, _: &str) {
    const BODY: &str = concat!(
        r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
        r#""title":"Request cannot be satisfied as assigned quota has been exceeded","#,
        r#""status":429,"violated-policies":["default"]}"#
    );
    let respond = async || {
        let headers = [
            ("content-type", "application/problem+json"),
            ("retry-after", "60"),
            ("ratelimit-policy", r#""default";q=5;w=60"#),
            ("ratelimit", r#""default";r=0;t=60"#),
        ];
        (StatusCode::TOO_MANY_REQUESTS, headers, BODY).into_response()
    };
    flood(Router::new().route("/orders", post(respond)), times);
}
