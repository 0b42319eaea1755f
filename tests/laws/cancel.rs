//! Counting by response: a place is freed exactly when the layer says so, and a cancellation is not
//! lost with its request.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use test_support::proxy::{Fault, Proxy};
use test_support::requests::by_user;
use test_support::{Redis, StubStore, eventually};
use tokio::io::AsyncWriteExt;
use tokio::time::sleep;
use tokio_test::{assert_pending, task};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sliding_window::store::{Check, LogOutcome, Outcome, QuotaState, Store, StoreFuture};
use tower_sliding_window::{
    Decision, Limiter, MemoryStore, Policy, Quota, RedisStore, SlidingWindowLayer,
};

const SECOND: Duration = Duration::from_secs(1);

fn limiter(store: impl Store) -> Limiter {
    Limiter::new(Quota::per_minute(3), store)
}

fn layer(store: impl Store) -> SlidingWindowLayer {
    by_user(Quota::per_minute(3), store).cancel_if(|response| response.status() == StatusCode::GONE)
}

fn request(wanted: &str) -> Request<String> {
    Request::builder().header("x-user-id", "alice").body(wanted.to_owned()).unwrap()
}

/// Responses with the status in the body, fails on `fail`, and never answers on `hang`.
async fn handler(request: Request<String>) -> Result<Response<String>, &'static str> {
    match request.body().as_str() {
        "fail" => Err("the handler failed"),
        "hang" => std::future::pending().await,
        status => Ok(Response::builder().status(status).body("body".to_owned()).unwrap()),
    }
}

test_support::on_every_store!(
    response_can_free_the_place,
    hang_up_keeps_its_place,
    cancel_unanswered_frees_the_place,
    candidates_use_the_enforced_log,
);

async fn response_can_free_the_place(store: impl Store + Clone) {
    let (limiter, service) = (limiter(store.clone()), layer(store).layer(service_fn(handler)));
    let remaining = async || limiter.peek("alice").await.unwrap().remaining();

    for _ in 0..10 {
        let response = service.clone().oneshot(request("410")).await.unwrap();
        assert_eq!(response.status(), StatusCode::GONE);
        assert_eq!(remaining().await, 3, "at once, not some time later");
    }
    service.clone().oneshot(request("200")).await.unwrap();
    assert_eq!(remaining().await, 2, "other answers are charged");
    assert_eq!(service.clone().oneshot(request("fail")).await.unwrap_err(), "the handler failed");
    assert_eq!(remaining().await, 1, "the handler ran, so the request counts");
}

async fn hang_up_keeps_its_place(store: impl Store + Clone) {
    let (limiter, service) = (limiter(store.clone()), layer(store).layer(service_fn(handler)));
    for left in [2, 1, 0] {
        let mut hanging = task::spawn(service.clone().oneshot(request("hang")));
        while limiter.peek("alice").await.unwrap().remaining() > left {
            assert_pending!(hanging.poll());
        }
        assert_pending!(hanging.poll(), "the handler runs");
        drop(hanging);
        sleep(Duration::from_millis(50)).await;
        assert_eq!(limiter.peek("alice").await.unwrap().remaining(), left);
    }
    let denied = service.oneshot(request("200")).await.unwrap();
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
}

async fn cancel_unanswered_frees_the_place(store: impl Store + Clone) {
    let layer = layer(store.clone()).cancel_unanswered(true);
    let (limiter, service) = (limiter(store), layer.layer(service_fn(handler)));
    assert_eq!(service.clone().oneshot(request("fail")).await.unwrap_err(), "the handler failed");
    assert_eq!(limiter.peek("alice").await.unwrap().remaining(), 3, "no answer, no charge");
    let mut hanging = Box::pin(service.clone().oneshot(request("hang")));
    let waits = tokio::time::timeout(Duration::from_millis(300), &mut hanging).await;
    assert!(waits.is_err());
    assert_eq!(limiter.peek("alice").await.unwrap().remaining(), 2, "charged while it runs");
    drop(hanging);
    eventually("it is cancelled", async || limiter.peek("alice").await.unwrap().remaining() == 3)
        .await;
}

/// The client hangs up after Redis has admitted the request and before the reply arrives, so there is
/// nothing to cancel yet.
#[tokio::test]
async fn hang_up_before_the_outcome_frees_the_place() {
    let redis = Redis::start().await;
    let proxy = Proxy::to(redis.port()).await;
    let builder = RedisStore::builder().response_timeout(SECOND);
    let behind_proxy = builder.connect(&proxy.url()).await.unwrap();
    let limiter = limiter(redis.store().await);
    let has = async |places| limiter.peek("alice").await.unwrap().remaining() == places;
    proxy.set(Fault::Delay(SECOND / 2));
    let request =
        tokio::spawn(layer(behind_proxy).layer(service_fn(handler)).oneshot(request("200")));
    eventually("the place is taken", async || has(2).await).await;
    request.abort();
    assert!(request.await.unwrap_err().is_cancelled(), "before the reply");
    eventually("the place is free", async || has(3).await).await;
}

#[tokio::test(start_paused = true)]
async fn unanswered_requests_need_no_cancel_if() {
    let store = MemoryStore::new();
    let layer = by_user(Quota::per_minute(3), store.clone()).cancel_unanswered(true);
    let service = layer.layer(service_fn(handler));
    service.clone().oneshot(request("fail")).await.unwrap_err();
    assert_eq!(limiter(store.clone()).peek("alice").await.unwrap().remaining(), 3);
    service.clone().oneshot(request("500")).await.unwrap();
    assert_eq!(limiter(store).peek("alice").await.unwrap().remaining(), 2, "500 is a response");
}

/// Admits and cancels when the test lets it, and writes down in which order.
#[derive(Clone, Default)]
struct Slow {
    lets_go: Arc<tokio::sync::Notify>,
    done: Arc<Mutex<Vec<&'static str>>>,
    denies: bool,
}

impl Slow {
    fn done(&self) -> Vec<&'static str> {
        self.done.lock().unwrap().clone()
    }

    fn store(&self) -> impl Store {
        let (slow, cancelled) = (self.clone(), self.done.clone());
        let admit = move |_: &Check| {
            let slow = slow.clone();
            StoreFuture::later(async move {
                slow.lets_go.notified().await;
                slow.done.lock().unwrap().push("admit");
                let wait = Duration::from_micros(slow.denies.into());
                let state = QuotaState::new(0, wait, Duration::ZERO);
                Ok(Outcome::new(!slow.denies, [LogOutcome::new([state])]))
            })
        };
        StubStore(admit, move || cancelled.lock().unwrap().push("cancel"))
    }
}

#[tokio::test(start_paused = true)]
async fn cancellation_follows_its_admission() {
    for (denies, expected) in [(false, &["admit", "cancel"][..]), (true, &["admit"])] {
        let store = Slow { denies, ..Slow::default() };
        let service = layer(store.store()).layer(service_fn(handler));
        let mut pending = task::spawn(service.oneshot(request("200")));
        assert_pending!(pending.poll());
        drop(pending);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(store.done(), Vec::<&str>::new(), "the decision is still under way");
        store.lets_go.notify_one();
        sleep(Duration::from_secs(1)).await;
        assert_eq!(store.done(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn hang_up_cancels_nothing_by_default() {
    let store = Slow::default();
    let layer = by_user(Quota::per_minute(3), store.store());
    let mut pending = task::spawn(layer.layer(service_fn(handler)).oneshot(request("200")));
    assert_pending!(pending.poll());
    drop(pending);
    store.lets_go.notify_one();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(store.done(), Vec::<&str>::new());
}

/// A client that closes its socket a millisecond after each request, 1,000 times.
#[tokio::test]
async fn hang_up_gives_no_second_run() {
    let ran = Arc::new(AtomicUsize::new(0));
    let counter = ran.clone();
    let handler = async move || {
        counter.fetch_add(1, Ordering::SeqCst);
        std::future::pending::<()>().await;
    };
    let layer = by_user(Quota::per_hour(1), MemoryStore::new())
        .cancel_if(|response| response.status() == StatusCode::GONE);
    let app = axum::Router::new().route("/", axum::routing::get(handler)).layer(layer);
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    for _ in 0..1_000 {
        let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
        socket.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nx-user-id: eve\r\n\r\n").await.unwrap();
        sleep(Duration::from_millis(1)).await;
        drop(socket);
    }
    server.abort();
    assert_eq!(ran.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn every_admission_counts_by_default() {
    let store = MemoryStore::new();
    let layer = by_user(Quota::per_minute(3), store.clone());
    let service = layer.layer(service_fn(handler));
    service.clone().oneshot(request("410")).await.unwrap();
    service.clone().oneshot(request("fail")).await.unwrap_err();
    let hanging =
        tokio::time::timeout(Duration::from_secs(1), service.clone().oneshot(request("hang")));
    assert!(hanging.await.is_err());
    assert_eq!(limiter(store).peek("alice").await.unwrap().remaining(), 0);
}

#[tokio::test(start_paused = true)]
async fn shadow_mode_only_reports_denials() {
    let store = MemoryStore::new();
    let denied = Arc::new(AtomicUsize::new(0));
    let counter = denied.clone();
    let layer =
        by_user(Quota::per_minute(3), store.clone()).shadow(true).on_decision(move |decision| {
            counter.fetch_add(usize::from(!decision.is_admitted()), Ordering::Relaxed);
        });
    let mut service = layer.layer(service_fn(async |request: Request<String>| {
        let decision = request.extensions().get::<Decision>();
        let seen =
            decision.map_or("none", |it| if it.is_admitted() { "admitted" } else { "denied" });
        Ok::<_, &'static str>(Response::new(seen.to_owned()))
    }));
    let mut seen = Vec::new();
    for _ in 0..5 {
        let response = service.ready().await.unwrap().call(request("")).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert!(!response.headers().contains_key("retry-after"));
        seen.push(http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes());
    }
    assert_eq!(seen, ["admitted", "admitted", "admitted", "denied", "denied"]);
    assert_eq!(denied.load(Ordering::Relaxed), 2);
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(
        limiter(store).peek("alice").await.unwrap().remaining(),
        3,
        "refusals left no trace"
    );

    let without_key = Request::new(String::new());
    let response = service.ready().await.unwrap().call(without_key).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
}

async fn candidates_use_the_enforced_log(store: impl Store) {
    let policy = Policy::new("user").quota(Quota::per_minute(5)).candidate(Quota::per_minute(2));
    let limiter = Limiter::new(policy.candidate(Quota::per_hour(4)), store);
    let mut would_refuse = Vec::new();
    for _ in 0..6 {
        let decision = limiter.check("alice").await.unwrap();
        let refusals = decision.usage().candidates().map(|(_, _, state)| state.is_full());
        would_refuse.push((decision.is_admitted(), refusals.collect::<Vec<_>>()));
    }
    let expected = [
        (true, vec![false, false]),
        (true, vec![false, false]),
        (true, vec![true, false]),
        (true, vec![true, false]),
        (true, vec![true, true]),
        (false, vec![true, true]),
    ];
    assert_eq!(would_refuse, expected);
}
