//! Requests, an inner service and its answers, for the tests of the HTTP side.

use std::convert::Infallible;
use std::fmt::Debug;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use tower::{Service, ServiceExt};
use tower_sliding_window::store::Store;
use tower_sliding_window::{PolicyHandle, SlidingWindowLayer, key};

#[derive(Debug)]
pub struct HttpResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: String,
}

impl HttpResponse {
    pub async fn read<B>(response: Response<B>) -> Self
    where
        B: Body<Error: Debug>,
    {
        let (head, body) = response.into_parts();
        let body = body.collect().await.expect("a whole body").to_bytes();
        let body = String::from_utf8(body.to_vec()).expect("a body in UTF-8");
        Self { status: head.status, headers: head.headers, body }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("a header in ASCII"))
    }

    /// Reads the seconds of `Retry-After`, which are at least one.
    pub fn retry_after(&self) -> Option<u64> {
        let seconds = self.header("retry-after").map(|it| it.parse().expect("whole seconds"));
        assert_ne!(seconds, Some(0), "{self:?}");
        seconds
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Reads the problem document, which has the status of the response.
    pub fn document(&self) -> Value {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let document = self.json();
        assert_eq!(document["status"], self.status.as_u16(), "{document}");
        assert!(!document["title"].as_str().unwrap().is_empty(), "{document}");
        document
    }

    /// Checks that this is a problem document of that status, and returns its type.
    pub fn problem(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{self:?}");
        self.document()["type"].as_str().unwrap().to_owned()
    }
}

pub async fn ok(_: Request<String>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new("ok".into()))
}

pub fn request(headers: &[(&str, &str)]) -> Request<String> {
    let with = |request: http::request::Builder, (name, value): &(&str, &str)| {
        request.header(*name, *value)
    };
    let request = headers.iter().fold(Request::builder(), with);
    request.body(String::new()).expect("a request")
}

/// A request of the user that `key::header("x-user-id")` sees.
pub fn from_user(user: &str) -> Request<String> {
    request(&[("x-user-id", user)])
}

/// A layer whose key is the user of [`from_user`].
pub fn by_user(policy: impl Into<PolicyHandle>, store: impl Store) -> SlidingWindowLayer {
    SlidingWindowLayer::new(policy, key::header("x-user-id"), store)
}

/// Sends a request to a clone of the service, as a server does for each connection.
pub async fn send<S, ReqBody, ResBody>(service: &S, request: Request<ReqBody>) -> HttpResponse
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>, Error: Debug> + Clone,
    ResBody: Body<Error: Debug>,
{
    HttpResponse::read(service.clone().oneshot(request).await.expect("no error")).await
}

pub async fn status<S, ResBody>(service: &S, user: &str) -> StatusCode
where
    S: Service<Request<String>, Response = Response<ResBody>, Error: Debug> + Clone,
    ResBody: Body<Error: Debug>,
{
    send(service, from_user(user)).await.status
}
