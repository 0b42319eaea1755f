//! The response that our layer sends to a denied request, for routes and layers that always send it.

use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use axum::response::Response;

/// The body of the layer's response to a denied request.
const PROBLEM: &str = r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"violated-policies":["default"]}"#;

/// Returns the layer's response, made of constants and of the two fields that change.
pub(crate) fn problem(retry_after: HeaderValue, rate_limit: HeaderValue) -> Response {
    const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
    const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
    let mut response = Response::new(Body::from(PROBLEM));
    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(RETRY_AFTER, retry_after);
    headers.insert(RATE_LIMIT_POLICY, HeaderValue::from_static(r#""default";q=5;w=60"#));
    headers.insert(RATE_LIMIT, rate_limit);
    response
}
