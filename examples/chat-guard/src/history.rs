//! [`History`]: a response with messages that no copy is made of.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};

/// Some messages as a JSON array, the oldest first.
///
/// All responses share the bytes of a message with the board. So many slow readers of one room take no
/// more memory than the room.
pub(crate) struct History(VecDeque<Bytes>);

impl History {
    /// Makes a history of messages in JSON, the newest first.
    pub(crate) fn new(newest_first: impl IntoIterator<Item = Bytes>) -> Self {
        let mut parts = VecDeque::from([Bytes::from_static(b"]")]);
        for post in newest_first {
            if parts.len() > 1 {
                parts.push_front(Bytes::from_static(b","));
            }
            parts.push_front(post);
        }
        parts.push_front(Bytes::from_static(b"["));
        Self(parts)
    }
}

impl IntoResponse for History {
    fn into_response(self) -> Response {
        let json = HeaderValue::from_static("application/json");
        ([(CONTENT_TYPE, json)], Body::new(self)).into_response()
    }
}

impl HttpBody for History {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|part| part.len() as u64).sum())
    }
}
