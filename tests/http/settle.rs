//! A response settles the budgets of its request: by its head, or by the end of its body, however that ends.

use std::pin::Pin;

use http_body_util::StreamBody;
use tonic::codegen::tokio_stream;

use crate::*;

/// What a request reserves.
const RESERVED: u32 = 400;

fn tokens() -> Policy {
    Policy::new("tokens").quota(Quota::per_minute(1_000)).budget()
}

fn calls() -> Policy {
    Policy::new("calls").quota(Quota::per_minute(10))
}

fn layer(store: impl Store) -> SlidingWindowLayer {
    by_user(tokens(), store).rule(calls(), key::header("x-user-id")).cost(|_| RESERVED)
}

fn sent(end: ResponseEnd<'_>) -> Option<u32> {
    u32::try_from(end.bytes).ok()
}

/// Returns what is left of the tokens and of the calls of alice.
async fn both_left(store: &(impl Store + Clone)) -> (u32, u32) {
    (left(tokens(), store).await, left(calls(), store).await)
}

/// A response that says in a header how many tokens it took.
async fn answer(request: Request<String>) -> Result<Response<Full<Bytes>>, Infallible> {
    let tokens = request.into_body();
    Ok(Response::builder().header("x-tokens", tokens).body(Full::from("an answer")).unwrap())
}

fn answered(tokens: &str) -> Request<String> {
    from_user("alice").map(|_| tokens.to_owned())
}

fn by_head(store: impl Store) -> SlidingWindowLayer {
    let cost = |head: &Response<()>| head.headers()["x-tokens"].to_str().ok()?.parse().ok();
    layer(store).settle_from_head(cost).headers_on_success(true)
}

on_every_store!(head_settles_before_the_response);

async fn head_settles_before_the_response(store: impl Store + Clone) {
    let service = by_head(store.clone()).layer(service_fn(answer));
    for (tokens, expected) in [
        ("70", (930, 9)),
        ("900", (100, 9)),
        ("3000", (0, 9)),
        // A request that was free is still a request.
        ("0", (1_000, 9)),
        ("none", (600, 9)),
    ] {
        let response = call(&service, answered(tokens)).await;
        assert_eq!(both_left(&store).await, expected, "{tokens}");
        let shown = response.headers()["ratelimit"].to_str().unwrap();
        let shown = shown.split([';', ',']).nth(1);
        assert_eq!(shown, Some(&*format!("r={}", expected.0)), "{tokens}");
        for policy in [self::tokens(), calls()] {
            Limiter::new(policy, store.clone()).reset("alice").await.unwrap();
        }
    }
}

/// The first entry that leaves frees no place, and nobody knows which one does.
#[tokio::test(start_paused = true)]
async fn response_names_no_time_above_the_limit() {
    let service = by_head(MemoryStore::new()).layer(service_fn(answer));
    for (tokens, expected) in [("400", r#""tokens";r=600;t=60, "#), ("3000", r#""tokens";r=0, "#)] {
        let response = send(&service, answered(tokens)).await;
        assert!(response.header("ratelimit").unwrap().starts_with(expected), "{response:?}");
        sleep(Duration::from_secs(30)).await;
    }
    let denied = send(&service, answered("1")).await;
    assert_eq!(denied.retry_after(), Some(30), "until the second has left");
}

#[tokio::test]
async fn cancelled_request_is_not_settled() {
    let store = MemoryStore::new();
    let limit = by_head(store.clone()).settle_from_body(0, |_| panic!("nobody asks"));
    let service = limit.cancel_if(|_| true).layer(service_fn(answer));
    send(&service, answered("70")).await;
    assert_eq!(both_left(&store).await, (1_000, 10));
}

#[tokio::test]
async fn request_without_a_response_keeps_its_reservation() {
    let store = MemoryStore::new();
    let failing =
        service_fn(async |_: Request<String>| Err::<Response<Full<Bytes>>, _>("no response"));
    let service = by_head(store.clone()).settle_from_body(0, sent).layer(failing);
    assert_eq!(service.oneshot(answered("70")).await.err(), Some("no response"));
    assert_eq!(both_left(&store).await, (600, 9));
}

/// Sends a request to a service with a body that the test writes, behind a layer.
async fn stream<E: Send + 'static>(
    layer: SlidingWindowLayer,
) -> (Sender<Bytes, E>, impl Body<Data = Bytes, Error = E> + Unpin) {
    let (service, mut bodies) = streaming();
    let response = call(&layer.layer(service), from_user("alice")).await;
    (bodies.recv().await.unwrap(), response.into_body())
}

#[tokio::test(start_paused = true)]
async fn broken_off_stream_pays_what_was_sent() {
    for (fails, whole_only, expected) in
        [(false, false, 990), (false, true, 600), (true, false, 990), (true, true, 600)]
    {
        let store = MemoryStore::new();
        let limit = layer(store.clone()).settle_from_body(0, move |end| {
            assert!(!end.is_complete);
            sent(end).filter(|_| !whole_only)
        });
        let (mut sender, mut body) = stream::<&str>(limit).await;
        sender.send_data(Bytes::from_static(b"0123456789")).await.unwrap();
        body.frame().await.unwrap().unwrap();
        if fails {
            sender.abort("the disk is gone");
            assert_eq!(body.frame().await.unwrap().err(), Some("the disk is gone"));
        } else {
            sender.send_data(Bytes::from_static(b"unread")).await.unwrap();
            drop(body);
        }
        assert_eq!(both_left(&store).await, (expected, 9), "the body fails: {fails}");
    }
}

#[tokio::test(start_paused = true)]
async fn tail_has_the_last_bytes() {
    for (tail, frames, expected) in [
        (0, &["abc", "def"][..], ""),
        (4, &["abc", "def"], "cdef"),
        (4, &["a", "b"], "ab"),
        (3, &["ab", "", "cdefgh", "i"], "ghi"),
        (100, &["abc", "def"], "abcdef"),
        (2, &[], ""),
    ] {
        let store = MemoryStore::new();
        let length = frames.concat().len() as u64;
        let limit = layer(store.clone()).settle_from_body(tail, move |end| {
            let whole = (end.tail, end.bytes, end.is_complete);
            (whole == (expected.as_bytes(), length, true)).then_some(1)
        });
        let (mut sender, mut body) = stream::<Infallible>(limit).await;
        for frame in frames {
            sender.send_data(Bytes::from_static(frame.as_bytes())).await.unwrap();
            body.frame().await.unwrap().unwrap();
        }
        sender.send(Frame::trailers(HeaderMap::new())).await.unwrap();
        drop(sender);
        body.collect().await.unwrap();
        assert_eq!(both_left(&store).await, (999, 9), "{frames:?}");
    }
}

#[tokio::test]
async fn end_of_the_body_has_the_last_word() {
    for (tokens, until_then, end, expected) in [
        ("70", 930, Some(9), 991),
        ("70", 930, None, 930),
        // A head that knows of no cost yet.
        ("0", 600, Some(9), 991),
        ("0", 600, None, 1_000),
    ] {
        let store = MemoryStore::new();
        let limit = by_head(store.clone()).settle_from_body(0, move |it| sent(it).and(end));
        let response = call(&limit.layer(service_fn(answer)), answered(tokens)).await;
        assert_eq!(both_left(&store).await, (until_then, 9));
        // The body knows that this frame is the last one, and a server reads no further.
        response.into_body().frame().await.unwrap().unwrap();
        assert_eq!(both_left(&store).await, (expected, 9), "{tokens}, then {end:?}");
    }
}

/// The end of the stream arrives between two polls, as that of a `hyper::body::Incoming` over HTTP/2 may.
struct Relayed {
    data: Option<Bytes>,
    ends: Instant,
}

impl Body for Relayed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.data.take().map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_none() && self.ends <= Instant::now()
    }
}

#[tokio::test(start_paused = true)]
async fn end_between_two_polls_is_an_end() {
    let store = MemoryStore::new();
    let whole = |end: ResponseEnd<'_>| if end.is_complete { sent(end) } else { None };
    let service = layer(store.clone()).settle_from_body(0, whole).layer(service_fn(async |_| {
        let ends = Instant::now() + Duration::from_secs(1);
        Ok::<_, Infallible>(Response::new(Relayed { data: Some("0123456789".into()), ends }))
    }));
    let mut body = call(&service, from_user("alice")).await.into_body();
    body.frame().await.unwrap().unwrap();
    sleep(Duration::from_secs(1)).await;
    // As hyper does after each frame.
    if !body.is_end_stream() {
        assert!(body.frame().await.is_none());
    }
    drop(body);
    assert_eq!(left(tokens(), &store).await, 990, "it was read to its end");
}

/// The body is empty, or the client hangs up while the store settles what the head has told.
#[tokio::test(start_paused = true)]
async fn end_of_the_body_overtakes_the_head_nowhere() {
    for hangs_up in [false, true] {
        // The second one overtakes the first, as calls to Redis may.
        let delays = [20, 10].map(Duration::from_millis);
        let settlements = Arc::new(Mutex::new(delays.into()));
        let store = Delayed { settlements, ..Delayed::default() };
        let limit = by_head(store.clone()).settle_from_body(0, |_| Some(7));
        let empty = service_fn(move |request| async move {
            let response = answer(request).await?;
            let body = |body| if hangs_up { body } else { Full::default() };
            Ok::<_, Infallible>(response.map(body))
        });
        let response = limit.layer(empty).oneshot(answered("70"));
        let answered = timeout(Duration::from_millis(5), response).await;
        assert!(answered.is_err(), "the head is settled before the response");
        sleep(Duration::from_millis(50)).await;
        assert_eq!(both_left(&store).await, (993, 9), "{hangs_up}");
    }
}

/// A client may name the cost, such as by the length of its body.
#[tokio::test(start_paused = true)]
async fn request_that_reserves_nothing_is_settled_all_the_same() {
    let store = MemoryStore::new();
    let service = by_head(store.clone()).cost(|_| 0).layer(service_fn(answer));
    let response = send(&service, answered("70")).await;
    assert!(
        response.header("ratelimit").unwrap().starts_with(r#""tokens";r=930;"#),
        "{response:?}"
    );
    assert_eq!(both_left(&store).await, (930, 9));
    assert_eq!(send(&service, answered("930")).await.status, OK);
    assert_eq!(send(&service, answered("70")).await.status, TOO_MANY, "the budget is full");
}

/// A client may name the cost, and the budget of a key may be exempt.
#[tokio::test(start_paused = true)]
async fn request_that_takes_no_budget_counts_in_other_rules() {
    let seen = Policy::new("seen").quota(Quota::per_minute(20)).distinct();
    let free = layer(MemoryStore::new())
        .rule_distinct(seen, key::header("x-user-id"), key::header("x-value"))
        .cost(|_| 0);
    let budget = Overrides::new(tokens());
    budget.set("alice", "exempt".parse().unwrap()).unwrap();
    let exempt = alone(calls())
        .rule_choosing(move |_, user| budget.get(user), key::header("x-user-id"))
        .cost(|_| RESERVED);
    for layer in [free, exempt] {
        let service = layer.layer(service_fn(ok));
        for number in 0..20 {
            let mut request = from_user("alice");
            request.headers_mut().insert("x-value", number.into());
            let status = send(&service, request).await.status;
            assert_eq!(status == OK, number < 10, "request {number}: {status}");
        }
    }
}

/// A second panic while the first one unwinds would end the whole process. The reservation stays, also if the head said 0.
#[tokio::test]
async fn panic_of_the_closure_during_a_panic_of_the_body_ends_no_process() {
    for head in [None, Some(0)] {
        let store = MemoryStore::new();
        // As the stream of a handler may.
        let panics = service_fn(async |_: Request<String>| {
            let frames = std::iter::from_fn(|| -> Option<Result<Frame<Bytes>, Infallible>> {
                panic!("the stream")
            });
            Ok::<_, Infallible>(Response::new(StreamBody::new(tokio_stream::iter(frames))))
        });
        let service = layer(store.clone())
            .settle_from_head(move |_| head)
            .settle_from_body(100, |end| {
                assert!(end.is_complete, "the closure expects the last event of a stream");
                Some(1)
            })
            .layer(panics);
        let response = call(&service, from_user("alice")).await;
        // As a connection of hyper runs: it owns the body, and tokio catches the panic.
        let connection = tokio::spawn(async move { response.into_body().frame().await.is_some() });
        assert!(connection.await.unwrap_err().is_panic());
        assert_eq!(both_left(&store).await, (600, 9), "{head:?}: the reservation stays");
    }
}
