use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Either};
use pin_project_lite::pin_project;

use super::after_response::AfterResponse;

/// The body of a rejection: a text, or the application's own body.
pub(super) type RejectionBody = Either<String, OwnBody>;

pub(super) type BoxError = Box<dyn Error + Send + Sync>;

/// A body of the application. The mutex makes it `Sync`, without which no application of hyper could box the response with
/// `BodyExt::boxed`.
pub(super) struct OwnBody(Mutex<UnsyncBoxBody<Bytes, BoxError>>);

impl OwnBody {
    pub(super) fn new<B>(body: B) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(Mutex::new(body.map_err(Into::into).boxed_unsync()))
    }

    fn lock(&self) -> MutexGuard<'_, UnsyncBoxBody<Bytes, BoxError>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Body for OwnBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut *self.lock()).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.lock().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.lock().size_hint()
    }
}

pin_project! {
    /// The body of the inner service's response, or of a rejection.
    pub struct ResponseBody<B> {
        #[pin]
        inner: Option<B>,
        // What is left to do when the body of the inner service is over.
        end: Option<Box<AfterResponse>>,
        // If there is no other.
        rejection: RejectionBody,
    }
}

impl<B> ResponseBody<B> {
    pub(super) fn inner(body: B, end: Option<Box<AfterResponse>>) -> Self {
        Self { inner: Some(body), end, rejection: Either::Left(String::new()) }
    }

    pub(super) fn rejection(body: RejectionBody) -> Self {
        Self { inner: None, end: None, rejection: body }
    }
}

impl<B> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody").finish_non_exhaustive()
    }
}

impl<B> Default for ResponseBody<B> {
    /// Returns an empty body. Layers that respond in place of the service need it.
    fn default() -> Self {
        Self::rejection(Either::Left(String::new()))
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        let (end, Some(mut body)) = (this.end, this.inner.as_pin_mut()) else {
            // It ends at an error, because the response has the error type of the inner service.
            return Pin::new(this.rejection).poll_frame(cx).map(|frame| frame?.ok().map(Ok));
        };
        let Some(after) = end else { return body.poll_frame(cx) };
        if !after.is_complete {
            let frame = ready!(body.as_mut().poll_frame(cx));
            match &frame {
                Some(Ok(frame)) => after.see(frame, body.is_end_stream()),
                Some(Err(_)) => {
                    *end = None;
                    return Poll::Ready(frame);
                }
                None => after.is_complete = true,
            }
            if !after.is_complete {
                return Poll::Ready(frame);
            }
            after.last = frame.and_then(Result::ok);
            after.end();
        }
        ready!(after.poll_done(cx));
        let last = after.last.take();
        *end = None;
        Poll::Ready(last.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            // A body that may end between two polls is asked once more, so that its end is seen.
            Some(body) => self.end.is_none() && body.is_end_stream(),
            None => self.rejection.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.inner, &self.end) {
            (Some(_), Some(end)) if end.is_complete => SizeHint::default(),
            (Some(body), _) => body.size_hint(),
            (None, _) => self.rejection.size_hint(),
        }
    }
}
