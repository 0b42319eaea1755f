//! The response to a gRPC request, see [`Rejection::to_grpc_response`].

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};

use super::headers::push_name;
use super::{Rejection, problem};
use crate::window::Denied;

const GRPC: &str = "application/grpc";
const GRPC_WEB: &str = "application/grpc-web";
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// Returns the content type of a gRPC request, `None` if it is another request.
pub(super) fn content_type(head: &Parts) -> Option<&HeaderValue> {
    // Most of a flood of other requests is recognised by the method.
    let content_type = (head.method == Method::POST).then(|| head.headers.get(CONTENT_TYPE))??;
    begins_with(content_type, GRPC).then_some(content_type)
}

/// Returns whether a gRPC client can read a response.
pub(super) fn is_response<B>(response: &Response<B>) -> bool {
    response.headers().get(CONTENT_TYPE).is_some_and(|it| begins_with(it, GRPC))
}

/// Gives a response the content type that the client expects: that of a gRPC-Web request is its own.
pub(super) fn set_content_type(headers: &mut HeaderMap, of_request: &HeaderValue) {
    if begins_with(of_request, GRPC_WEB) {
        headers.insert(CONTENT_TYPE, of_request.clone());
    }
}

fn begins_with(value: &HeaderValue, start: &str) -> bool {
    let value = value.as_bytes().get(..start.len());
    value.is_some_and(|value| value.eq_ignore_ascii_case(start.as_bytes()))
}

pub(super) fn response(rejection: &Rejection) -> Response<String> {
    let code = code(rejection.status());
    // The phrase of an HTTP status says nothing about a key.
    let title = || problem::kind_and_title(rejection).1.into();
    let mut message = problem::detail(rejection).unwrap_or_else(title).into_owned();
    for (index, (policy, quota)) in rejection.violated().into_iter().enumerate() {
        message.push_str(if index == 0 { ": " } else { ", " });
        push_name(policy, quota, |part| message.push_str(part));
    }

    let mut response = Response::new(String::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(GRPC));
    headers.insert(STATUS, HeaderValue::from(code));
    let wait = rejection.retry_after();
    if let Some(wait) = wait {
        insert(headers, DETAILS, STANDARD_NO_PAD.encode(details(code, &message, wait)));
    }
    insert(headers, MESSAGE, encoded(&message));
    // A signed number of 32 bits: a negative one tells the client not to retry, and none to choose its pauses
    // itself.
    let pushback = wait.and_then(|wait| i32::try_from(wait.as_micros().div_ceil(1000)).ok());
    let denied = match rejection {
        Rejection::Denied(denied) | Rejection::Banned { denied, .. } => Some(denied),
        _ => None,
    };
    if denied.is_none_or(Denied::has_known_wait) {
        headers.insert(PUSHBACK, HeaderValue::from(pushback.unwrap_or(-1)));
    }
    response
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: String) {
    if let Ok(value) = HeaderValue::try_from(value) {
        headers.insert(name, value);
    }
}

/// Returns a message as the protocol encodes it in a header.
fn encoded(message: &str) -> String {
    let encode = |byte: u8| match byte {
        b' '..=b'~' if byte != b'%' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    message.bytes().map(encode).collect()
}

/// Returns the `google.rpc.Code` of an HTTP status, as listed in its comments.
fn code(status: StatusCode) -> u16 {
    match status {
        StatusCode::BAD_REQUEST => 3,
        StatusCode::GATEWAY_TIMEOUT => 4,
        StatusCode::NOT_FOUND => 5,
        StatusCode::FORBIDDEN => 7,
        StatusCode::TOO_MANY_REQUESTS => 8,
        StatusCode::CONFLICT => 10,
        StatusCode::NOT_IMPLEMENTED => 12,
        StatusCode::INTERNAL_SERVER_ERROR => 13,
        StatusCode::SERVICE_UNAVAILABLE => 14,
        StatusCode::UNAUTHORIZED => 16,
        _ => 2,
    }
}

/// Returns a `google.rpc.Status` with a `google.rpc.RetryInfo`, in the encoding of Protocol Buffers.
///
/// The fields and their numbers are those of
/// [`google/rpc/status.proto`](https://github.com/googleapis/googleapis/blob/master/google/rpc/status.proto),
/// `google/rpc/error_details.proto`, and `any.proto` and `duration.proto` of Protocol Buffers.
fn details(code: u16, message: &str, wait: Duration) -> Vec<u8> {
    let mut delay = Vec::new();
    integer(&mut delay, 1, wait.as_secs());
    integer(&mut delay, 2, wait.subsec_nanos().into());
    let mut retry_info = Vec::new();
    bytes(&mut retry_info, 1, &delay);
    let mut any = Vec::new();
    bytes(&mut any, 1, b"type.googleapis.com/google.rpc.RetryInfo");
    bytes(&mut any, 2, &retry_info);
    let mut status = Vec::new();
    integer(&mut status, 1, code.into());
    bytes(&mut status, 2, message.as_bytes());
    bytes(&mut status, 3, &any);
    status
}

/// Appends a field of a number. Zero is the default and left out.
fn integer(message: &mut Vec<u8>, field: u8, value: u64) {
    if value > 0 {
        message.push(field << 3);
        varint(message, value);
    }
}

/// Appends a field of a text or a message.
fn bytes(message: &mut Vec<u8>, field: u8, value: &[u8]) {
    message.push(field << 3 | 2);
    varint(message, value.len() as u64);
    message.extend_from_slice(value);
}

/// Appends a number in groups of seven bits, the lowest first.
fn varint(message: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        message.push(value as u8 & 0x7f | 0x80);
        value >>= 7;
    }
    message.push(value as u8);
}
