//! The service and the one it wraps: readiness, errors, and when the inner one is called. A decision is reported,
//! and a store that is far away is asked, when the response future is polled: the task that calls the service may
//! be another one, such as that of a `tower::buffer`.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
use tower::buffer::Buffer;
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sliding_window::store::{Check, Outcome, Store, StoreFuture};
use tower_sliding_window::{MemoryStore, Quota, SlidingWindow};
use tower_test::mock::{self, Handle, Mock};

use test_support::requests::{by_user, from_user, ok, request};
use test_support::{StubStore, outcome};

use crate::{OK, TOO_MANY};

type Call = Request<String>;
type Reply = Response<Full<Bytes>>;
type Mocked = mock::Spawn<SlidingWindow<Mock<Call, Reply>>>;

fn mocked(limit: u32, store: impl Store) -> (Mocked, Handle<Call, Reply>) {
    mock::spawn_layer(by_user(Quota::per_minute(limit), store))
}

fn reply(text: &'static str) -> Reply {
    Response::new(text.into())
}

#[tokio::test(start_paused = true)]
async fn readiness_is_that_of_the_inner_service() {
    let (mut service, mut handle) = mocked(9, MemoryStore::new());
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
    let (mut service, mut handle) = mocked(9, MemoryStore::new());
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
        answer.send_response(reply("ok"));
        assert_eq!(assert_ready_ok!(response.poll()).status(), OK);
        assert_pending!(service.poll_ready::<Call>(), "what is left has not been ready yet");
    }
}

/// Responses when the test says so.
#[derive(Clone, Default)]
struct Held(Arc<Mutex<Option<oneshot::Sender<Outcome>>>>);

impl Held {
    fn reply(&self, admitted: bool) {
        let outcome = outcome(Duration::from_micros(if admitted { 0 } else { 1 }));
        let reply = self.0.lock().expect("no panic under the lock").take().expect("a check");
        let _ = reply.send(outcome);
    }

    fn store(&self) -> impl Store {
        let held = self.clone();
        let admit = move |_: &Check| {
            let (reply, answer) = oneshot::channel();
            *held.0.lock().expect("no panic under the lock") = Some(reply);
            StoreFuture::later(async { Ok(answer.await.expect("an answer")) })
        };
        StubStore(admit, || ())
    }
}

#[tokio::test(start_paused = true)]
async fn inner_is_called_after_an_admission_only() {
    let store = Held::default();
    let (mut service, mut handle) = mocked(1, store.store());
    handle.allow(2);
    for (admitted, status) in [(true, OK), (false, TOO_MANY)] {
        assert_ready_ok!(service.poll_ready::<Call>());
        let mut response = task::spawn(service.call(from_user("alice")));
        assert_pending!(response.poll());
        assert_pending!(task::spawn(handle.next_request()).poll());

        store.reply(admitted);
        assert!(response.is_woken());
        if admitted {
            assert_pending!(response.poll());
            handle.next_request().await.unwrap().1.send_response(reply("ok"));
        }
        assert_eq!(assert_ready_ok!(response.poll()).status(), status);
        assert_pending!(task::spawn(handle.next_request()).poll());
    }
    handle.allow(1);
    assert_ready_ok!(service.poll_ready::<Call>());
    let keyless = assert_ready_ok!(task::spawn(service.call(request(&[]))).poll());
    assert_eq!(keyless.status(), StatusCode::UNAUTHORIZED);
    assert_pending!(task::spawn(handle.next_request()).poll());
}

#[tokio::test(start_paused = true)]
async fn unpolled_request_is_not_sent() {
    let sent = Arc::new(AtomicU32::new(0));
    let counter = sent.clone();
    let admit = move |_: &_| {
        let counter = counter.clone();
        StoreFuture::later(async move {
            counter.fetch_add(1, Ordering::SeqCst);
            Ok(outcome(Duration::ZERO))
        })
    };
    let layer = by_user(Quota::per_minute(9), StubStore(admit, || ())).cancel_if(|_| false);
    let mut service = layer.layer(service_fn(ok));
    drop(service.ready().await.unwrap().call(from_user("alice")));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(sent.load(Ordering::SeqCst), 0);
}

/// A store in this process has decided when the future is dropped: the request gives its place back.
#[tokio::test(start_paused = true)]
async fn unpolled_admission_gives_its_place_back() {
    let layer = by_user(Quota::per_minute(1), MemoryStore::new());
    let mut service = layer.layer(service_fn(ok));
    for _ in 0..3 {
        drop(service.ready().await.unwrap().call(from_user("alice")));
    }
    let response = service.ready().await.unwrap().call(from_user("alice")).await.unwrap();
    assert_eq!(response.status(), OK);
    let denied = service.ready().await.unwrap().call(from_user("alice")).await.unwrap();
    assert_eq!(denied.status(), TOO_MANY);
}

/// A panic of a closure of the application ends the request, not the service of all requests.
#[tokio::test]
async fn panic_in_on_rejection_leaves_the_buffer() {
    let layer = by_user(Quota::per_minute(1), MemoryStore::new()).on_rejection(|_, _| {
        if true {
            panic!("a bug of the application");
        }
        Response::new(String::new())
    });
    let buffer = Buffer::new(layer.layer(service_fn(ok)), 8);
    let send = |user: &'static str| {
        let buffer = buffer.clone();
        tokio::spawn(async move { buffer.oneshot(from_user(user)).await.map(|it| it.status()) })
    };
    assert_eq!(send("alice").await.unwrap().unwrap(), OK);
    let _ = send("alice").await;
    assert_eq!(send("bob").await.unwrap().unwrap(), OK);
}

#[tokio::test]
async fn denial_holds_no_permit() {
    let inner = GlobalConcurrencyLimitLayer::new(1).layer(service_fn(ok));
    let layer = by_user(Quota::per_minute(1), MemoryStore::new());
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
    let layer = by_user(Quota::per_minute(1), MemoryStore::new())
        .on_decision(move |_| tasks.lock().unwrap().push(tokio::task::id()));
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
