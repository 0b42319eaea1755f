use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};

use super::headers;
use crate::error::StoreError;
use crate::window::Denied;

pub(super) type OnRejection = dyn Fn(&Rejection) -> Response<Bytes> + Send + Sync;

/// Why the layer responds to a request itself.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Rejection {
    /// A log has no room: 429.
    Denied(Denied),
    /// The key is banned: 403 by default, see [`on_ban`](super::SlidingWindowLayer::on_ban).
    Banned {
        /// The denial, with the time that the ban still lasts.
        denied: Denied,
        /// The status of the response.
        status: StatusCode,
    },
    /// The request has no key for a rule: 401 by default, see
    /// [`on_missing_key`](super::SlidingWindowLayer::on_missing_key).
    MissingKey {
        /// The status of the response.
        status: StatusCode,
    },
    /// The request's key is ambiguous or malformed: 400.
    InvalidKey,
    /// The server did not provide the source of a rule's key: 500. This is a mistake in the server's
    /// setup, see [`KeyError::NotProvided`](crate::KeyError::NotProvided).
    KeyNotProvided,
    /// The store could not decide: 503. Or no store could ever admit the request: 429.
    StoreFailed(StoreError),
}

impl Rejection {
    /// Returns the status of the response.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Denied(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::StoreFailed(error) if error.is_impossible() => StatusCode::TOO_MANY_REQUESTS,
            Self::MissingKey { status } | Self::Banned { status, .. } => *status,
            Self::InvalidKey => StatusCode::BAD_REQUEST,
            Self::KeyNotProvided => StatusCode::INTERNAL_SERVER_ERROR,
            Self::StoreFailed(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns the default response: a problem document ([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457))
    /// of the types that the draft on the RateLimit fields registers.
    #[must_use]
    pub fn to_response(&self) -> Response<Bytes> {
        let status = self.status();
        let (kind, title) = match status {
            _ if matches!(self, Self::Banned { .. }) => (
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
            _ => ("about:blank", status.canonical_reason().unwrap_or("Rejected")),
        };
        // Neither these texts nor policy names have characters that JSON escapes.
        let mut body = String::with_capacity(256);
        let parts =
            [r#"{"type":""#, kind, r#"","title":""#, title, r#"","status":"#, status.as_str()];
        parts.iter().for_each(|part| body.push_str(part));
        if let Self::Denied(denied) | Self::Banned { denied, .. } = self {
            body.push_str(r#","violated-policies":["#);
            for (index, name) in denied.violated().enumerate() {
                let parts = [if index == 0 { "\"" } else { ",\"" }, name, "\""];
                parts.iter().for_each(|part| body.push_str(part));
            }
            body.push(']');
        }
        body.push('}');

        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = status;
        let problem = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(CONTENT_TYPE, problem);
        response
    }

    /// Makes the response, by `respond` if there is one, and adds `Retry-After` and the RateLimit
    /// fields.
    pub(super) fn respond(&self, respond: Option<&OnRejection>) -> Response<Bytes> {
        let mut response = respond.map_or_else(|| self.to_response(), |respond| respond(self));
        let headers = response.headers_mut();
        match self {
            Self::Denied(denied) => {
                headers::insert_retry_after(headers, denied.retry_after());
                headers::insert_rate_limit(headers, denied.usage());
            }
            // The denial is by the ban, so the state of the quotas would mislead the client.
            Self::Banned { denied, .. } => {
                headers::insert_retry_after(headers, denied.retry_after());
            }
            Self::StoreFailed(error) => {
                if let Some(wait) = error.retry_after() {
                    headers::insert_retry_after(headers, wait);
                }
            }
            Self::MissingKey { .. } | Self::InvalidKey | Self::KeyNotProvided => {}
        }
        response
    }
}
