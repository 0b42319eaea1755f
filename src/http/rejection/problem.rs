//! The default response: a problem document.

use std::borrow::Cow;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};

use super::Rejection;
use super::headers::push_name;

pub(super) fn response(rejection: &Rejection) -> Response<String> {
    let mut response = Response::new(document(rejection));
    *response.status_mut() = rejection.status();
    let problem = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(CONTENT_TYPE, problem);
    response
}

fn document(rejection: &Rejection) -> String {
    let (kind, title) = kind_and_title(rejection);
    let status = rejection.status();
    // Neither these texts nor the names of policies have characters that JSON escapes.
    let mut document = String::with_capacity(256);
    let parts = [r#"{"type":""#, kind, r#"","title":""#, title, r#"","status":"#, status.as_str()];
    parts.iter().for_each(|part| document.push_str(part));
    if let Rejection::Denied(_) | Rejection::Banned { .. } = rejection {
        document.push_str(r#","violated-policies":["#);
        for (index, (policy, quota)) in rejection.violated().into_iter().enumerate() {
            document.push_str(if index == 0 { "\"" } else { ",\"" });
            push_name(policy, quota, |part| document.push_str(part));
            document.push('"');
        }
        document.push(']');
    }
    if let Some(detail) = detail(rejection) {
        document.push_str(r#","detail":""#);
        for char in detail.chars().filter(|char| !char.is_control()) {
            if matches!(char, '"' | '\\') {
                document.push('\\');
            }
            document.push(char);
        }
        document.push('"');
    }
    document.push('}');
    document
}

/// Returns what a client or its developer can't see from the status, if there is something.
pub(super) fn detail(rejection: &Rejection) -> Option<Cow<'static, str>> {
    match rejection {
        Rejection::MissingKey { .. } => Some("The request has no key for a rate limit".into()),
        Rejection::InvalidKey => {
            Some("The request's key for a rate limit is ambiguous or malformed".into())
        }
        Rejection::KeyNotProvided { fix } => Some(Cow::Borrowed(fix)),
        // No such request ever passes.
        Rejection::StoreFailed(error) if error.retry_after().is_none() => {
            Some(error.to_string().into())
        }
        _ => None,
    }
}

/// Returns the type of the problem, and a text for persons.
pub(super) fn kind_and_title(rejection: &Rejection) -> (&'static str, &'static str) {
    match rejection.status() {
        _ if matches!(rejection, Rejection::Banned { .. }) => (
            "https://iana.org/assignments/http-problem-types#abnormal-usage-detected",
            "Request not satisfied due to detection of abnormal request pattern",
        ),
        StatusCode::TOO_MANY_REQUESTS => (
            "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "Request cannot be satisfied as assigned quota has been exceeded",
        ),
        StatusCode::SERVICE_UNAVAILABLE => (
            "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
            "Request cannot be satisfied due to temporary server capacity constraints",
        ),
        // RFC 9457, section 4.2.1: `about:blank` has the phrase of the status as its title.
        status => ("about:blank", status.canonical_reason().unwrap_or("Rejected")),
    }
}
