use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::thread;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{Response, Version};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::task::JoinHandle;

use crate::store::{Permit, SettleHandle};

pin_project! {
    /// The body of the inner service's response, or of a rejection.
    pub struct ResponseBody<B> {
        #[pin]
        inner: Option<B>,
        // What happens when the body of the inner service is over.
        end: Option<Box<AtEnd>>,
        // If there is no other.
        rejection: RejectionBody,
    }
}

impl<B> ResponseBody<B> {
    pub(super) fn inner(body: B, end: Option<Box<AtEnd>>) -> Self {
        Self { inner: Some(body), end, rejection: RejectionBody::Whole(String::new()) }
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
        Self::rejection(RejectionBody::Whole(String::new()))
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
            return this.rejection.poll_frame(cx);
        };
        let Some(at_end) = end else { return body.poll_frame(cx) };
        if !at_end.is_complete {
            let frame = ready!(body.as_mut().poll_frame(cx));
            match &frame {
                Some(Ok(frame)) => at_end.see(frame, body.is_end_stream()),
                Some(Err(_)) => *end = None,
                None => at_end.is_complete = true,
            }
            let Some(at_end) = end.as_mut().filter(|it| it.is_complete) else {
                return Poll::Ready(frame);
            };
            at_end.last = frame.and_then(Result::ok);
            at_end.tasks = at_end.end();
        }
        let Some(at_end) = end else { return Poll::Ready(None) };
        ready!(poll_tasks(&mut at_end.tasks, cx));
        let last = at_end.last.take();
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

/// What happens when the body of a response is over: the places of a request in flight come free, and its budgets
/// are settled. Dropping it does both.
///
/// The last frame waits until the store has done so. Then the next request of a client that has the whole response
/// finds the place free.
pub(super) struct AtEnd {
    permit: Option<Permit>,
    settlement: Option<Settlement>,
    bytes: u64,
    /// The number of bytes after which a server reads no further: in HTTP/1 there are no trailers behind it.
    length: Option<u64>,
    /// Whether the body has ended.
    pub(super) is_complete: bool,
    last: Option<Frame<Bytes>>,
    tasks: Vec<JoinHandle<()>>,
}

/// What a request takes of its budgets, by the end of the body of its response.
#[derive(Clone)]
pub(super) struct BodyCost {
    /// How many of the last bytes are kept for the closure.
    pub(super) tail_length: usize,
    pub(super) cost: Arc<dyn Fn(ResponseEnd<'_>) -> Option<u32> + Send + Sync>,
}

pub(super) struct Settlement {
    budgets: SettleHandle,
    by: BodyCost,
    /// Whether they are settled at nothing if the closure leaves them as they are.
    is_free: bool,
    tail: Vec<u8>,
}

impl AtEnd {
    /// Returns what happens at the end of a response, if anything does.
    pub(super) fn new<B: Body>(
        permit: Option<Permit>,
        settlement: Option<Settlement>,
        response: &Response<B>,
        version: Version,
    ) -> Option<Box<Self>> {
        if permit.is_none() && settlement.is_none() {
            return None;
        }
        let announced = response.headers().get(CONTENT_LENGTH).and_then(|it| it.to_str().ok());
        let announced = announced.and_then(|it| it.parse().ok());
        let length = announced.or_else(|| response.body().size_hint().exact());
        let length = length.filter(|_| version < Version::HTTP_2);
        let is_complete = response.body().is_end_stream() || length == Some(0);
        let (last, tasks) = (None, Vec::new());
        Some(Box::new(Self { permit, settlement, bytes: 0, length, is_complete, last, tasks }))
    }

    /// Makes it happen. Returns the tasks that wait for the store.
    pub(super) fn end(&mut self) -> Vec<JoinHandle<()>> {
        let settlement = self.settlement.take();
        let settled = settlement.and_then(|it| it.settle(self.bytes, self.is_complete));
        let released = self.permit.as_mut().and_then(Permit::give_back);
        released.into_iter().chain(settled).collect()
    }

    fn see(&mut self, frame: &Frame<Bytes>, is_last: bool) {
        if let Some(data) = frame.data_ref() {
            self.bytes += data.len() as u64;
            self.settlement.iter_mut().for_each(|settlement| settlement.see(data));
        }
        let is_last = is_last || frame.is_trailers();
        self.is_complete = is_last || self.length == Some(self.bytes);
    }
}

impl Settlement {
    pub(super) fn new(budgets: SettleHandle, by: BodyCost, is_free: bool) -> Self {
        Self { budgets, by, is_free, tail: Vec::new() }
    }

    fn settle(&self, bytes: u64, is_complete: bool) -> Option<JoinHandle<()>> {
        let end = ResponseEnd { bytes, tail: &self.tail, is_complete };
        let cost = || (self.by.cost)(end);
        let cost = match thread::panicking() {
            // A second panic, on a tail that the first one has cut off, would end the process.
            true => catch_unwind(AssertUnwindSafe(cost)).ok()?,
            false => cost(),
        };
        self.budgets.settle(cost.or(self.is_free.then_some(0))?)
    }

    fn see(&mut self, data: &[u8]) {
        let data = &data[data.len().saturating_sub(self.by.tail_length)..];
        let kept = self.by.tail_length - data.len();
        self.tail.drain(..self.tail.len().saturating_sub(kept));
        self.tail.extend_from_slice(data);
    }
}

impl Drop for AtEnd {
    fn drop(&mut self) {
        self.end();
    }
}

/// Waits for tasks that settle a request.
pub(super) fn poll_tasks(tasks: &mut Vec<JoinHandle<()>>, cx: &mut Context<'_>) -> Poll<()> {
    while let Some(task) = tasks.last_mut() {
        let _ = ready!(Pin::new(task).poll(cx));
        tasks.pop();
    }
    Poll::Ready(())
}

/// The end of a response body, for [`settle_from_body`](super::SlidingWindowLayer::settle_from_body).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ResponseEnd<'a> {
    /// How many bytes of data the body had until it ended or was dropped.
    pub bytes: u64,
    /// The last bytes of them: as many as the layer keeps, or all if there were fewer.
    pub tail: &'a [u8],
    /// Whether the body has ended by itself. It has not if it failed, or if the client hung up before.
    pub is_complete: bool,
}

/// The body of a rejection.
pub(super) enum RejectionBody {
    Whole(String),
    /// A body of another type. The mutex is never locked for long: it makes the body `Sync`.
    Other(Mutex<Box<dyn Body<Data = Bytes, Error = Infallible> + Send + Unpin>>),
}

impl RejectionBody {
    pub(super) fn other(body: impl Body<Data = Bytes> + Send + 'static) -> Self {
        Self::Other(Mutex::new(Box::new(EndsAtError(Box::pin(body)))))
    }

    fn poll_frame<E>(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, E>>> {
        let frame = match self {
            Self::Whole(text) => Pin::new(text).poll_frame(cx),
            Self::Other(body) => {
                Pin::new(body.get_mut().unwrap_or_else(PoisonError::into_inner)).poll_frame(cx)
            }
        };
        frame.map_err(|never| match never {})
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(text) => text.is_end_stream(),
            Self::Other(body) => {
                body.lock().unwrap_or_else(PoisonError::into_inner).is_end_stream()
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(text) => text.size_hint(),
            Self::Other(body) => body.lock().unwrap_or_else(PoisonError::into_inner).size_hint(),
        }
    }
}

/// A body that ends at an error, because the response has the error type of the inner service.
struct EndsAtError<B>(Pin<Box<B>>);

impl<B: Body> Body for EndsAtError<B> {
    type Data = B::Data;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, Infallible>>> {
        self.0.as_mut().poll_frame(cx).map(|frame| frame?.ok().map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
