//! Requests, an inner service and its answers, for the tests of the HTTP side.

use std::convert::Infallible;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tower::{Service, ServiceExt};

/// A response, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

#[allow(dead_code, reason = "each test file uses a part")]
impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("a header in ASCII"))
    }

    pub(crate) fn retry_after(&self) -> Option<u64> {
        self.header("retry-after").map(|value| value.parse().expect("whole seconds"))
    }

    pub(crate) fn problem(&self) -> serde_json::Value {
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        serde_json::from_str(&self.body).expect("a problem document")
    }
}

/// Answers every request with `ok`.
#[allow(dead_code, reason = "each test file uses a part")]
pub(crate) async fn ok(_: Request<String>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new("ok".into()))
}

/// A request that carries these headers.
#[allow(dead_code, reason = "each test file uses a part")]
pub(crate) fn request(headers: &[(&str, &str)]) -> Request<String> {
    let with = |request: http::request::Builder, (name, value): &(&str, &str)| {
        request.header(*name, *value)
    };
    let request = headers.iter().fold(Request::builder(), with);
    request.body(String::new()).expect("a request")
}

/// A request of the user that `key::header("x-user-id")` sees.
#[allow(dead_code, reason = "each test file uses a part")]
pub(crate) fn from_user(user: &str) -> Request<String> {
    request(&[("x-user-id", user)])
}

/// Sends a request to a clone of the service, as a server does for each connection.
pub(crate) async fn send<S, ReqBody, ResBody>(service: &S, request: Request<ReqBody>) -> Answer
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
    S::Error: std::fmt::Debug,
    ResBody: http_body::Body,
    ResBody::Error: std::fmt::Debug,
{
    let response = service.clone().oneshot(request).await.expect("no error");
    let (head, body) = response.into_parts();
    let body = body.collect().await.expect("a whole body").to_bytes();
    let body = String::from_utf8(body.to_vec()).expect("a body in UTF-8");
    Answer { status: head.status, headers: head.headers, body }
}

/// Sends a request of `user` and returns the status of the answer.
#[allow(dead_code, reason = "each test file uses a part")]
pub(crate) async fn status<S, ResBody>(service: &S, user: &str) -> StatusCode
where
    S: Service<Request<String>, Response = Response<ResBody>> + Clone,
    S::Error: std::fmt::Debug,
    ResBody: http_body::Body,
    ResBody::Error: std::fmt::Debug,
{
    send(service, from_user(user)).await.status
}
