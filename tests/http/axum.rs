//! The layer in axum: where it can stand, and the keys that only a router knows.

use ::axum::Router;
use ::axum::body::Body;
use ::axum::routing::get;

use crate::*;

const NO_KEY: StatusCode = StatusCode::UNAUTHORIZED;
const NOT_PROVIDED: StatusCode = StatusCode::INTERNAL_SERVER_ERROR;
const NOT_FOUND: StatusCode = StatusCode::NOT_FOUND;

/// Lets each key pass once.
fn once(key: impl KeyExtractor) -> SlidingWindowLayer {
    SlidingWindowLayer::new(Quota::per_minute(1), key, MemoryStore::new())
}

fn by(parameter: &'static str) -> SlidingWindowLayer {
    once(key::path_param(parameter))
}

async fn hello() -> &'static str {
    "hello"
}

fn of(path: &str) -> Router {
    Router::new().route(path, get(hello))
}

/// Sends a request to each path in turn, and checks the statuses.
async fn responds<S, B>(app: S, expected: &[(&str, StatusCode)])
where
    S: Service<Request<Body>, Response = Response<B>, Error: Debug> + Clone,
    B: http_body::Body<Error: Debug>,
{
    for (path, status) in expected {
        let request = Request::builder().uri(*path).body(Body::empty()).unwrap();
        assert_eq!(send(&app, request).await.status, *status, "{path} of {expected:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn nested_path_parameters_are_found() {
    for (name, same) in [("tenant", "/a/2"), ("sku", "/b/1")] {
        let expected = [("/a/1", OK), (same, TOO_MANY), ("/b/2", OK)];
        let nest = |routes| Router::new().nest("/{tenant}", routes);
        responds(nest(of("/{sku}").layer(by(name))), &expected).await;
        responds(nest(of("/{sku}")).layer(by(name)), &expected).await;
    }
}

#[tokio::test(start_paused = true)]
async fn path_parameter_is_decoded_once() {
    let [same, other, malformed] = ["/shoe", "/sh%256Fe", "/sh%FFe"];
    let malformed = (malformed, StatusCode::BAD_REQUEST);
    let expected = [("/sh%6Fe", OK), (same, TOO_MANY), (other, OK), malformed];
    responds(of("/{sku}").layer(by("sku")), &expected).await;
}

#[tokio::test(start_paused = true)]
async fn route_without_the_parameter_is_500() {
    let without = of("/{sku}").route("/a/plain", get(hello)).layer(by("user"));
    responds(without, &[("/shoe", NOT_PROVIDED), ("/a/plain", NOT_PROVIDED)]).await;
    // The handler sees either of them.
    let twice = Router::new().nest("/{user}", of("/{user}")).layer(by("user"));
    responds(twice, &[("/tenant/alice", NOT_PROVIDED)]).await;
    let not_routed_yet = by("sku").layer(of("/{sku}"));
    responds(not_routed_yet, &[("/shoe", NOT_PROVIDED)]).await;
}

#[tokio::test(start_paused = true)]
async fn fallback_with_the_layer_is_lost_by_nest_and_spread_by_merge() {
    let (plain, limited) = (of("/plain"), || of("/limited").layer(once(key::constant("all"))));
    let lost = [("/no/where", NOT_FOUND), ("/no/where", NOT_FOUND), ("/plain", OK)];
    let nested = plain.clone().nest("/api", limited());
    responds(nested.clone(), &[("/api/no/where", NOT_FOUND), ("/api/no/where", NOT_FOUND)]).await;
    responds(nested, &lost).await;
    let spread = [("/no/where", NOT_FOUND), ("/no/where", TOO_MANY), ("/plain", OK)];
    responds(plain.clone().merge(limited()), &spread).await;
    responds(limited().merge(plain), &lost).await;
}

#[tokio::test(start_paused = true)]
async fn an_unknown_path_is_the_clients_choice() {
    let with_layer = of("/{sku}").layer(by("sku"));
    for (method, uri) in [(Method::CONNECT, "example.com:443"), (Method::OPTIONS, "*")] {
        let request = Request::builder().method(method).uri(uri).body(Body::empty()).unwrap();
        assert_eq!(send(&with_layer, request).await.status, NO_KEY);
    }
    responds(with_layer, &[("/no/where", NO_KEY)]).await;
    let nested = Router::new().nest("/api", of("/{sku}")).layer(by("sku"));
    responds(nested, &[("/no/where", NO_KEY), ("/api/no/where", NO_KEY)]).await;
    let optional = of("/{sku}").layer(once(key::optional(key::path_param("sku"))));
    responds(optional, &[("/no/where", NOT_FOUND)]).await;
    responds(of("/{sku}").route_layer(by("sku")), &[("/no/where", NOT_FOUND)]).await;
}
