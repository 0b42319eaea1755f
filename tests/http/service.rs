//! The service and the one it wraps: readiness, errors, when the inner one is called, any body, and no bound that
//! is not needed. A decision is reported, and a store that is far away is asked, when the response future is
//! polled: the task that calls the service may be another one, such as that of a `tower::buffer`.

use std::cell::Cell;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::rc::Rc;

use tokio_test::assert_ready_err;
use tower::buffer::Buffer;
use tower::limit::GlobalConcurrencyLimitLayer;
use tower_test::mock;

use crate::*;

type Call = Request<String>;
type Reply = Response<Full<Bytes>>;

fn layer(limit: u32) -> SlidingWindowLayer {
    alone(Quota::per_minute(limit))
}

#[tokio::test(start_paused = true)]
async fn readiness_is_that_of_the_inner_service() {
    let (mut service, mut handle) = mock::spawn_layer::<Call, Reply, _>(layer(9));
    handle.allow(0);
    assert_pending!(service.poll_ready::<Call>());
    assert!(!service.is_woken());
    handle.allow(1);
    assert!(service.is_woken());
    assert_ready_ok!(service.poll_ready::<Call>());

    handle.send_error("out of order");
    let error = assert_ready_err!(service.poll_ready::<Call>());
    assert_eq!(error.to_string(), "out of order");
}

#[tokio::test(start_paused = true)]
async fn ready_instance_is_the_one_called() {
    let (mut service, mut handle) = mock::spawn_layer::<Call, Reply, _>(layer(9));
    let mut preflight =
        request(&[("origin", "https://shop.example"), ("access-control-request-method", "POST")]);
    *preflight.method_mut() = http::Method::OPTIONS;
    for call in [from_user("alice"), from_user("bob"), preflight] {
        handle.allow(1);
        assert_ready_ok!(service.poll_ready::<Call>());
        // The mock panics if it is called without having been ready, as its clones have not.
        let mut response = task::spawn(service.call(call));
        assert_pending!(response.poll());
        let (_, answer) = handle.next_request().await.unwrap();
        answer.send_response(Response::new("ok".into()));
        assert_eq!(assert_ready_ok!(response.poll()).status(), OK);
        assert_pending!(service.poll_ready::<Call>(), "what is left has not been ready yet");
    }
}

#[tokio::test(start_paused = true)]
async fn inner_is_called_after_an_admission_only() {
    let (hold, calls) = (Arc::new(Notify::new()), Arc::new(AtomicU32::new(0)));
    let store = Delayed { hold: Some(hold.clone()), ..Delayed::default() };
    let counter = calls.clone();
    let service = by_user(Quota::per_minute(1), store).layer(service_fn(move |request| {
        counter.fetch_add(1, Ordering::SeqCst);
        ok(request)
    }));
    let calls = || calls.load(Ordering::SeqCst);
    for (before, expected) in [(0, OK), (1, TOO_MANY)] {
        let mut response = task::spawn(service.clone().oneshot(from_user("alice")));
        assert_pending!(response.poll());
        assert_eq!(calls(), before, "the reply is under way");
        hold.notify_one();
        assert_eq!(response.await.unwrap().status(), expected);
    }
    assert_eq!(send(&service, request(&[])).await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn unpolled_request_is_not_sent_and_a_decided_one_leaves_no_task() {
    let sent = Arc::new(AtomicU32::new(0));
    let counter = sent.clone();
    let admit = move |_: &_| {
        let counter = counter.clone();
        StoreFuture::later(async move {
            counter.fetch_add(1, Ordering::SeqCst);
            sleep(Duration::from_millis(1)).await;
            Ok(outcome(Duration::ZERO))
        })
    };
    let layer = by_user(Quota::per_minute(9), StubStore(admit)).cancel_if(|_| false);
    let mut service = layer.layer(service_fn(ok));
    drop(service.ready().await.unwrap().call(from_user("alice")));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(sent.load(Ordering::SeqCst), 0);
    assert_eq!(status(&service, "alice").await, OK);
    assert_eq!(sent.load(Ordering::SeqCst), 1);
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
}

/// A store in this process has decided when the future is dropped: the request gives its place back.
#[tokio::test(start_paused = true)]
async fn unpolled_admission_gives_its_place_back() {
    let mut service = layer(1).layer(service_fn(ok));
    for _ in 0..3 {
        drop(service.ready().await.unwrap().call(from_user("alice")));
    }
    assert_eq!(status(&service, "alice").await, OK);
    assert_eq!(status(&service, "alice").await, TOO_MANY);
}

/// A panic of a closure of the application, or of its store, ends the request and not the service of all requests. What sees
/// the request of a client runs in `call`.
#[tokio::test]
async fn panic_in_a_closure_leaves_the_buffer() {
    let bug = || -> Response<String> { panic!("a bug of the application") };
    let on_rejection = layer(1).on_rejection(move |_, _| bug());
    let extractor = |head: &Parts| {
        let user = head.headers["x-user-id"].to_str().unwrap();
        Ok::<_, KeyError>(Key::from(&user[..4]))
    };
    let extractor = SlidingWindowLayer::new(Quota::per_minute(1), extractor, MemoryStore::new());
    let store = StubStore(|check: &Check| {
        assert!(check.logs()[0].key.as_bytes() != b"bob");
        StoreFuture::ready(Ok(outcome(Duration::ZERO)))
    });
    let store = by_user(Quota::per_minute(9), store);
    for (layer, panics) in [(on_rejection, "alice"), (extractor, "bob"), (store, "bob")] {
        let buffer = Buffer::new(layer.layer(service_fn(ok)), 8);
        let send = |user: &'static str| {
            let buffer = buffer.clone();
            tokio::spawn(async move { buffer.oneshot(from_user(user)).await.map(|it| it.status()) })
        };
        assert_eq!(send("alice").await.unwrap().unwrap(), OK);
        assert!(send(panics).await.unwrap_err().is_panic(), "of its request");
        assert_eq!(send("carol").await.unwrap().unwrap(), OK);
    }
}

#[tokio::test]
async fn denial_holds_no_permit() {
    let inner = GlobalConcurrencyLimitLayer::new(1).layer(service_fn(ok));
    let layer = layer(1);
    let (mut one, mut other) = (layer.layer(inner.clone()), layer.layer(inner));
    assert_eq!(one.ready().await.unwrap().call(from_user("alice")).await.unwrap().status(), OK);
    let denied = one.ready().await.unwrap().call(from_user("alice")).await.unwrap();
    assert_eq!(denied.status(), TOO_MANY);
    let ready = timeout(Duration::from_secs(1), other.ready()).await;
    assert!(ready.is_ok(), "the denied client keeps the only permit while it is idle");
}

#[tokio::test]
async fn on_decision_runs_in_the_task_of_the_request() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let tasks = seen.clone();
    let layer = layer(1).on_decision(move |_| tasks.lock().unwrap().push(tokio::task::id()));
    let buffer = Buffer::new(layer.layer(service_fn(ok)), 8);
    for expected in [OK, TOO_MANY] {
        let buffer = buffer.clone();
        let task = tokio::spawn(async move {
            assert_eq!(buffer.oneshot(from_user("alice")).await.unwrap().status(), expected);
            tokio::task::id()
        });
        let id = task.await.unwrap();
        assert_eq!(std::mem::take(&mut *seen.lock().unwrap()), [id]);
    }
}

/// An error type of this test alone.
#[derive(Debug, PartialEq)]
struct Status(u32);

#[tokio::test(start_paused = true)]
async fn body_frames_and_errors_pass_unchanged() {
    let (inner, mut bodies) = streaming::<Status>();
    // A response waits for no frame.
    let body = call(&layer(1).layer(inner), from_user("alice")).await.into_body();
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
        let mut body = call(&service, from_user("alice")).await.into_body();
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
        let mut body = call(&service, request).await.into_body();
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
    fn is_unwind_safe<T: UnwindSafe + RefUnwindSafe>() {}
    fn is_body<T: Body + Send + Sync + Unpin>(_: &T) {}

    let layer = layer(1);
    is_send_and_sync(&layer);
    let service = layer.layer(service_fn(ok));
    is_send_and_sync(&service);
    is_send(&service.clone().oneshot(from_user("alice")));
    is_unwind_safe::<Policy>();

    let custom = layer.on_rejection(|_, _| Response::new(::axum::body::Body::empty()));
    let response = call(&custom.layer(service_fn(ok)), from_user("")).await;
    is_body(response.body());

    let boxed = service.boxed_clone();
    let task = tokio::spawn(async move { boxed.oneshot(from_user("alice")).await });
    assert_eq!(task.await.unwrap().unwrap().status(), OK);
}

/// The request counts as it was reserved. The response to HEAD is over with its head.
#[tokio::test]
async fn panic_of_what_sees_the_head_changes_nothing() {
    type Panics = fn(SlidingWindowLayer) -> SlidingWindowLayer;
    let plain = || Policy::new("user").quota(Quota::per_minute(9));
    let cancels: Panics = |it| it.cancel_if(|_| panic!("a bug of the application"));
    let settles: Panics = |it| it.settle_from_head(|_| panic!("a bug of the application"));
    let settles_at_once: Panics =
        |it| it.settle_from_body(0, |_| panic!("a bug of the application"));
    for (policy, panics) in
        [(plain(), cancels), (plain().budget(), settles), (plain().budget(), settles_at_once)]
    {
        let store = MemoryStore::new();
        let layer = by_user(policy.clone(), store.clone());
        let service = panics(layer).layer(service_fn(ok));
        let mut request = from_user("alice");
        *request.method_mut() = Method::HEAD;
        assert!(tokio::spawn(service.oneshot(request)).await.unwrap_err().is_panic());
        assert_eq!(left(policy, &store).await, 8);
    }
}
