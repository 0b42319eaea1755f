//! Callers that wait are admitted as soon as there is room, in the order of their arrival. A wait may end
//! without an admission, and many that wait cost the store no more than one.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use crate::*;

const TEN: Duration = Duration::from_secs(10);
const HOUR: Duration = Duration::from_secs(3600);
const A_SECOND: Duration = Duration::from_secs(1);
const A_MOMENT: Duration = Duration::from_millis(1);
/// More than a busy machine needs for what should take no time.
const AT_ONCE: Duration = Duration::from_secs(20);

test_support::on_every_store!(
    as_many_wait_as_fit_into_the_bound_and_in_order,
    cancellation_ends_the_wait,
);

/// On a real clock, on which each pair is a little later than its place. Windows so long that a busy machine is not
/// later than a twentieth.
async fn as_many_wait_as_fit_into_the_bound_and_in_order(store: impl Store) {
    let window = Duration::from_secs(3);
    let limiter = limiter(Quota::new(2, window), store);
    let (ended, mut tasks) = (Arc::new(Mutex::new(Vec::new())), JoinSet::new());
    for number in 0..7 {
        let (limiter, ended) = (limiter.clone(), ended.clone());
        tasks.spawn(async move {
            let admitted = limiter.until_admitted_within("bob", 2 * window).await;
            ended.lock().unwrap().push((number, admitted.ok().and_then(|it| it.timestamp())));
        });
    }
    tasks.join_all().await;
    let ended = ended.lock().unwrap();
    let admitted: Vec<_> = ended.iter().filter_map(|(it, at)| Some((*it, (*at)?))).collect();
    assert_eq!(admitted.len(), 6, "{ended:?}");
    assert!(admitted.is_sorted() && admitted.is_sorted_by_key(|it| it.1), "{ended:?}");
    for (before, after) in admitted.iter().zip(&admitted[2..]) {
        assert!(after.1 - before.1 >= window, "{ended:?}");
    }
}

async fn cancellation_ends_the_wait(store: impl Store) {
    let limiter = limiter(Quota::new(1, HOUR), store);
    let admitted = limiter.until_admitted("bob").await.unwrap();
    let (cancels, start) = (limiter.clone(), Instant::now());
    tokio::spawn(async move {
        sleep(Duration::from_millis(50)).await;
        assert!(cancels.cancel(&admitted).await.unwrap());
    });
    assert!(limiter.until_admitted("bob").await.is_ok());
    assert!(start.elapsed() < A_SECOND + AT_ONCE, "{:?}", start.elapsed());
}

type Waiter = JoinHandle<Result<Admitted, WaitError>>;

/// Starts to wait for a place in several logs, or for what a request costs there, and returns once the wait has begun.
async fn waits<const N: usize>(
    limiter: &Limiter,
    logs: [(&PolicyHandle, impl Into<Key>, u32); N],
    max_wait: Option<Duration>,
) -> Waiter {
    let limiter = limiter.clone();
    let logs = logs.map(|(policy, key, cost)| (policy.clone(), key.into(), cost));
    begun(async move { limiter.until_admitted_all(|| logs.clone(), max_wait).await }).await
}

/// Does the same for a place of the limiter's policy.
async fn waiter(limiter: &Limiter, max_wait: Option<Duration>) -> Waiter {
    let (limiter, max_wait) = (limiter.clone(), max_wait.unwrap_or(Duration::MAX));
    begun(async move { limiter.until_admitted_within("bob", max_wait).await }).await
}

async fn begun(wait: impl Future<Output = Result<Admitted, WaitError>> + Send + 'static) -> Waiter {
    let waiter = tokio::spawn(wait);
    sleep(A_MOMENT).await;
    waiter
}

/// Returns when a caller that waits is admitted.
async fn admitted_at(waiter: Waiter) -> Duration {
    waiter.await.unwrap().unwrap().timestamp().unwrap()
}

/// Returns how long a caller whose wait ends without an admission has to wait.
async fn told(waiter: Waiter) -> Duration {
    waiter.await.unwrap().unwrap_err().denied().unwrap().retry_after()
}

fn one_in_ten(store: impl Store) -> Limiter {
    Limiter::new(Quota::new(1, TEN), store)
}

/// A store that sends these replies in turn: how long a check has to wait, or an error.
fn replies<const N: usize>(replies: [Result<Duration, StoreError>; N]) -> impl Store {
    let replies = Mutex::new(VecDeque::from(replies));
    StubStore(move |_: &Check| {
        let reply = replies.lock().unwrap().pop_front().expect("a reply");
        StoreFuture::ready(reply.map(outcome))
    })
}

/// Returns a limiter of one request in ten seconds whose log is full.
async fn full(store: impl Store) -> Limiter {
    let limiter = one_in_ten(store);
    assert!(admit(&limiter, "bob").await);
    limiter
}

fn policy(name: &str, limit: u32, window: Duration) -> PolicyHandle {
    PolicyHandle::new(Policy::new(name).quota(Quota::new(limit, window)))
}

/// A limiter of one request in flight.
fn jobs() -> Limiter {
    Limiter::new(Policy::new("jobs").quota(Quota::new(1, TEN)).in_flight(), MemoryStore::new())
}

#[tokio::test(start_paused = true)]
async fn later_caller_does_not_overtake() {
    let policy = PolicyHandle::new(Quota::new(1, HOUR));
    let limiter = Limiter::new(&policy, MemoryStore::new());
    assert!(admit(&limiter, "bob").await);
    let first = waiter(&limiter, None).await;
    policy.set(Quota::new(2, HOUR)).unwrap();
    // There is room, and the first waiter does not know it yet.
    let second = limiter.until_admitted_within("bob", HOUR * 2).await.unwrap();
    let first = first.await.unwrap().unwrap();
    assert_eq!(first.timestamp(), Some(A_SECOND), "it checks again after a second");
    assert_eq!(second.timestamp(), Some(HOUR));
}

#[tokio::test(start_paused = true)]
async fn only_the_first_waiter_checks() {
    let store = Delayed::default();
    let limiter = full(store.clone()).await;
    let mut waiters = Vec::new();
    for _ in 0..50 {
        waiters.push(waiter(&limiter, None).await);
    }
    assert_eq!(store.checks(), 2, "the admission, and the denial of the first");
    sleep(Duration::from_millis(5_500) - 50 * A_MOMENT).await;
    assert_eq!(store.checks(), 7, "once a second, however many wait");
    assert!(waiters.iter().all(|it| !it.is_finished()));
    waiters[0].abort();
    sleep(A_SECOND).await;
    assert_eq!(store.checks(), 8, "the next one goes on");
}

#[tokio::test(start_paused = true)]
async fn bound_counts_their_costs() {
    let policy = PolicyHandle::new(Policy::from(Quota::new(4, TEN)).budget());
    let limiter = Limiter::new(&policy, MemoryStore::new());
    assert!(limiter.check_cost("bob", 4).await.unwrap().is_admitted());
    let _first = waits(&limiter, [(&policy, "bob", 3)], None).await;
    let [fits, too_much] = [1, 2].map(|cost| {
        let policy = &policy;
        let logs = move || [(policy, "bob", cost)];
        limiter.until_admitted_all(logs, Some(TEN + A_MOMENT))
    });
    let (fits, too_much) = tokio::join!(fits, too_much);
    assert_eq!(fits.unwrap().timestamp(), Some(TEN), "both fit together");
    assert_eq!(too_much.unwrap_err().retry_after(), Some(TEN * 2 - A_MOMENT));
}

#[tokio::test(start_paused = true)]
async fn stricter_policy_ends_a_bounded_wait() {
    let policy = Policy::from(Quota::new(1, TEN)).keep_for(TEN * 2);
    let policy = PolicyHandle::new(policy);
    let limiter = Limiter::new(&policy, MemoryStore::new());
    assert!(admit(&limiter, "bob").await);
    let start = Instant::now();
    let _first = waiter(&limiter, None).await;
    let second = waiter(&limiter, Some(TEN * 3)).await;
    let third = waiter(&limiter, None).await;
    policy.set(Quota::new(1, TEN * 2)).unwrap();
    let error = second.await.unwrap().unwrap_err();
    // What is known of other quotas than its own is only that the first one is before it.
    assert_eq!(start.elapsed(), TEN * 2, "at its own check");
    assert_eq!(error.retry_after(), Some(TEN * 2));
    third.await.unwrap().unwrap();
    assert_eq!(start.elapsed(), TEN * 4, "its place is that of the second");
}

#[tokio::test(start_paused = true)]
async fn too_many_waiters_is_an_error_at_once() {
    let limiter = full(MemoryStore::new()).await.max_waiters(2);
    let waiters = [waiter(&limiter, None).await, waiter(&limiter, None).await];
    let error = limiter.until_admitted("bob").await.unwrap_err();
    assert!(matches!(error, WaitError::TooManyWaiters { most: 2 }), "{error}");
    let error = limiter.until_admitted_within("bob", TEN / 2).await.unwrap_err();
    assert!(matches!(error, WaitError::Denied(_)), "its own bound comes first: {error}");
    assert!(limiter.until_admitted("ann").await.is_ok(), "there is no need to wait");
    let error = limiter.until_admitted("ann").await.unwrap_err();
    assert!(matches!(error, WaitError::TooManyWaiters { .. }), "all keys together: {error}");
    waiters[1].abort();
    sleep(A_MOMENT).await;
    let last = waiter(&limiter, None).await;
    assert!(!last.is_finished());
    assert!(full(MemoryStore::new()).await.max_waiters(0).until_admitted("bob").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn store_error_ends_one_wait() {
    let limiter = one_in_ten(replies([Ok(TEN), Err(StoreError::Timeout), Ok(Duration::ZERO)]));
    let [first, second] = [waiter(&limiter, None).await, waiter(&limiter, None).await];
    let error = first.await.unwrap().unwrap_err();
    assert!(matches!(error, WaitError::Store(StoreError::Timeout)), "{error}");
    let admitted = Instant::now();
    assert!(second.await.unwrap().is_ok());
    assert_eq!(admitted.elapsed(), Duration::ZERO, "it checks at once");
}

#[tokio::test(start_paused = true)]
async fn drop_during_a_check_leaves_no_trace_and_lets_the_next_go_on() {
    let hold = Arc::new(Notify::new());
    let store = Delayed { hold: Some(hold.clone()), ..Delayed::default() };
    let limiter = one_in_ten(store.clone());
    let dropped = waiter(&limiter, None).await;
    let remaining = async || limiter.peek("bob").await.unwrap().remaining();
    assert_eq!(remaining().await, 0, "its reply is under way");
    let next = waiter(&limiter, None).await;
    dropped.abort();
    sleep(A_MOMENT).await;
    hold.notify_one();
    sleep(A_MOMENT).await;
    let (start, checks) = (Instant::now(), store.checks());
    for _ in 0..3 {
        hold.notify_one();
        sleep(A_SECOND).await;
    }
    assert!(next.await.unwrap().is_ok(), "in the place that is free again");
    assert!(start.elapsed() < TEN && store.checks() - checks <= 1);
}

/// A sender of four a minute and receivers of one in ten seconds.
struct Messages {
    limiter: Limiter,
    store: Delayed,
    sender: PolicyHandle,
    receiver: PolicyHandle,
}

impl Messages {
    fn new() -> Self {
        let store = Delayed::default();
        let (sender, receiver) = (policy("sender", 4, TEN * 6), policy("receiver", 1, TEN));
        let limiter = Limiter::new(&sender, store.clone());
        Self { limiter, store, sender, receiver }
    }

    /// Starts to send a message, and returns when that has begun.
    async fn send(&self, from: &'static str, to: u64, max_wait: Option<Duration>) -> Waiter {
        let logs = [(&self.sender, Key::from(from), 1), (&self.receiver, Key::from(to), 1)];
        waits(&self.limiter, logs, max_wait).await
    }

    /// A receiver is full, and one that sends to it waits.
    async fn with_a_waiter() -> (Self, Waiter) {
        let messages = Self::new();
        assert!(messages.send("a", 1, None).await.await.unwrap().is_ok());
        let waits = messages.send("b", 1, None).await;
        (messages, waits)
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_for_one_of_their_logs_are_in_order() {
    let (messages, first) = Messages::with_a_waiter().await;
    let second = messages.send("a", 1, None).await;
    let start = Instant::now();
    let passes = messages.send("b", 2, None).await;
    assert!(passes.await.unwrap().is_ok(), "nothing holds it up");
    assert!(start.elapsed() < A_MOMENT * 2);
    assert_eq!((admitted_at(first).await, admitted_at(second).await), (TEN, TEN * 2));
}

#[tokio::test(start_paused = true)]
async fn waiter_goes_to_the_log_that_denies_it_next() {
    let messages = Messages::new();
    for other in 100..104 {
        assert!(messages.send("a", other, None).await.await.unwrap().is_ok());
    }
    let waits_for_sender = messages.send("a", 1, None).await;
    // Its receiver is full when the sender is free again, and one that came later waits for it.
    sleep(TEN * 6 - Duration::from_secs(3)).await;
    assert!(messages.send("b", 1, None).await.await.unwrap().is_ok());
    let later = messages.send("c", 1, None).await;
    let first = admitted_at(waits_for_sender).await;
    assert!(first > TEN * 6, "{first:?}");
    assert_eq!(admitted_at(later).await, first + TEN, "it keeps its place in the order of arrival");
}

#[tokio::test(start_paused = true)]
async fn denial_behind_others_names_the_log_that_they_wait_for() {
    let (messages, _waits) = Messages::with_a_waiter().await;
    let checks = messages.store.checks();
    let error = messages.send("c", 1, Some(TEN)).await.await.unwrap().unwrap_err();
    assert_eq!(messages.store.checks(), checks, "it only looks at its logs");
    let denied = error.denied().unwrap();
    assert_eq!(denied.violated().collect::<Vec<_>>(), ["receiver"]);
    let policies = denied.usage().quotas().map(|(policy, ..)| policy.name().to_owned());
    assert_eq!(policies.collect::<Vec<_>>(), ["sender", "receiver"]);
    let remaining = denied.usage().quotas().map(|(_, _, state)| state.remaining());
    assert_eq!(remaining.collect::<Vec<_>>(), [4, 0], "of its own sender, not of another");
    assert!(denied.retry_after() > TEN && denied.retry_after() < TEN * 2);
}

#[tokio::test(start_paused = true)]
async fn caller_that_may_not_wait_ends_no_wait_of_another() {
    let checks = AtomicUsize::new(0);
    let reply = move |_: &Check| {
        match checks.fetch_add(1, Ordering::Relaxed) {
            // The reply to the first caller comes late.
            0 => StoreFuture::later(async move {
                sleep(Duration::from_millis(100)).await;
                Ok(outcome(TEN))
            }),
            1 => StoreFuture::ready(Ok(outcome(TEN))),
            _ => StoreFuture::ready(Ok(outcome(Duration::ZERO))),
        }
    };
    let limiter = one_in_ten(StubStore(reply)).max_waiters(1);
    let early = waiter(&limiter, None).await;
    let late = waiter(&limiter, Some(TEN + TEN / 2)).await;
    let early = early.await.unwrap().unwrap_err();
    assert!(matches!(early, WaitError::TooManyWaiters { .. }), "{early}");
    let late = late.await.unwrap();
    assert!(late.is_ok(), "nobody is before it, and there is room in time: {}", late.unwrap_err());
}

/// What a branch of `select!` does after another one was taken: its future is kept, and not polled.
#[tokio::test(start_paused = true)]
async fn bound_holds_behind_a_caller_that_does_not_go_on() {
    let limiter = Limiter::new(Quota::per_second(1), MemoryStore::new());
    assert!(admit(&limiter, "bob").await);
    let first = waiter(&limiter, None).await;
    let mut second = task::spawn(limiter.until_admitted("bob"));
    assert_pending!(second.poll());
    let third = waiter(&limiter, Some(TEN)).await;
    sleep(TEN * 2).await;
    assert!(first.is_finished() && third.is_finished(), "its bound was 10 s, and a twentieth");
    assert!(told(third).await <= 2 * A_SECOND, "the second has the next place");
    let start = Instant::now();
    assert!(limiter.until_admitted_within("bob", Duration::ZERO).await.is_err());
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert!(second.await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn nothing_waits_for_a_log_in_which_it_takes_no_place() {
    let (messages, _waits) = Messages::with_a_waiter().await;
    let logs =
        || [(&messages.sender, Key::from("c"), 1), (&messages.receiver, Key::from(1_u64), 0)];
    assert!(messages.limiter.check_all(logs()).await.unwrap().is_admitted(), "there is room");
    let start = Instant::now();
    messages.limiter.until_admitted_all(logs, None).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO, "it takes no place of the receiver");
}

/// The logs of a request that waits have changed, such as by an override that exempts one of its keys. An earlier request
/// comes into its queue, and it is told how long it would be behind that one.
#[tokio::test(start_paused = true)]
async fn denial_behind_another_is_honest_after_a_log_is_exempt() {
    let (ip, user) = (policy("ip", 99, A_SECOND), policy("user", 1, TEN * 2));
    let tenant = policy("tenant", 1, TEN);
    let limiter = Limiter::new(&user, MemoryStore::new());
    let is_exempt = Arc::new(AtomicBool::new(false));
    let send = |name: &'static str, max_wait| {
        let (limiter, is_exempt) = (limiter.clone(), is_exempt.clone());
        let (ip, user, tenant) = (ip.clone(), user.clone(), tenant.clone());
        tokio::spawn(async move {
            let logs = || {
                let ip = (!is_exempt.load(Ordering::Relaxed)).then_some((&ip, "address"));
                ip.into_iter().chain([(&user, name), (&tenant, "tenant")])
            };
            limiter.until_admitted_all(logs, max_wait).await
        })
    };
    assert!(limiter.check_all([(&user, "alice")]).await.unwrap().is_admitted());
    let earlier = send("alice", None);
    sleep(A_SECOND).await;
    assert!(send("carol", None).await.unwrap().is_ok());
    let later = send("bob", Some(TEN + A_SECOND));
    sleep(A_SECOND).await;
    is_exempt.store(true, Ordering::Relaxed);
    sleep(A_SECOND * 2).await;
    // Now nothing but the tenant's log denies the earlier one.
    limiter.reset("alice").await.unwrap();
    let told = told(later).await;
    sleep(told).await;
    assert!(earlier.await.unwrap().is_ok());
    let again = send("bob", Some(Duration::ZERO)).await.unwrap();
    assert!(again.is_ok(), "it was told {told:?}");
}

/// The first one in the queue is admitted while the second one looks at its logs, and the third one arrives a little later.
#[tokio::test(start_paused = true)]
async fn caller_that_looks_at_its_logs_is_not_overtaken() {
    let (user, tenant) = (policy("user", 2, TEN), policy("tenant", 100, TEN));
    let store = Delayed { way: Some(10 * A_MOMENT), ..Delayed::default() };
    let limiter = Limiter::new(&user, store);
    let send = || waits(&limiter, [(&user, "alice", 1), (&tenant, "t", 1)], None);
    let start = Instant::now();
    for sent in [send().await, send().await] {
        sent.await.unwrap().unwrap();
    }
    let first = send().await;
    // The first one has sent its last check, which finds two places.
    sleep_until(start + TEN + 31 * A_MOMENT).await;
    let second = send().await;
    sleep(11 * A_MOMENT).await;
    let mut admitted = Vec::new();
    for sent in [first, second, send().await] {
        admitted.push(admitted_at(sent).await);
    }
    assert!(admitted.is_sorted_by(|one, other| one < other), "{admitted:?}");
}

/// It has looked at another time than the one before it, who may wait for longer.
#[tokio::test(start_paused = true)]
async fn bound_holds_for_one_that_becomes_the_first() {
    let limiter = jobs();
    let _permit = limiter.acquire("bob", Duration::ZERO).await.unwrap();
    let first = waiter(&limiter, Some(TEN)).await;
    let began = Instant::now();
    let second = waiter(&limiter, Some(20 * A_MOMENT)).await;
    first.abort();
    assert!(second.await.unwrap().is_err());
    assert!(began.elapsed() <= 22 * A_MOMENT, "its bound was 20 ms: {:?}", began.elapsed());
}

/// A request that is rightly denied is no reason to deny those behind it that need fewer places, or have a larger plan.
#[tokio::test(start_paused = true)]
async fn denial_in_the_queue_denies_no_smaller_request_behind_it() {
    let plan =
        |limit| PolicyHandle::new(Policy::new("user").quota(Quota::new(limit, TEN)).budget());
    for (limit, cost) in [(4, 1), (5, 2)] {
        let (policy, other) = (plan(4), plan(limit));
        let limiter = Limiter::new(&policy, MemoryStore::new());
        let start = Instant::now();
        for wait in [TEN * 2 / 5, A_MOMENT] {
            assert!(limiter.check_cost("bob", 2).await.unwrap().is_admitted());
            sleep(wait).await;
        }
        let mut waiters = Vec::new();
        for (policy, cost) in [(&policy, 1), (&policy, 2), (&other, cost)] {
            let logs = [(policy, "bob", cost)];
            waiters.push(waits(&limiter, logs, Some(TEN * 7 / 10)).await);
        }
        let mut ended = Vec::new();
        for waiter in waiters {
            ended.push(waiter.await.unwrap().is_ok());
        }
        assert_eq!((ended, start.elapsed()), (vec![true, false, true], TEN), "{limit}");
    }
}

/// The second one waits for another log, and may go on a little earlier.
#[tokio::test(start_paused = true)]
async fn waiter_for_another_log_does_not_overtake() {
    let (user, tenant) = (policy("user", 1, HOUR * 2), policy("tenant", 1, HOUR));
    let limiter = Limiter::new(&user, MemoryStore::new());
    let fill = async |policy, name| {
        let decision = limiter.check_all([(policy, name)]).await.unwrap();
        decision.admitted().unwrap().clone()
    };
    let send =
        async |name: &str| waits(&limiter, [(&user, name, 1), (&tenant, "t", 1)], None).await;
    let (alice, bob) = (fill(&user, "alice").await, fill(&user, "bob").await);
    let first = send("alice").await;
    sleep(A_SECOND / 2).await;
    let second = send("bob").await;
    let full = fill(&tenant, "t").await;
    assert!(limiter.cancel(&alice).await.unwrap());
    sleep(A_SECOND * 8 / 5).await;
    // The first one waits for the tenant now, and has just looked.
    assert!(limiter.cancel(&bob).await.unwrap() && limiter.cancel(&full).await.unwrap());
    sleep(A_SECOND).await;
    assert_eq!((first.is_finished(), second.is_finished()), (true, false));
}

/// Not that of a log in which it takes no place, nor of one whose values may be the same, nor of one that is full for less long.
#[tokio::test(start_paused = true)]
async fn denial_behind_another_names_no_longer_wait_than_its_queue() {
    let of = |name, limit, window| Policy::new(name).quota(Quota::new(limit, window));
    let (user, tenant) = (policy("user", 1, TEN), policy("tenant", 1, TEN * 3 / 2));
    let tokens = PolicyHandle::new(of("tokens", 2, TEN / 2).budget());
    let peers = PolicyHandle::new(of("peers", 1, TEN * 6).distinct());
    let limiter = Limiter::new(&user, MemoryStore::new());
    let peer = |value| LogCost::from((&peers, "p")).value(value);
    let of_others = || {
        let logs = [(&user, "alice", 1), (&tokens, "k", 2)].map(LogCost::from);
        logs.into_iter().chain([peer("one")])
    };
    for log in [(&user, "alice"), (&tokens, "k"), (&tenant, "full")] {
        assert!(limiter.check_all([log]).await.unwrap().is_admitted());
    }
    let of_denied = || {
        let logs = [(&user, "alice", 1), (&tokens, "k", 0), (&tenant, "full", 1)];
        logs.map(LogCost::from).into_iter().chain([peer("other")])
    };
    let first = limiter.until_admitted_all(of_others, None);
    let denied = limiter.until_admitted_all(of_denied, Some(Duration::ZERO));
    let (first, denied) = tokio::join!(first, denied);
    let denied = denied.unwrap_err();
    assert_eq!(denied.retry_after(), Some(TEN * 2), "{denied:?}");
    assert!(first.is_ok());
}

#[tokio::test(start_paused = true)]
async fn denial_behind_others_counts_those_of_each_log() {
    let (user, tenant) = (policy("user", 1, TEN), policy("tenant", 1, TEN * 2));
    let limiter = Limiter::new(&user, MemoryStore::new());
    for log in [(&user, "alice"), (&tenant, "t")] {
        assert!(limiter.check_all([log]).await.unwrap().is_admitted());
        waits(&limiter, [(log.0, log.1, 1)], None).await;
    }
    for logs in [[(&user, "alice"), (&tenant, "t")], [(&tenant, "t"), (&user, "alice")]] {
        let denied = limiter.until_admitted_all(|| logs, Some(Duration::ZERO)).await.unwrap_err();
        assert_eq!(denied.retry_after(), Some(TEN * 4 - A_MOMENT), "{denied:?}");
    }
}

/// Nobody waits for its tenant.
#[tokio::test(start_paused = true)]
async fn look_before_a_wait_behind_others_makes_no_other_wait_longer() {
    let (user, tenant) = (policy("user", 1, TEN), policy("tenant", 1, TEN * 6));
    let limiter = Limiter::new(&user, MemoryStore::new());
    assert!(limiter.check_all([(&tenant, "full")]).await.unwrap().is_admitted());
    sleep(TEN * 2).await;
    assert!(limiter.check_all([(&user, "alice")]).await.unwrap().is_admitted());
    let _first = waits(&limiter, [(&user, "alice", 1)], None).await;
    let logs = || [(&user, "alice"), (&tenant, "full")];
    let denied = limiter.until_admitted_all(logs, Some(TEN * 3)).await.unwrap_err();
    assert_eq!(denied.retry_after(), Some(TEN * 4 - A_MOMENT), "{denied:?}");
}

/// A quota that has room for all that wait is not one that denies.
#[tokio::test(start_paused = true)]
async fn denial_behind_others_is_by_the_quotas_that_are_full() {
    let policy = Policy::new("user").quota(Quota::per_second(2)).quota(Quota::per_minute(5));
    let limiter = Limiter::new(policy, MemoryStore::new());
    assert!(admit(&limiter, "bob").await && admit(&limiter, "bob").await);
    let _first = waiter(&limiter, None).await;
    let denied = limiter.until_admitted_within("bob", A_SECOND / 2).await.unwrap_err();
    let quotas = denied.denied().unwrap().usage().quotas();
    assert_eq!(quotas.map(|(_, _, state)| state.is_full()).collect::<Vec<_>>(), [true, false]);
}

/// Those whose wait a denial has ended take no place any more, also before they go on.
#[tokio::test(start_paused = true)]
async fn all_that_one_denial_turns_away_are_told_the_same() {
    let limiter = full(Delayed { way: Some(A_MOMENT * 30), ..Delayed::default() }).await;
    let first = waiter(&limiter, None).await;
    let _second = waiter(&limiter, None).await;
    assert!(first.await.unwrap().is_ok());
    // The check of the second one is under way.
    let mut told = Vec::new();
    for _ in 0..20 {
        told.push(waiter(&limiter, Some(A_SECOND * 25)).await);
    }
    sleep(A_MOMENT * 100).await;
    told.retain(Waiter::is_finished);
    assert_eq!(told.len(), 19, "one may wait");
    for denied in told {
        assert_eq!(self::told(denied).await, TEN * 3);
    }
}

/// Nobody is told of the ban by a wait of his own.
#[tokio::test(start_paused = true)]
async fn ban_ends_all_waits_at_once() {
    let policy = Policy::new("user").quota(Quota::new(1, HOUR)).penalty(Penalty::manual());
    let (policy, store) = (PolicyHandle::new(policy), MemoryStore::new());
    let (limiter, bans) = (Limiter::new(&policy, store.clone()), Bans::new(&policy, store));
    assert!(admit(&limiter, "bob").await);
    let mut waiters = Vec::new();
    for _ in 0..5 {
        waiters.push(waiter(&limiter, None).await);
    }
    bans.impose("bob", HOUR, "").await.unwrap();
    sleep(A_SECOND).await;
    assert!(waiters.iter().all(Waiter::is_finished), "the first one has found it");
}

/// Its policy has become smaller than its cost.
#[tokio::test(start_paused = true)]
async fn impossible_request_waits_no_longer() {
    let budget = |limit| Policy::from(Quota::new(limit, HOUR)).budget();
    let policy = PolicyHandle::new(budget(4));
    let limiter = Limiter::new(&policy, MemoryStore::new());
    assert!(limiter.check_cost("bob", 4).await.unwrap().is_admitted());
    let waits = waits(&limiter, [(&policy, "bob", 3)], None).await;
    policy.set(budget(2)).unwrap();
    sleep(A_SECOND).await;
    assert!(waits.is_finished(), "it never has room");
    assert!(matches!(waits.await.unwrap(), Err(WaitError::Store(_))));
}

/// It takes no place among those that wait.
#[tokio::test(start_paused = true)]
async fn acquire_without_a_wait_is_denied_also_if_nobody_may_wait() {
    let limiter = jobs().max_waiters(0);
    let _permit = limiter.acquire("bob", Duration::ZERO).await.unwrap();
    let error = limiter.acquire("bob", Duration::ZERO).await.unwrap_err();
    assert!(matches!(error, WaitError::Denied(_)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn permit_is_renewed_three_times_within_its_shortest_lease() {
    let jobs = |name, lease| Policy::new(name).quota(Quota::new(1, lease)).in_flight();
    let [short, long] = [jobs("short", TEN), jobs("long", HOUR)].map(PolicyHandle::new);
    let store = Delayed::default();
    let limiter = Limiter::new(&short, store.clone());
    let both = limiter.check_all([(&short, "bob"), (&long, "bob")]).await.unwrap();
    let _permit = limiter.hold(&admitted(both));
    sleep(TEN + A_MOMENT * 10).await;
    assert_eq!(store.checks(), 1 + 3 * 2, "each log by itself");
}

/// The one before it gives up meanwhile.
#[tokio::test(start_paused = true)]
async fn last_look_is_at_the_bound_behind_another() {
    let limiter = jobs();
    let permit = limiter.acquire("bob", Duration::ZERO).await.unwrap();
    let first = waiter(&limiter, Some(A_SECOND)).await;
    sleep(A_MOMENT * 20).await;
    let second = waiter(&limiter, Some(A_SECOND)).await;
    let denied = waiter(&limiter, Some(A_MOMENT * 30)).await;
    assert!(told(denied).await < A_SECOND, "not after the leases of those before it");
    assert_eq!(
        first.await.unwrap().unwrap_err().retry_after(),
        None,
        "nobody knows when it is over"
    );
    drop(permit);
    assert!(second.await.unwrap().is_ok(), "there is room before its bound");
}

/// All have the value that the first one waits to add.
#[tokio::test(start_paused = true)]
async fn bound_behind_the_same_value_is_that_of_one_place() {
    let peers = PolicyHandle::new(Policy::new("peers").quota(Quota::new(1, TEN)).distinct());
    let limiter = Limiter::new(&peers, MemoryStore::new());
    let wait = async |value: &'static str, max_wait| {
        let logs = || [LogCost::from((&peers, "bob")).value(value)];
        limiter.until_admitted_all(logs, Some(max_wait)).await
    };
    assert!(wait("ann", TEN).await.is_ok());
    let carol = |max_wait| wait("carol", max_wait);
    let (first, second, denied) =
        tokio::join!(carol(TEN + A_SECOND), carol(TEN + A_SECOND), carol(A_SECOND));
    assert!(first.is_ok() && second.is_ok(), "{second:?}");
    assert_eq!(denied.unwrap_err().retry_after(), Some(TEN));
}

/// The store is some way off.
#[tokio::test(start_paused = true)]
async fn denial_behind_others_of_the_same_quotas_asks_nothing() {
    let limiter = full(Delayed { way: Some(A_MOMENT * 10), ..Delayed::default() }).await;
    let _first = waiter(&limiter, None).await;
    sleep(A_MOMENT * 30).await;
    let began = Instant::now();
    assert!(limiter.until_admitted_within("bob", TEN).await.is_err());
    assert_eq!(began.elapsed(), Duration::ZERO);
}

/// What happens before a request is denied behind others.
#[derive(Clone, Debug)]
struct Queued {
    cost: u32,
    /// Of how many requests in how many seconds.
    quotas: Vec<(u32, u64)>,
    /// After how many tenths of a second each request is sent, how much more than the last it costs, and for how many seconds
    /// it may wait.
    sent: Vec<(u32, u32, u64)>,
    /// Another quota for the last request, and whether it replaces that of all.
    change: Option<((u32, u64), bool)>,
    longest: u64,
}

fn queued() -> impl Strategy<Value = Queued> {
    let quota = || (1..6_u32, select(vec![1, 2, 10, 20, 60]));
    let more = prop_oneof![3 => Just(0), 1 => 1..3_u32];
    let sent = vec((0..60_u32, more, prop_oneof![Just(0), 1..40_u64]), 1..12);
    let change = option::weighted(0.3, (quota(), any::<bool>()));
    (1..4_u32, vec(quota(), 1..3), sent, change, 0..15_u64).prop_map(
        |(cost, quotas, sent, change, longest)| Queued { cost, quotas, sent, change, longest },
    )
}

/// Sends the last request again after the time that it was told.
async fn play(Queued { cost, quotas, sent, change, longest }: Queued) -> Result<(), TestCaseError> {
    let seconds = Duration::from_secs;
    let policy = |quotas: &[(u32, u64)]| {
        // Also no multiple of the cost.
        let quota =
            |(limit, window): &_| Quota::new(cost * limit + limit % cost + 2, seconds(*window));
        let policy = Policy::new("user").keep_for(TEN * 6).budget();
        PolicyHandle::new(quotas.iter().map(quota).fold(policy, Policy::quota))
    };
    let mut policy_now = policy(&quotas);
    let store = Delayed::default();
    let limiter = Limiter::new(&policy_now, store.clone());
    for (pause, more, longest) in sent {
        sleep(A_SECOND / 10 * pause).await;
        waits(&limiter, [(&policy_now, "bob", cost + more)], Some(seconds(longest))).await;
    }
    if let Some((quota, replaces)) = change {
        let changed = policy(&[quota]);
        match replaces {
            true => drop(policy_now.set((*changed.get()).clone()).unwrap()),
            false => policy_now = changed,
        }
    }
    let (checks, logs) = (store.checks(), || [(&policy_now, "bob", cost)]);
    match limiter.until_admitted_all(logs, Some(seconds(longest))).await {
        // Behind others it only looks at its log. They may be admitted at the same instant.
        Err(denied) if store.checks() == checks => {
            sleep(denied.retry_after().unwrap() + A_MOMENT).await;
        }
        _ => return Ok(()),
    }
    let again = limiter.until_admitted_all(logs, Some(Duration::ZERO)).await;
    prop_assert!(again.is_ok(), "{again:?}");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Law 3, under whatever quotas those before it wait.
    #[test]
    fn denial_behind_others_is_honest(queued in queued()) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(play(queued))?;
    }
}
