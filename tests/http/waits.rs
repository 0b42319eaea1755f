//! A request that would be denied waits for room, up to a bound.

use tower_sliding_window::store::{LogOutcome, Outcome, QuotaState};

use crate::*;

const TEN: Duration = Duration::from_secs(10);
const HOUR: Duration = Duration::from_secs(3600);
const ALICE: [(&str, &str); 1] = [("x-user-id", "alice")];
const A_MOMENT: Duration = Duration::from_millis(1);

/// Sends a request in a task, and returns once it waits.
async fn start<S, B>(service: &S, headers: &[(&str, &str)]) -> JoinHandle<(HttpResponse, Duration)>
where
    S: Service<Request<String>, Response = Response<B>, Error: Debug, Future: Send>,
    S: Clone + Send + Sync + 'static,
    B: Body<Data: Send, Error: Debug> + Send,
{
    let (service, request, began) = (service.clone(), request(headers), Instant::now());
    let sent = tokio::spawn(async move {
        let response = send(&service, request).await;
        (response, began.elapsed())
    });
    sleep(A_MOMENT).await;
    sent
}

fn one_in_ten() -> SlidingWindowLayer {
    alone(Quota::new(1, TEN)).max_wait(TEN * 3)
}

#[tokio::test(start_paused = true)]
async fn too_many_waiting_requests_are_denied_at_once() {
    let service = one_in_ten().max_waiters(1).layer(service_fn(ok));
    for user in ["alice", "bob"] {
        assert_eq!(status(&service, user).await, OK);
    }
    let began = Instant::now();
    let waiting = start(&service, &ALICE).await;
    let third = send(&service, from_user("alice")).await;
    assert_eq!((third.status, third.retry_after()), (TOO_MANY, Some(20)), "behind the second");
    let other = send(&service, from_user("bob")).await;
    assert_eq!((other.status, other.retry_after()), (TOO_MANY, Some(10)), "all keys together");
    assert_eq!(status(&service, "carol").await, OK, "there is no need to wait");
    assert_eq!(began.elapsed(), A_MOMENT);
    let (response, took) = waiting.await.unwrap();
    assert_eq!((response.status, took), (OK, TEN));
}

/// The first request has been admitted, and the check of the second one is under way.
#[tokio::test(start_paused = true)]
async fn one_too_many_is_denied_by_a_peek() {
    for (peeked, expected) in [(TEN, 30), (Duration::ZERO, 1)] {
        let calls = AtomicUsize::new(0);
        let reply = move |_: &Check| {
            let (places, wait) = match calls.fetch_add(1, Ordering::Relaxed) {
                // The second one looks at its logs.
                0 | 1 => (0, TEN),
                2 => (0, Duration::ZERO),
                3 => return StoreFuture::later(std::future::pending()),
                // There is room for many, of which two wait.
                _ if peeked.is_zero() => (9, peeked),
                _ => (0, peeked),
            };
            let logs = [(9, Duration::ZERO), (places, wait)];
            let logs =
                logs.map(|(places, wait)| LogOutcome::new([QuotaState::new(places, wait, wait)]));
            StoreFuture::ready(Ok(Outcome::new(wait.is_zero(), logs)))
        };
        let all = Policy::new("all").quota(Quota::new(1, TEN));
        let layer = by_user(Quota::new(9, TEN), StubStore(reply));
        let layer = layer.rule(all, key::constant("everybody")).max_wait(TEN * 3);
        let service = layer.max_waiters(2).layer(service_fn(ok));
        let (first, second) = (start(&service, &ALICE).await, start(&service, &ALICE).await);
        assert_eq!(first.await.unwrap().0.status, OK);
        sleep(A_MOMENT).await;
        let third = start(&service, &ALICE).await;
        let fourth = send(&service, from_user("bob")).await;
        assert_eq!((fourth.status, fourth.retry_after()), (TOO_MANY, Some(expected)), "behind two");
        let violated = &fourth.document()["violated-policies"];
        assert_eq!(*violated, serde_json::json!(["all"]), "the log that they wait for");
        assert!(!second.is_finished() && !third.is_finished());
    }
}

#[tokio::test(start_paused = true)]
async fn changed_policy_ends_the_wait() {
    let users = Overrides::new(Policy::new("user").quota(Quota::new(1, HOUR)).keep_for(HOUR * 20));
    let of_user = users.clone();
    let layer = SlidingWindowLayer::choosing(
        move |_, key| of_user.get(key),
        key::header("x-user-id"),
        MemoryStore::new(),
    );
    let service = layer.max_wait(HOUR * 9).layer(service_fn(ok));
    for (user, change, status) in
        [("alice", "2/1h", OK), ("bob", "exempt", OK), ("carol", "1/20h", TOO_MANY)]
    {
        assert_eq!(self::status(&service, user).await, OK);
        let waiting = start(&service, &[("x-user-id", user)]).await;
        users.set(user, change.parse().unwrap()).unwrap();
        let (response, took) = waiting.await.unwrap();
        assert_eq!((response.status, took), (status, Duration::from_secs(1)), "{user}");
    }
}

#[tokio::test(start_paused = true)]
async fn banned_muted_and_impossible_requests_do_not_wait() {
    let began = Instant::now();
    let policy = Policy::new("user").quota(Quota::new(1, TEN)).penalty("1/10m:1h".parse().unwrap());
    let banned = alone(policy).max_wait(HOUR * 2);
    let muted = banned.clone().on_ban(OnBan::Mute).layer(service_fn(ok));
    let banned = banned.layer(service_fn(ok));
    assert_eq!(status(&banned, "alice").await, OK);
    // The denial of the first check is the strike that bans the key.
    for _ in 0..2 {
        let response = send(&banned, from_user("alice")).await;
        assert_eq!((response.status.as_u16(), response.retry_after()), (403, Some(3_600)));
        assert_eq!(status(&muted, "alice").await, OK, "the client does not notice");
    }
    let budget = Policy::from(Quota::new(1, TEN)).budget();
    let costly = alone(budget).max_wait(TEN).cost(|_| 3).layer(service_fn(ok));
    let response = send(&costly, from_user("alice")).await;
    assert_eq!((response.status, response.retry_after()), (TOO_MANY, None));
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn shadow_mode_does_not_wait() {
    let decisions = Arc::new(Mutex::new(Vec::new()));
    let seen = decisions.clone();
    let layer = one_in_ten().on_decision(move |it| seen.lock().unwrap().push(it.is_admitted()));
    let (began, shadow) = (Instant::now(), layer.clone().shadow(true).layer(service_fn(ok)));
    for _ in 0..2 {
        assert_eq!(status(&shadow, "alice").await, OK);
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(*decisions.lock().unwrap(), [true, false]);
    assert_eq!(status(&layer.layer(service_fn(ok)), "alice").await, OK);
    assert_eq!(began.elapsed(), TEN);
    assert_eq!(*decisions.lock().unwrap(), [true, false, true], "the last decision only");
}

/// It is denied at once, also behind others.
#[tokio::test(start_paused = true)]
async fn banned_request_takes_no_place_among_those_that_wait() {
    let (user, network) = (
        Policy::new("user").quota(Quota::new(1, TEN)),
        Policy::new("network").quota(Quota::new(9, HOUR)).penalty(Penalty::manual()),
    );
    let store = MemoryStore::new();
    let bans = Bans::new(network.clone(), store.clone());
    bans.impose("banned", TEN / 2, "").await.unwrap();
    let layer = by_user(user, store).rule(network, key::header("x-network"));
    let service = layer.max_wait(TEN * 2 + TEN / 2).layer(service_fn(ok));
    let mut sent = Vec::new();
    for network in ["good", "good", "banned", "good"] {
        sent.push(start(&service, &[("x-user-id", "alice"), ("x-network", network)]).await);
    }
    assert!(sent[2].is_finished());
    // There is room for the last one in 20 s, because the banned one takes no place.
    for (sent, status) in sent.into_iter().zip([OK, OK, StatusCode::FORBIDDEN, OK]) {
        assert_eq!(sent.await.unwrap().0.status, status);
    }
}

/// As without a wait.
#[tokio::test(start_paused = true)]
async fn failed_store_ends_the_wait() {
    let fails = StubStore(|_: &Check| StoreFuture::ready(Err(StoreError::Timeout)));
    let failed = StatusCode::SERVICE_UNAVAILABLE;
    for (policy, expected) in [(FailurePolicy::Closed, failed), (FailurePolicy::Open, OK)] {
        let layer = by_user(Quota::new(1, TEN), fails.clone()).max_wait(TEN).failure_policy(policy);
        assert_eq!(status(&layer.layer(service_fn(ok)), "alice").await, expected);
    }
}
