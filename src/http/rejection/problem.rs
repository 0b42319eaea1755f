//! The default response: a problem document.

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};

use super::Rejection;
use super::headers::push_name;

pub(super) fn response(rejection: &Rejection) -> Response<String> {
    let status = rejection.status();
    let (kind, title) = kind_and_title(rejection);
    // Neither these texts nor the names of policies have characters that JSON escapes.
    let mut body = String::with_capacity(256);
    let parts = [r#"{"type":""#, kind, r#"","title":""#, title, r#"","status":"#, status.as_str()];
    parts.iter().for_each(|part| body.push_str(part));
    if let Rejection::Denied(_) | Rejection::Banned { .. } = rejection {
        body.push_str(r#","violated-policies":["#);
        for (index, (policy, quota)) in rejection.violated().into_iter().enumerate() {
            body.push_str(if index == 0 { "\"" } else { ",\"" });
            push_name(&mut body, policy, quota);
            body.push('"');
        }
        body.push(']');
    }
    body.push('}');

    let mut response = Response::new(body);
    *response.status_mut() = status;
    let problem = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(CONTENT_TYPE, problem);
    response
}

/// Returns a text for persons.
pub(super) fn title(rejection: &Rejection) -> &'static str {
    kind_and_title(rejection).1
}

fn kind_and_title(rejection: &Rejection) -> (&'static str, &'static str) {
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
