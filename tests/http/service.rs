//! The service and the one it wraps: readiness, errors, and when the inner one is called.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tokio::sync::oneshot;
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
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
        let wait = Duration::from_micros(if admitted { 0 } else { 1 });
        let state = QuotaState::new(0, wait, Duration::ZERO);
        let outcome = Outcome::new(admitted, [LogOutcome::new([state])]);
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
