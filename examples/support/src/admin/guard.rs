//! [`guarded`]: what a request must be to reach the routes of an operator.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::header::{FORWARDED, HOST, VIA, WWW_AUTHENTICATE};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use tower_http::csrf::{CsrfLayer, ProtectionError};
use tower_sliding_window::{Key, KeyExtractor, key};

use super::token::Token;
use crate::logs::Throttle;
use crate::problem::{Problem, with_fallbacks};

/// The longest body, in bytes.
const LONGEST_BODY: usize = 4096;

static REFUSED: Throttle = Throttle::new();

/// Guards routes, and the paths that they do not have. A route may have a body of 4 KiB. Requests for
/// pages need no token.
pub(super) fn guarded(routes: Router, pages: Router, token: Token) -> Router {
    with_one_of(with_fallbacks(routes).layer(DefaultBodyLimit::max(LONGEST_BODY)), [token])
        .merge(pages.method_not_allowed_fallback(|| async {
            Problem::plain(StatusCode::METHOD_NOT_ALLOWED)
        }))
        // By `Origin` and `Sec-Fetch-Site`.
        .layer(CsrfLayer::new().with_rejection_response(|_: ProtectionError| {
            refused("a page of another site has sent it")
        }))
        .layer(from_fn(direct))
}

/// Guards routes, and the paths that they do not have, with tokens. A request must carry one of them.
pub(super) fn with_one_of(routes: Router, tokens: impl IntoIterator<Item = Token>) -> Router {
    let tokens: Arc<[Token]> = tokens.into_iter().collect();
    routes.layer(from_fn_with_state(tokens, with_token))
}

/// Admits requests that were sent to this machine by one of its own programs.
async fn direct(request: Request, next: Next) -> Response {
    let headers = request.headers();
    if is_forwarded(headers) {
        return refused("a proxy has forwarded it");
    }
    if !names_this_machine(headers) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn only_loopback_hosts_are_this_machine() {
        for host in ["localhost", "LOCALHOST:3001", "127.0.0.1:3001", "127.9.9.9", "[::1]:3001"] {
            assert!(names_this_machine(&headers(&[("host", host)])), "{host}");
        }
        let others =
            ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1"];
        for host in
            others.into_iter().chain(["", "0.0.0.0", "[::]", "[::ffff:10.0.0.1]:80", "x@y z"])
        {
            assert!(!names_this_machine(&headers(&[("host", host)])), "{host}");
        }
        assert!(!names_this_machine(&HeaderMap::new()));
        let two = [("host", "localhost"), ("host", "evil.example")];
        assert!(!names_this_machine(&headers(&two)), "two hosts");
    }

    #[test]
    fn marks_of_a_proxy_are_seen() {
        for mark in ["forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip"] {
            assert!(is_forwarded(&headers(&[(mark, "")])), "{mark}");
        }
        assert!(!is_forwarded(&headers(&[("user-agent", "curl"), ("x-forward", "")])));
    }
}
