//! The layer in axum: where it can stand, and the keys that only a router knows.

use ::axum::Router;
use ::axum::body::Body;
use ::axum::extract::Request;
use ::axum::routing::get;

use crate::*;

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

async fn status(app: &Router, request: http::request::Builder) -> StatusCode {
    send(app, request.body(Body::empty()).expect("a request")).await.status
}

async fn hello() -> &'static str {
    "hello"
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
async fn path_parameter_is_decoded_once() {
    let app = Router::new().route("/{sku}", get(hello)).layer(once(key::path_param("sku")));
    assert_eq!(status(&app, to("/sh%6Fe")).await, OK);
    assert_eq!(status(&app, to("/shoe")).await, TOO_MANY, "the same");
    assert_eq!(status(&app, to("/sh%256Fe")).await, OK, "another one");
    assert_eq!(status(&app, to("/sh%FFe")).await, StatusCode::BAD_REQUEST);
}

#[tokio::test(start_paused = true)]
async fn route_without_the_parameter_is_500() {
    let app = Router::new()
        .route("/{sku}", get(hello))
        .route("/a/plain", get(hello))
        .layer(once(key::path_param("user")));
    assert_eq!(status(&app, to("/shoe")).await, NOT_PROVIDED);
    assert_eq!(status(&app, to("/a/plain")).await, NOT_PROVIDED);
    // The handler sees either of them.
    let nested = Router::new().nest("/{user}", Router::new().route("/{user}", get(hello)));
    let twice = nested.layer(once(key::path_param("user")));
    assert_eq!(status(&twice, to("/tenant/alice")).await, NOT_PROVIDED);
    let outside = once(key::path_param("sku")).layer(Router::new().route("/{sku}", get(hello)));
    let request = to("/shoe").body(Body::empty()).unwrap();
    assert_eq!(send(&outside, request).await.status, NOT_PROVIDED, "not routed yet");
}

#[tokio::test(start_paused = true)]
async fn fallback_with_the_layer_is_lost_by_nest_and_spread_by_merge() {
    let limited = || Router::new().route("/limited", get(hello)).layer(once(key::constant("all")));
    let plain = || Router::new().route("/plain", get(hello));
    let nested = plain().nest("/api", limited());
    for path in ["/no/where", "/api/no/where", "/api/no/where"] {
        assert_eq!(status(&nested, to(path)).await, NOT_FOUND);
    }
    let merged = plain().merge(limited());
    assert_eq!(status(&merged, to("/no/where")).await, NOT_FOUND);
    assert_eq!(status(&merged, to("/no/where")).await, TOO_MANY);
    let other_way = limited().merge(plain());
    for _ in 0..2 {
        assert_eq!(status(&other_way, to("/no/where")).await, NOT_FOUND);
    }
    for app in [nested, merged, other_way] {
        assert_eq!(status(&app, to("/plain")).await, OK);
    }
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
    for (method, uri) in [(Method::CONNECT, "example.com:443"), (Method::OPTIONS, "*")] {
        assert_eq!(status(&with_layer, to(uri).method(method)).await, NO_KEY);
    }
}
