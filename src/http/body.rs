use std::fmt;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::store::Permit;

pin_project! {
    /// The body of the inner service's response, or of a rejection.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = KindProj]
    #[derive(Debug)]
    enum Kind<B> {
        Inner {
            #[pin]
            body: B,
            // The places of a request in flight, until the body has ended.
            permit: Option<Permit>,
        },
        Rejection { body: RejectionBody },
    }
}

impl<B> ResponseBody<B> {
    pub(super) fn inner(body: B, permit: Option<Permit>) -> Self {
        Self { kind: Kind::Inner { body, permit } }
    }

    pub(super) fn rejection(body: RejectionBody) -> Self {
        Self { kind: Kind::Rejection { body } }
    }
}

impl<B> Default for ResponseBody<B> {
    /// Returns an empty body. Layers that respond in place of the service need it.
    fn default() -> Self {
        Self::rejection(RejectionBody::whole(Bytes::new()))
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            KindProj::Inner { mut body, permit } => {
                let frame = ready!(body.as_mut().poll_frame(cx));
                if permit.is_some() && (!matches!(frame, Some(Ok(_))) || body.is_end_stream()) {
                    // Before the client has the last frame: its next request finds the place free.
                    *permit = None;
                }
                Poll::Ready(frame)
            }
            KindProj::Rejection { body } => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body, .. } => body.is_end_stream(),
            Kind::Rejection { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body, .. } => body.size_hint(),
            Kind::Rejection { body } => body.size_hint(),
        }
    }
}

/// The body of a rejection.
pub(super) enum RejectionBody {
    Whole(Option<Bytes>),
    /// A body of another type. The mutex is never locked for long: it makes the body `Sync`.
    Other(Mutex<Pin<Box<dyn AnyBody>>>),
}

impl RejectionBody {
    pub(super) fn whole(bytes: Bytes) -> Self {
        Self::Whole(Some(bytes).filter(|bytes| !bytes.is_empty()))
    }

    pub(super) fn other(body: impl Body<Data = Bytes> + Send + 'static) -> Self {
        Self::Other(Mutex::new(Box::pin(body)))
    }

    fn poll_frame<E>(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, E>>> {
        match self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Other(body) => {
                let body = body.get_mut().unwrap_or_else(PoisonError::into_inner);
                body.as_mut().poll_next_frame(cx).map(|frame| frame.map(Ok))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Other(body) => body.lock().unwrap_or_else(PoisonError::into_inner).is_at_end(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Self::Other(body) => body.lock().unwrap_or_else(PoisonError::into_inner).hint(),
        }
    }
}

impl fmt::Debug for RejectionBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RejectionBody").finish_non_exhaustive()
    }
}

/// A body of any error type. It ends at an error, because the response has the error type of the
/// inner service.
pub(super) trait AnyBody: Send {
    fn poll_next_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>>;
    fn is_at_end(&self) -> bool;
    fn hint(&self) -> SizeHint;
}

impl<B: Body<Data = Bytes> + Send> AnyBody for B {
    fn poll_next_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        self.poll_frame(cx).map(|frame| frame.and_then(Result::ok))
    }

    fn is_at_end(&self) -> bool {
        self.is_end_stream()
    }

    fn hint(&self) -> SizeHint {
        self.size_hint()
    }
}
