//! [`WholeBody`]: the body of a request, read to its end.

mod gathered;

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use tokio::time::timeout;

use self::gathered::Gathered;

use crate::problem::Problem;

/// How long a client may take over a body if the server says nothing else.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a client may take over the body of a request. [`Server`](crate::server::Server) puts it
/// into the extensions of each request.
#[derive(Clone, Copy)]
pub(crate) struct BodyTimeout(pub(crate) Duration);

/// The body of a request, read whole in no longer than `--io-timeout`.
///
/// The length is bounded by axum's `DefaultBodyLimit`. A body that takes too long is a 408, one that
/// is too long a 413, and one that can't be read a 400.
pub struct WholeBody(pub Bytes);

impl<S: Send + Sync> FromRequest<S> for WholeBody {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let allowed = request.extensions().get().map_or(DEFAULT_TIMEOUT, |BodyTimeout(it)| *it);
        let request = request.map(|body| Body::new(Gathered::new(body)));
        let body = timeout(allowed, Bytes::from_request(request, state)).await;
        let body = body.map_err(|_| {
            Problem::plain(StatusCode::REQUEST_TIMEOUT)
                .detail("The body did not come in time. Send it faster.")
        })?;
        body.map(Self).map_err(|rejection| {
            Problem::plain(rejection.status()).detail(match rejection.status() {
                StatusCode::PAYLOAD_TOO_LARGE => "The body is longer than this route takes.",
                _ => "The body can't be read.",
            })
        })
    }
}
