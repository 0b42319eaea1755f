//! The layer on a bare Tower stack: any body, any other layer, and no bound that is not needed.

use std::cell::Cell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio_test::{assert_pending, task};
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_layer::Layer;
use tower_sliding_window::{MemoryStore, Quota, SlidingWindowLayer};

use test_support::requests::{by_user, from_user, ok, status};

const OK: StatusCode = StatusCode::OK;

fn layer(limit: u32) -> SlidingWindowLayer {
    let store = MemoryStore::new();
    by_user(Quota::per_minute(limit), store)
}

/// An error type of this test alone.
#[derive(Debug, PartialEq)]
struct Status(u32);

/// A body as gRPC has them: data, perhaps later, then trailers or an error. It stays on its thread.
struct Stream {
    polls: VecDeque<Poll<Result<Frame<Bytes>, Status>>>,
    is_polled: Rc<Cell<bool>>,
}

impl Body for Stream {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.is_polled.set(true);
        match self.polls.pop_front() {
            Some(poll) => poll.map(Some),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.polls.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        hint.set_lower(3);
        hint.set_upper(9);
        hint
    }
}

#[tokio::test(start_paused = true)]
async fn body_frames_and_errors_pass_unchanged() {
    let is_polled = Rc::new(Cell::new(false));
    let inner = service_fn(async |_: Request<()>| {
        let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), 0.into())]);
        let polls = VecDeque::from([
            Poll::Ready(Ok(Frame::data("abc".into()))),
            Poll::Pending,
            Poll::Ready(Ok(Frame::trailers(trailers))),
            Poll::Ready(Err(Status(14))),
        ]);
        Ok::<_, Infallible>(Response::new(Stream { polls, is_polled: is_polled.clone() }))
    });
    let service = ServiceBuilder::new().layer(layer(1)).service(inner);
    let request = Request::builder().header("x-user-id", "alice").body(()).unwrap();
    let mut body = task::spawn(service.oneshot(request).await.unwrap().into_body());
    assert!(!is_polled.get(), "a response waits for no frame");

    let hint = body.size_hint();
    assert_eq!((hint.lower(), hint.upper(), body.is_end_stream()), (3, Some(9), false));
    let mut next = || body.enter(|cx, body| body.poll_frame(cx));
    let Poll::Ready(Some(Ok(data))) = next() else { panic!("no data") };
    assert_eq!(data.into_data().unwrap(), "abc");
    assert_pending!(next());
    let Poll::Ready(Some(Ok(trailers))) = next() else { panic!("no trailers") };
    assert_eq!(trailers.into_trailers().unwrap()["grpc-status"], "0");
    assert!(matches!(next(), Poll::Ready(Some(Err(Status(14))))));
    assert!(matches!(next(), Poll::Ready(None)));
    assert!(body.is_end_stream());
}

#[tokio::test(start_paused = true)]
async fn rejection_knows_its_length() {
    let default = layer(1);
    let empty = default.clone().on_rejection(|_, _| Response::new(String::new()));
    for (layer, is_empty) in [(default, false), (empty, true)] {
        let service = layer.layer(service_fn(ok));
        assert_eq!(status(&service, "alice").await, OK);
        let mut body = service.oneshot(from_user("alice")).await.unwrap().into_body();
        let length = body.size_hint().exact().unwrap();
        assert_eq!((body.is_end_stream(), length == 0), (is_empty, is_empty));
        if let Some(frame) = body.frame().await {
            assert_eq!(frame.unwrap().into_data().unwrap().len() as u64, length);
        }
        assert!(body.is_end_stream() && body.frame().await.is_none());
        assert_eq!(body.size_hint().exact(), Some(0));
    }
}

#[tokio::test(start_paused = true)]
async fn requests_need_not_be_send() {
    let seen = Rc::new(Cell::new(0));
    let inner = service_fn({
        let seen = seen.clone();
        move |request: Request<Rc<u32>>| {
            seen.set(seen.get() + *request.into_body());
            async { Ok::<_, Rc<str>>(Response::new(String::from("a body"))) }
        }
    });
    let service = layer(2).layer(inner);
    for _ in 0..3 {
        let request = Request::builder().header("x-user-id", "alice").body(Rc::new(7)).unwrap();
        let _ = service.clone().oneshot(request).await.unwrap();
    }
    assert_eq!(seen.get(), 14, "the third was denied");
}

#[tokio::test(start_paused = true)]
async fn what_is_send_stays_send() {
    fn is_send_and_sync<T: Send + Sync + Clone + 'static>(_: &T) {}
    fn is_send<T: Send>(_: &T) {}
    fn is_body<T: Body + Send + Sync + Unpin>(_: &T) {}

    let layer = layer(1);
    is_send_and_sync(&layer);
    let service = layer.layer(service_fn(ok));
    is_send_and_sync(&service);
    is_send(&service.clone().oneshot(from_user("alice")));

    let custom = layer.on_rejection(|_, _| Response::new(axum::body::Body::empty()));
    let response = custom.layer(service_fn(ok)).oneshot(from_user("")).await.unwrap();
    is_body(response.body());

    let boxed = service.boxed_clone();
    let task = tokio::spawn(async move { boxed.oneshot(from_user("alice")).await });
    assert_eq!(task.await.unwrap().unwrap().status(), OK);
}
