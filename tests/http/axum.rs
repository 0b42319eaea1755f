//! The layer in axum: where it can stand, and the keys that only a router or a server knows.

use std::net::{IpAddr, SocketAddr};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::get;
use http::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};
use tower_layer::Layer;
use tower_sliding_window::{KeyExtractor, MemoryStore, Quota, SlidingWindowLayer, key};

use test_support::requests::send;

use crate::{OK, TOO_MANY};

const NO_KEY: StatusCode = StatusCode::UNAUTHORIZED;
const NOT_PROVIDED: StatusCode = StatusCode::INTERNAL_SERVER_ERROR;
const NOT_FOUND: StatusCode = StatusCode::NOT_FOUND;

/// Lets each key pass once.
fn once(key: impl KeyExtractor) -> SlidingWindowLayer {
    SlidingWindowLayer::new(Quota::per_minute(1), key, MemoryStore::new())
}

fn to(path: &str) -> http::request::Builder {
    Request::builder().uri(path)
}

fn alice(path: &str) -> http::request::Builder {
    to(path).header("x-user-id", "alice")
}

async fn status(app: &Router, request: http::request::Builder) -> StatusCode {
    send(app, request.body(Body::empty()).expect("a request")).await.status
}

async fn hello() -> &'static str {
    "hello"
}

#[tokio::test(start_paused = true)]
async fn router_layer_covers_routes_and_404() {
    let app = Router::new()
        .route("/a", get(hello))
        .route("/b", get(hello))
        .layer(once(key::header("x-user-id")));
    assert_eq!(status(&app, alice("/a")).await, OK);
    assert_eq!(status(&app, alice("/b")).await, TOO_MANY, "one window for all routes");
    assert_eq!(status(&app, alice("/nowhere")).await, TOO_MANY);
    assert_eq!(status(&app, to("/nowhere")).await, NO_KEY);
    assert_eq!(status(&app, to("/nowhere").header("x-user-id", "bob")).await, NOT_FOUND);
    assert_eq!(status(&app, to("/a").header("x-user-id", "bob")).await, TOO_MANY, "404s count");
}

#[tokio::test(start_paused = true)]
async fn nested_path_parameters_are_found() {
    for name in ["tenant", "sku"] {
        let inside = Router::new().nest(
            "/{tenant}",
            Router::new().route("/{sku}", get(hello)).layer(once(key::path_param(name))),
        );
        let outside = Router::new()
            .nest("/{tenant}", Router::new().route("/{sku}", get(hello)))
            .layer(once(key::path_param(name)));
        for app in [inside, outside] {
            let other = if name == "sku" { "/b/1" } else { "/a/2" };
            assert_eq!(status(&app, to("/a/1")).await, OK, "{name}");
            assert_eq!(status(&app, to(other)).await, TOO_MANY, "{name}");
            assert_eq!(status(&app, to("/b/2")).await, OK, "{name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn route_without_the_parameter_is_500() {
    let app = Router::new()
        .route("/{sku}", get(hello))
        .route("/a/plain", get(hello))
        .layer(once(key::path_param("user")));
    assert_eq!(status(&app, to("/shoe")).await, NOT_PROVIDED);
    assert_eq!(status(&app, to("/a/plain")).await, NOT_PROVIDED);
    let outside = once(key::path_param("sku")).layer(Router::new().route("/{sku}", get(hello)));
    let request = to("/shoe").body(Body::empty()).unwrap();
    assert_eq!(send(&outside, request).await.status, NOT_PROVIDED, "not routed yet");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_path_is_the_clients_choice() {
    let routes = || Router::new().route("/{sku}", get(hello));
    let with_layer = routes().layer(once(key::path_param("sku")));
    let optional = routes().layer(once(key::optional(key::path_param("sku"))));
    let nested = Router::new().nest("/api", routes()).layer(once(key::path_param("sku")));
    let with_route_layer = routes().route_layer(once(key::path_param("sku")));
    assert_eq!(status(&with_layer, to("/no/where")).await, NO_KEY);
    assert_eq!(status(&nested, to("/no/where")).await, NO_KEY);
    assert_eq!(status(&nested, to("/api/no/where")).await, NO_KEY);
    assert_eq!(status(&optional, to("/no/where")).await, NOT_FOUND);
    assert_eq!(status(&with_route_layer, to("/no/where")).await, NOT_FOUND);
}

#[tokio::test(start_paused = true)]
async fn extension_of_an_earlier_layer_is_the_key() {
    async fn authenticate(mut request: Request, next: Next) -> Response {
        let token = request.headers().get("x-token").and_then(|it| it.to_str().ok());
        if let Some(user) = token.and_then(|it| it.parse::<u64>().ok()) {
            request.extensions_mut().insert(user);
        }
        next.run(request).await
    }
    let app = Router::new()
        .route("/", get(hello))
        .layer(once(key::extension::<u64>()))
        .layer(middleware::from_fn(authenticate));
    assert_eq!(status(&app, to("/").header("x-token", "7")).await, OK);
    assert_eq!(status(&app, to("/").header("x-token", "007")).await, TOO_MANY, "the same user");
    assert_eq!(status(&app, to("/").header("x-token", "8")).await, OK);
    assert_eq!(status(&app, to("/").header("x-token", "forged")).await, NO_KEY);
}

/// Sends a request over a connection of its own and returns the response's status line.
async fn status_line(server: SocketAddr, from: &str) -> std::io::Result<String> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from.parse::<IpAddr>().expect("an address"), 0).into())?;
    let mut connection = socket.connect(server).await?;
    connection.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await?;
    let mut response = String::new();
    connection.read_to_string(&mut response).await?;
    Ok(response.lines().next().unwrap_or_default().to_owned())
}

#[tokio::test]
#[cfg_attr(not(target_os = "linux"), ignore = "only Linux answers on all of 127.0.0.0/8")]
async fn peer_address_of_a_real_server() -> std::io::Result<()> {
    let app = Router::new().route("/", get(hello)).layer(once(key::peer_ip()));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let server = listener.local_addr()?;
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });

    assert_eq!(status_line(server, "127.0.0.1").await?, "HTTP/1.1 200 OK");
    assert_eq!(status_line(server, "127.0.0.1").await?, "HTTP/1.1 429 Too Many Requests");
    assert_eq!(status_line(server, "127.0.0.2").await?, "HTTP/1.1 200 OK");
    assert_eq!(status_line(server, "127.0.0.2").await?, "HTTP/1.1 429 Too Many Requests");
    Ok(())
}
