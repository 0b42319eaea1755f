//! The service and the one it wraps: readiness, errors, and when the inner one is called.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tokio::sync::oneshot;
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
use tower::Service;
use tower_layer::Layer;
use tower_sliding_window::store::{Check, LogOutcome, Outcome, QuotaState, Store, StoreFuture};
use tower_sliding_window::{MemoryStore, Quota, SlidingWindow};
use tower_test::mock::{self, Handle, Mock};

use test_support::StubStore;
use test_support::requests::{by_user, from_user, request};

const OK: StatusCode = StatusCode::OK;
const TOO_MANY: StatusCode = StatusCode::TOO_MANY_REQUESTS;

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
    for user in ["alice", "bob"] {
        handle.allow(1);
        assert_ready_ok!(service.poll_ready::<Call>());
        // The mock panics if it is called without having been ready, as its clones have not.
        let mut response = task::spawn(service.call(from_user(user)));
        assert_pending!(response.poll());
        let (call, answer) = handle.next_request().await.unwrap();
        assert_eq!(call.headers()["x-user-id"], user);
        answer.send_response(reply("ok"));
        assert_eq!(assert_ready_ok!(response.poll()).status(), OK);
        assert_pending!(service.poll_ready::<Call>(), "what is left has not been ready yet");
    }
}

#[tokio::test(start_paused = true)]
async fn skipped_request_uses_the_ready_instance() {
    let (mut service, mut handle) = mocked(9, MemoryStore::new());
    handle.allow(1);
    assert_ready_ok!(service.poll_ready::<Call>());
    let mut preflight =
        request(&[("origin", "https://shop.example"), ("access-control-request-method", "POST")]);
    *preflight.method_mut() = http::Method::OPTIONS;
    let mut response = task::spawn(service.call(preflight));
    assert_pending!(response.poll());
    handle.next_request().await.unwrap().1.send_response(reply("ok"));
    assert_eq!(assert_ready_ok!(response.poll()).status(), OK);
}

#[tokio::test(start_paused = true)]
async fn denied_or_keyless_request_skips_inner() {
    let (mut service, mut handle) = mocked(1, MemoryStore::new());
    handle.allow(10);
    assert_ready_ok!(service.poll_ready::<Call>());
    let _admitted = task::spawn(service.call(from_user("alice"))).poll();
    let _first = handle.next_request().await.unwrap();

    for (call, status) in [(from_user("alice"), TOO_MANY), (request(&[]), StatusCode::UNAUTHORIZED)]
    {
        assert_ready_ok!(service.poll_ready::<Call>());
        let response = assert_ready_ok!(task::spawn(service.call(call)).poll());
        assert_eq!(response.status(), status);
        assert_pending!(task::spawn(handle.next_request()).poll());
    }
}

#[tokio::test(start_paused = true)]
async fn denial_leaves_the_inner_service_ready() {
    let (mut service, mut handle) = mocked(1, MemoryStore::new());
    handle.allow(2);
    assert_ready_ok!(service.poll_ready::<Call>());
    let _admitted = service.call(from_user("alice"));
    let _first = handle.next_request().await.unwrap();

    assert_ready_ok!(service.poll_ready::<Call>());
    let denied = assert_ready_ok!(task::spawn(service.call(from_user("alice"))).poll());
    assert_eq!(denied.status(), TOO_MANY);
    // The mock panics if it is called without having been ready.
    let _admitted = service.call(from_user("bob"));
    assert_eq!(handle.next_request().await.unwrap().0.headers()["x-user-id"], "bob");
}

/// Counts its clones.
struct Cloned(Arc<AtomicU32>);

impl Clone for Cloned {
    fn clone(&self) -> Self {
        self.0.fetch_add(1, Ordering::Relaxed);
        Self(self.0.clone())
    }
}

impl Service<Call> for Cloned {
    type Response = Reply;
    type Error = Infallible;
    type Future = Ready<Result<Reply, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Call) -> Self::Future {
        ready(Ok(reply("ok")))
    }
}

#[tokio::test(start_paused = true)]
async fn immediate_decision_clones_no_service() {
    let clones = Arc::new(AtomicU32::new(0));
    let layer = by_user(Quota::per_minute(1), MemoryStore::new());
    let mut service = layer.layer(Cloned(clones.clone()));
    let calls = [from_user("alice"), from_user("alice"), request(&[])];
    for (call, status) in calls.into_iter().zip([OK, TOO_MANY, StatusCode::UNAUTHORIZED]) {
        assert_eq!(service.call(call).await.unwrap().status(), status);
    }
    assert_eq!(clones.load(Ordering::Relaxed), 0);
}

/// Responses when the test says so.
#[derive(Clone, Default)]
struct Held(Arc<Mutex<Option<oneshot::Sender<Outcome>>>>);

impl Held {
    fn reply(&self, admitted: bool) {
        let wait = Duration::from_micros(if admitted { 0 } else { 1 });
        let state = QuotaState::new(0, wait, Duration::ZERO);
        let outcome = Outcome::new(admitted, [LogOutcome::new([state])]);
        let reply = self.0.lock().expect("no panic under the lock").take().expect("a check");
        let _ = reply.send(outcome);
    }

    fn store(&self) -> impl Store {
        let held = self.clone();
        let admit = move |_: &Arc<Check>| {
            let (reply, answer) = oneshot::channel();
            *held.0.lock().expect("no panic under the lock") = Some(reply);
            StoreFuture::later(async { Ok(answer.await.expect("an answer")) })
        };
        StubStore(admit, || ())
    }
}

#[tokio::test(start_paused = true)]
async fn inner_waits_for_the_outcome() {
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
}

#[tokio::test(start_paused = true)]
async fn dropped_request_never_reaches_inner() {
    let store = Held::default();
    let (mut service, mut handle) = mocked(1, store.store());
    handle.allow(1);
    assert_ready_ok!(service.poll_ready::<Call>());
    let mut response = task::spawn(service.call(from_user("alice")));
    assert_pending!(response.poll());
    drop(response);
    store.reply(true);
    assert_pending!(task::spawn(handle.next_request()).poll());
}
