//! The layer on a bare Tower stack: any body, any other layer, and no bound that is not needed.

use std::cell::Cell;
use std::rc::Rc;
use std::task::Poll;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use tokio_test::{assert_pending, task};
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_layer::Layer;
use tower_sliding_window::{MemoryStore, Quota, SlidingWindowLayer};

use test_support::requests::{by_user, from_user, ok, status};

use crate::{OK, streaming};

fn layer(limit: u32) -> SlidingWindowLayer {
    let store = MemoryStore::new();
    by_user(Quota::per_minute(limit), store)
}

/// An error type of this test alone.
#[derive(Debug, PartialEq)]
struct Status(u32);

#[tokio::test(start_paused = true)]
async fn body_frames_and_errors_pass_unchanged() {
    let (inner, mut bodies) = streaming::<Status>();
    let service = ServiceBuilder::new().layer(layer(1)).service(inner);
    // A response waits for no frame.
    let body = service.oneshot(from_user("alice")).await.unwrap().into_body();
    let (mut sender, mut body) = (bodies.recv().await.unwrap(), task::spawn(body));
    let mut next = || body.enter(|cx, body| body.poll_frame(cx));
    assert_pending!(next());
    sender.send_data("abc".into()).await.unwrap();
    let Poll::Ready(Some(Ok(data))) = next() else { panic!("no data") };
    assert_eq!(data.into_data().unwrap(), "abc");
    assert_pending!(next());
    let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), 0.into())]);
    sender.send_trailers(trailers).await.unwrap();
    let Poll::Ready(Some(Ok(trailers))) = next() else { panic!("no trailers") };
    assert_eq!(trailers.into_trailers().unwrap()["grpc-status"], "0");
    sender.abort(Status(14));
    assert!(matches!(next(), Poll::Ready(Some(Err(Status(14))))));
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
async fn requests_and_bodies_need_not_be_send() {
    let seen = Rc::new(Cell::new(0));
    let inner = service_fn({
        let seen = seen.clone();
        move |request: Request<Rc<u32>>| {
            seen.set(seen.get() + *request.into_body());
            let error = seen.clone();
            let body = Full::new(Bytes::from("a body")).map_err(move |_| error.clone());
            async { Ok::<_, Rc<str>>(Response::new(body)) }
        }
    });
    let service = layer(2).layer(inner);
    for admitted in [true, true, false] {
        let request = Request::builder().header("x-user-id", "alice").body(Rc::new(7)).unwrap();
        let mut body = service.clone().oneshot(request).await.unwrap().into_body();
        assert_eq!(body.size_hint().exact() == Some(6), admitted);
        assert!(!body.is_end_stream() && body.frame().await.unwrap().is_ok());
        assert!(body.is_end_stream() && body.frame().await.is_none());
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
