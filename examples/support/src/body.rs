//! [`WholeBody`]: the body of a request, read to its end.

use std::error::Error;
use std::iter::successors;
use std::sync::Arc;
use std::time::Duration;

use axum::RequestExt;
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use http_body_util::{BodyExt, LengthLimitError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::problem::Problem;
use crate::server::OpenConnections;

/// How long a client may take over a body if the server says nothing else.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// The bytes of all bodies that a listener holds at one time.
const ROOM: usize = 64 << 20;

/// What the bodies of requests may take. [`Server`](crate::server::Server) puts it into the
/// extensions of each request.
#[derive(Clone)]
pub(crate) struct BodyLimits {
    timeout: Duration,
    /// A permit for each byte.
    room: Arc<Semaphore>,
    connections: Arc<OpenConnections>,
}

impl BodyLimits {
    pub(crate) fn new(timeout: Duration, connections: Arc<OpenConnections>) -> Self {
        Self { timeout, room: Arc::new(Semaphore::new(ROOM)), connections }
    }
}

/// The body of a request, read whole in no longer than `--io-timeout`.
///
/// The length is bounded by axum's `DefaultBodyLimit`, and that of all bodies of a listener together
/// by 64 MiB. A body that takes too long is a 408, one that is too long a 413, one that can't be read
/// a 400, and one for which there is no room a 503.
pub struct WholeBody(pub Bytes);

impl<S: Sync> FromRequest<S> for WholeBody {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let limits = request.extensions().get::<BodyLimits>().cloned();
        let limits =
            limits.unwrap_or_else(|| BodyLimits::new(DEFAULT_TIMEOUT, OpenConnections::new()));
        let held = timeout(limits.timeout, hold(request, &limits)).await.map_err(|_| {
            Problem::plain(StatusCode::REQUEST_TIMEOUT)
                .detail("The body did not come in time. Send it faster.")
        })?;
        // The room is taken until the last part of the bytes is dropped.
        held.map(|held| Self(Bytes::from_owner(held)))
    }
}

/// The bytes of a body, and their room.
struct Held(Vec<u8>, Option<OwnedSemaphorePermit>);

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Reads a body into one piece: its frames may be a byte each, and would take 32 more.
async fn hold(request: Request, limits: &BodyLimits) -> Result<Held, Problem> {
    let mut body = request.into_limited_body();
    let mut held = Held(Vec::new(), None);
    while let Some(frame) = body.frame().await {
        // Trailers mean nothing here.
        let Ok(data) = frame.map_err(unreadable)?.into_data() else { continue };
        let wanted = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let room = limits.room.clone().try_acquire_many_owned(wanted).map_err(|_| {
            limits.connections.close_idle();
            Problem::reduced_capacity(Duration::from_secs(1))
                .detail("Too many bodies are on their way. Send it again.")
        })?;
        match &mut held.1 {
            Some(all) => all.merge(room),
            none => *none = Some(room),
        }
        held.0.extend_from_slice(&data);
    }
    Ok(held)
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use axum::body::{Body, HttpBody};
    use hyper::body::Frame;

    use super::*;

    /// A body of frames of one byte each, all of which may be kept until the last is read.
    struct Crumbs {
        left: usize,
        kept: Arc<()>,
        most_kept: usize,
    }

    struct Crumb(#[expect(dead_code, reason = "counted")] Arc<()>);

    impl AsRef<[u8]> for Crumb {
        fn as_ref(&self) -> &[u8] {
            b"a"
        }
    }

    impl HttpBody for Crumbs {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let kept = Arc::strong_count(&self.kept) - 1;
            assert!(kept <= self.most_kept, "{kept} frames are kept");
            if self.left == 0 {
                return Poll::Ready(None);
            }
            self.left -= 1;
            let crumb = Crumb(Arc::clone(&self.kept));
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_owner(crumb)))))
        }
    }

    #[tokio::test]
    async fn a_body_in_crumbs_is_not_kept_in_crumbs() {
        let body = Crumbs { left: 10_000, kept: Arc::default(), most_kept: 1 };
        let request = Request::new(Body::new(body));
        let WholeBody(bytes) = WholeBody::from_request(request, &()).await.unwrap();
        assert_eq!(bytes, vec![b'a'; 10_000]);
    }

    #[tokio::test]
    async fn all_bodies_together_have_a_bound() {
        let limits = BodyLimits::new(DEFAULT_TIMEOUT, OpenConnections::new());
        let body = vec![b'a'; 1 << 20];
        let read = async || {
            let mut request = Request::new(Body::from(body.clone()));
            request.extensions_mut().insert(limits.clone());
            WholeBody::from_request(request, &()).await
        };
        let mut held = Vec::new();
        for _ in 0..ROOM / body.len() {
            held.push(read().await.unwrap());
        }
        let refused =
            axum::response::IntoResponse::into_response(read().await.err().expect("no room"));
        assert_eq!(refused.status(), 503);
        // A part of a body keeps the whole.
        let part = held.pop().map(|WholeBody(bytes)| bytes.slice(1..2));
        assert!(read().await.is_err());
        drop(part);
        assert!(read().await.is_ok());
    }
}
