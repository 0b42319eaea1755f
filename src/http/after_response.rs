//! [`AfterResponse`]: what is left to do for a request when the inner service has handled it.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::thread;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{Method, Response, StatusCode, Version};
use http_body::{Body, Frame};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::body::ResponseBody;
use super::config::Config;
use super::rejection::in_http;
use crate::policy::Counts;
use crate::store::{Permit, SettleHandle};
use crate::window::{DecidedBy, Decision, LogId, Usage};

/// What is left to do for a request that the store has counted, at the head of its response and at the end of the body.
///
/// The response shows the state of the logs. The request is cancelled or settled before the response goes on, and the last frame of the body waits until the store has the
/// rest. Then the next request of a client that has the whole response finds the place free.
///
/// If it is dropped before there is a response, the request stays counted, because the inner service was called. If it is
/// dropped later, the body is over.
pub(super) struct AfterResponse {
    config: Arc<Config>,
    version: Version,
    /// A server sends no body in response to HEAD, and drops that of the service unread.
    is_head: bool,
    has_response: bool,
    /// The state of the logs that the response shows, and when this was.
    shown: Option<(Usage, Instant)>,
    /// For `cancel_if`.
    cancel: Option<SettleHandle>,
    /// The places that the request holds until the body of its response is over.
    permit: Option<Permit>,
    /// The budgets that the response settles.
    budgets: Option<SettleHandle>,
    /// Whether the head settles them at nothing, unless the end of the body says more.
    is_free: bool,
    bytes: u64,
    /// The last bytes, for the closure that settles the budgets.
    tail: Vec<u8>,
    /// The number of bytes after which a server reads no further: in HTTP/1 there are no trailers behind it.
    length: Option<u64>,
    /// Whether the body has ended.
    pub(super) is_complete: bool,
    pub(super) last: Option<Frame<Bytes>>,
    /// They wait for the store.
    tasks: Vec<JoinHandle<()>>,
}

/// What a request takes of its budgets, by the end of the body of its response.
#[derive(Clone)]
pub(super) struct BodyCost {
    /// How many of the last bytes are kept for the closure.
    pub(super) tail_length: usize,
    pub(super) cost: Arc<dyn Fn(ResponseEnd<'_>) -> Option<u32> + Send + Sync>,
}

impl AfterResponse {
    /// Returns what is left to do for a request that goes on, if anything is. `may_be_counted` says whether the store may have
    /// counted it, such as one that the failure policy has admitted.
    pub(super) fn new(
        config: &Arc<Config>,
        head: &Parts,
        decision: &Decision,
        permit: Option<Permit>,
        may_be_counted: bool,
    ) -> Option<Box<Self>> {
        let is_counted = decision.decided_by() != DecidedBy::FailurePolicy;
        let usage = Some(decision.usage()).filter(|_| is_counted && config.shows_on_success());
        let shown = usage.map(|usage| (usage.part(config.shows(usage)), Instant::now()));
        let part = |has: &dyn Fn(&LogId) -> bool| {
            SettleHandle::of(&config.store, decision.admitted()?.check(), has)
        };
        let ends = |log: &LogId| permit.is_none() || ends_with_head(log);
        let cancel = (may_be_counted && config.cancel_if.is_some()).then(|| part(&ends)).flatten();
        let settles = is_counted && (config.head_cost.is_some() || config.body_cost.is_some());
        let budgets = settles.then(|| part(&LogId::is_budget)).flatten();
        if shown.is_none() && permit.is_none() && cancel.is_none() && budgets.is_none() {
            return None;
        }
        Some(Box::new(Self {
            config: config.clone(),
            version: head.version,
            is_head: head.method == Method::HEAD,
            has_response: false,
            shown,
            cancel,
            permit,
            budgets,
            is_free: false,
            bytes: 0,
            tail: Vec::new(),
            length: None,
            is_complete: false,
            last: None,
            tasks: Vec::new(),
        }))
    }

    /// Does what does not wait for the end of the body.
    pub(super) fn respond<B: Body>(&mut self, response: Response<B>) -> Response<B> {
        // What settles by the head sees a response without a body.
        let (head, body) = response.into_parts();
        let head = Response::from_parts(head, ());
        self.settle_by_head(&in_http(&head));
        if self.config.body_cost.is_none() {
            self.budgets = None;
        }
        let announced = head.headers().get(CONTENT_LENGTH).and_then(|it| it.to_str().ok());
        let announced = announced.and_then(|it| it.parse().ok());
        let length = match head.status() {
            // They have no body, and a server drops that of the service unread.
            StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED => Some(0),
            _ => announced.or_else(|| body.size_hint().exact()),
        };
        self.length = length.filter(|_| self.version < Version::HTTP_2);
        self.is_complete = body.is_end_stream() || self.length == Some(0);
        // A server drops a body that has ended after the client has the response.
        if self.is_complete || self.is_head {
            self.end();
        }
        // Not sooner: after a panic of a closure there is no response.
        self.has_response = true;
        head.map(|()| body)
    }

    /// The inner service has failed.
    pub(super) fn fail(&mut self) {
        self.budgets = None;
        self.end();
    }

    /// Cancels the request if it does not count with this response, or settles its budgets.
    fn settle_by_head(&mut self, head: &Response<()>) {
        let Self { config, cancel, budgets, .. } = self;
        let shown = self.shown.as_mut().map(|(shown, _)| shown);
        if let (Some(cancel), Some(cancel_if)) = (cancel, &config.cancel_if)
            && cancel_if(head)
        {
            *budgets = None;
            shown.into_iter().for_each(|shown| shown.settle(0, ends_with_head));
            self.tasks.extend(cancel.settle(0));
        } else if let (Some(budgets), Some(cost)) = (budgets, &config.head_cost)
            && let Some(cost) = cost(head)
        {
            // To settle at nothing would remove the entries, and the end of the body would find none to settle.
            self.is_free = cost == 0 && config.body_cost.is_some();
            if !self.is_free {
                shown.into_iter().for_each(|shown| shown.settle(cost, LogId::is_budget));
                self.tasks.extend(budgets.settle(cost));
            }
        }
    }

    /// Makes the response of the layer. Its body does what is left for its end.
    pub(super) fn finish<B>(
        mut self: Box<Self>,
        response: Response<B>,
    ) -> Response<ResponseBody<B>> {
        let (shown, headers) = (self.shown.take(), self.config.headers);
        let end = Some(self).filter(|it| it.permit.is_some() || it.budgets.is_some());
        let mut response = response.map(|body| ResponseBody::inner(body, end));
        if let Some((mut shown, at)) = shown {
            shown.age(at.elapsed());
            headers.insert(response.headers_mut(), &shown);
        }
        response
    }

    pub(super) fn see(&mut self, frame: &Frame<Bytes>, is_last: bool) {
        if let Some(data) = frame.data_ref() {
            self.bytes += data.len() as u64;
            if let (Some(_), Some(BodyCost { tail_length, .. })) =
                (&self.budgets, &self.config.body_cost)
            {
                let data = &data[data.len().saturating_sub(*tail_length)..];
                let kept = tail_length - data.len();
                self.tail.drain(..self.tail.len().saturating_sub(kept));
                self.tail.extend_from_slice(data);
            }
        }
        let is_last = is_last || frame.is_trailers();
        self.is_complete = is_last || self.length == Some(self.bytes);
    }

    /// Settles the budgets by the end of the body, and gives the places back.
    pub(super) fn end(&mut self) {
        let settled = self.budgets.take().and_then(|budgets| budgets.settle(self.cost_at_end()?));
        let released = self.permit.take().and_then(|mut permit| permit.give_back());
        self.tasks.extend(released.into_iter().chain(settled));
    }

    fn cost_at_end(&self) -> Option<u32> {
        let end =
            ResponseEnd { bytes: self.bytes, tail: &self.tail, is_complete: self.is_complete };
        let cost = || (self.config.body_cost.as_ref()?.cost)(end);
        let cost = match thread::panicking() {
            // A second panic, on a tail that the first one has cut off, would end the process.
            true => catch_unwind(AssertUnwindSafe(cost)).ok()?,
            false => cost(),
        };
        cost.or(self.is_free.then_some(0))
    }

    /// Waits until the store has what was done so far.
    pub(super) fn poll_done(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(task) = self.tasks.last_mut() {
            let _ = ready!(Pin::new(task).poll(cx));
            self.tasks.pop();
        }
        Poll::Ready(())
    }
}

impl Drop for AfterResponse {
    fn drop(&mut self) {
        if self.has_response {
            self.end();
        }
    }
}

/// Returns whether a cancelled request leaves a log with the head of its response. The permit gives back what is in
/// flight, when the body is over.
fn ends_with_head(log: &LogId) -> bool {
    log.policy.counts() != Counts::InFlight
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
