//! [`WholeBody`]: the body of a request, read to its end.

use std::error::Error;
use std::iter::successors;
use std::time::Duration;

use axum::RequestExt;
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use http_body_util::{BodyExt, LengthLimitError};
use tokio::time::timeout;

use crate::problem::Problem;

/// How long a client may take over a body. [`Server`](crate::server::Server) puts it into the extensions
/// of each request.
#[derive(Clone, Copy)]
pub(crate) struct BodyTimeout(pub(crate) Duration);

/// The body of a request, read whole in no longer than `--io-timeout`, or ten seconds without a server.
///
/// The length is bounded by axum's `DefaultBodyLimit`. A body that takes too long is a 408, one that is
/// too long a 413, and one that can't be read a 400.
pub struct WholeBody(pub Bytes);

impl<S: Sync> FromRequest<S> for WholeBody {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let limit = request.extensions().get::<BodyTimeout>().copied();
        let BodyTimeout(limit) = limit.unwrap_or(BodyTimeout(Duration::from_secs(10)));
        let mut body = request.into_limited_body();
        let read = async {
            // In one piece: its frames may be a byte each, and would take 32 more.
            let mut bytes = Vec::new();
            while let Some(frame) = body.frame().await {
                // Trailers mean nothing here.
                bytes.extend_from_slice(frame?.data_ref().map_or(&[], |data| &data[..]));
            }
            Ok(bytes)
        };
        match timeout(limit, read).await {
            Ok(Ok(bytes)) => Ok(Self(bytes.into())),
            Ok(Err(error)) => Err(unreadable(error)),
            Err(_) => Err(Problem::plain(StatusCode::REQUEST_TIMEOUT)
                .detail("The body did not come in time. Send it faster.")),
        }
    }
}

fn unreadable(error: axum::Error) -> Problem {
    let first: &(dyn Error + 'static) = &error;
    let mut causes = successors(Some(first), |it| (**it).source());
    if causes.any(|it| it.is::<LengthLimitError>()) {
        return Problem::plain(StatusCode::PAYLOAD_TOO_LARGE)
            .detail("The body is longer than this route takes.");
    }
    Problem::plain(StatusCode::BAD_REQUEST).detail("The body can't be read.")
}
