//! How exact each limiter is: the same random traffic for all, judged by their own admissions and by nothing else.

use std::future::{Future, ready};
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use axum::Router;
use axum::body::Body;
use axum::http::header::RETRY_AFTER;
use axum::http::{Request as HttpRequest, StatusCode};
use fastrand::Rng;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, RateLimiter};
use test_support::{Redis, patient};
use throttle_kit::{InMemoryBackend, KeyedRateLimiter, RateLimitBackend, SlidingWindowBackend};
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until};
use tower::ServiceExt;
use tower_sliding_window::{Decision, MemoryStore, Quota};
use trypema::{BucketSize, RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize};

use crate::limiters::{Case, LIMIT, SECOND as WINDOW};
use crate::table::Table;

/// How long the traffic lasts, and how many keys have traffic of their own.
const LENGTH: Duration = Duration::from_secs(24);
const KEYS: u64 = 8;
/// The keys that wait as long as `Retry-After` says, and try again.
const PATIENT_KEYS: u64 = 4;
/// How far apart the limiters get the same request, so that they do not all work at once.
const APART: Duration = Duration::from_millis(7);
/// Forgiven everywhere: some limiters count milliseconds, and clocks run a little apart.
const ALLOWANCE: Duration = Duration::from_millis(1);

/// Sends the traffic to all limiters at once, each with keys of its own.
pub(crate) async fn run() -> Result<Table> {
    let redis = Redis::start().await;
    let limiters = limiters(&redis.url()).await?;
    eprintln!("exactness: {} limiters, {LENGTH:?} of traffic", limiters.len());
    let mut running = Vec::new();
    for (number, limiter) in limiters.iter().enumerate() {
        running.push(tokio::spawn(judge(number, limiter.clone())));
    }
    let mut table = Table::new(
        "Exactness: five requests a second, the same random traffic for each",
        &[
            "admitted",
            "above the limit",
            "most in a window",
            "denied",
            "needlessly",
            "Retry-After too short",
            "by at most, ms",
            "too long by at most, ms",
            "waited",
            "denied again",
        ],
    );
    for (limiter, running) in limiters.iter().zip(running) {
        let faults = running.await?.with_context(|| limiter.name.clone())?;
        let count = |count: usize| vec![count as f64];
        let ms = |time: Option<Duration>| Vec::from_iter(time.map(|it| it.as_millis() as f64));
        // Some say nothing of how long to wait.
        let of_waits = |it| if faults.largest_shortfall.is_some() { count(it) } else { vec![] };
        table.row(
            &limiter.name,
            [
                count(faults.admitted),
                count(faults.above),
                count(faults.most),
                count(faults.denied),
                count(faults.needless),
                of_waits(faults.short),
                ms(faults.largest_shortfall),
                ms(faults.longest_wait),
                of_waits(faults.waited),
                of_waits(faults.denied_again),
            ],
        );
    }
    Ok(table)
}

/// Sends all traffic to a limiter. Its keys begin with its number: some limiters share a server.
async fn judge(number: usize, limiter: Limiter) -> Result<Faults> {
    let start = Instant::now() + APART * number as u32;
    let (mut busy, mut patient) = (JoinSet::new(), JoinSet::new());
    for key in 0..KEYS {
        busy.spawn(send(limiter.clone(), format!("{number}b{key}"), start, traffic(key)));
    }
    for key in 0..PATIENT_KEYS {
        patient.spawn(wait_and_retry(limiter.clone(), format!("{number}p{key}"), start, key));
    }
    let mut faults = Faults::default();
    for requests in busy.join_all().await {
        faults.judge(requests?, LIMIT as usize);
    }
    for key in patient.join_all().await {
        let (times, denied_again) = key?;
        faults.waited += times;
        faults.denied_again += denied_again;
    }
    Ok(faults)
}

async fn check(limiter: Limiter, key: String, start: Instant) -> Result<Request> {
    let before = start.elapsed();
    let reply = (limiter.check)(key).await?;
    Ok(Request { before, after: start.elapsed(), reply })
}

async fn send(
    limiter: Limiter,
    key: String,
    start: Instant,
    traffic: Vec<Duration>,
) -> Result<Vec<Request>> {
    let mut replies = JoinSet::new();
    for at in traffic {
        sleep_until((start + at).into()).await;
        replies.spawn(check(limiter.clone(), key.clone(), start));
    }
    replies.join_all().await.into_iter().collect()
}

/// Uses up a key's requests at random distances, then waits as long as the denial says. The next request should be
/// admitted. Returns how often it waited, and how often it was denied again.
async fn wait_and_retry(
    limiter: Limiter,
    key: String,
    start: Instant,
    seed: u64,
) -> Result<(usize, usize)> {
    let mut random = Rng::with_seed(seed);
    let (mut times, mut denied_again) = (0, 0);
    sleep_until(start.into()).await;
    while start.elapsed() < LENGTH {
        if let Reply::Denied(Some(retry_after)) = (limiter.check)(key.clone()).await? {
            sleep(retry_after).await;
            times += 1;
            denied_again += usize::from((limiter.check)(key.clone()).await? != Reply::Admitted);
            sleep(WINDOW.mul_f64(random.f64())).await;
        } else {
            sleep(WINDOW.mul_f64(random.f64() * 0.19)).await;
        }
    }
    Ok((times, denied_again))
}

/// Returns when the requests of one key are due: bursts, steady rates just below and just above the limit, and pauses
/// that are nearly as long as the window or a little longer.
fn traffic(key: u64) -> Vec<Duration> {
    let mut random = Rng::with_seed(20_261_122 + key);
    let part = |random: &mut Rng, least: f64, most: f64| {
        WINDOW.mul_f64(least + (most - least) * random.f64())
    };
    let (mut traffic, mut at) = (Vec::new(), part(&mut random, 0.0, 1.0));
    while at < LENGTH {
        let mut add = |at, requests: u32| traffic.extend((0..requests).map(|_| at));
        match random.u32(..4) {
            0 => {
                for _ in 0..random.u32(1..=4) {
                    add(at, random.u32(1..=2 * LIMIT + 2));
                    at += part(&mut random, 0.0, 0.4);
                }
            }
            steady @ (1 | 2) => {
                let gap = if steady == 1 { 1.02 } else { 0.9 } / f64::from(LIMIT);
                for _ in 0..random.u32(5..=20) {
                    add(at, 1);
                    // Each is a little early or late.
                    at += part(&mut random, gap - 0.01, gap + 0.01);
                }
            }
            _ => {
                add(at, random.u32(1..=LIMIT));
                // The second of the two is often the first that fits again.
                at += part(&mut random, 0.97, 1.03);
                add(at, LIMIT);
                at += part(&mut random, 0.0, 1.03);
            }
        }
    }
    traffic.retain(|at| *at < LENGTH);
    traffic
}

/// What a limiter replies to a request.
#[derive(Clone, Copy, PartialEq)]
enum Reply {
    Admitted,
    /// Some limiters say how long to wait.
    Denied(Option<Duration>),
}

type Ours = tower_sliding_window::Limiter;
type Pending = Pin<Box<dyn Future<Output = Result<Reply>> + Send>>;

/// A limiter of five requests a second for each key.
#[derive(Clone)]
struct Limiter {
    name: String,
    check: Arc<dyn Fn(String) -> Pending + Send + Sync>,
}

impl Limiter {
    fn new<F>(name: impl Into<String>, check: impl Fn(String) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Reply>> + Send + 'static,
    {
        Self { name: name.into(), check: Arc::new(move |key| Box::pin(check(key))) }
    }
}

/// Returns all limiters. `redis` is the URL of a server.
async fn limiters(redis: &str) -> Result<Vec<Limiter>> {
    let quota = Quota::new(LIMIT, WINDOW);
    let shared = async || anyhow::Ok(Ours::new(quota, patient().connect(redis).await?));
    let mut limiters = vec![
        ours("ours, Limiter on MemoryStore", [Ours::new(quota, MemoryStore::new())]),
        ours("ours, Limiter on RedisStore", [shared().await?]),
        ours("ours, Limiter on RedisStore, two processes", [shared().await?, shared().await?]),
    ];
    for case in Case::LIMITERS {
        if !matches!(case, Case::RedisUncached) {
            limiters.push(middleware(case, redis).await?);
        }
    }
    limiters.extend([
        governor()?,
        throttle_kit("throttle-kit, GCRA", InMemoryBackend::new()),
        throttle_kit("throttle-kit, sliding window", SlidingWindowBackend::new()),
        rate_net("rate-net, token bucket", rate_net::Algorithm::TokenBucket),
        rate_net("rate-net, sliding log", rate_net::Algorithm::SlidingWindowLog),
        rate_net("rate-net, sliding counter", rate_net::Algorithm::SlidingWindowCounter),
        trypema()?,
    ]);
    Ok(limiters)
}

/// Our limiter. Several stand for several processes, which requests reach in turn.
fn ours<const N: usize>(name: &str, limiters: [Ours; N]) -> Limiter {
    let turn = AtomicUsize::new(0);
    Limiter::new(name, move |key| {
        let limiter = limiters[turn.fetch_add(1, Ordering::Relaxed) % N].clone();
        async move {
            Ok(match limiter.check(key).await? {
                Decision::Admitted(_) => Reply::Admitted,
                Decision::Denied(denied) => Reply::Denied(Some(denied.retry_after())),
            })
        }
    })
}

/// A layer in front of a route, called as a service.
async fn middleware(case: Case, redis: &str) -> Result<Limiter> {
    let router = case.router(Some(redis), WINDOW).await?;
    let name = match case {
        Case::Memory => "ours, layer on MemoryStore",
        Case::Redis => "ours, layer on RedisStore",
        _ => &case.name(),
    };
    Ok(Limiter::new(name, move |key| respond(router.clone(), key)))
}

async fn respond(router: Router, key: String) -> Result<Reply> {
    let request = HttpRequest::get(format!("/?user={key}")).body(Body::empty())?;
    let response = router.oneshot(request).await?;
    match response.status() {
        StatusCode::OK => Ok(Reply::Admitted),
        StatusCode::TOO_MANY_REQUESTS => {
            let header = response.headers().get(RETRY_AFTER);
            let seconds = header.map(|value| value.to_str()?.parse().context("no seconds"));
            Ok(Reply::Denied(seconds.transpose()?.map(Duration::from_secs)))
        }
        status => bail!("status {status}"),
    }
}

fn governor() -> Result<Limiter> {
    let quota = governor::Quota::with_period(WINDOW / LIMIT).context("no window")?;
    let burst = NonZeroU32::new(LIMIT).context("no limit")?;
    let limiter: DefaultKeyedRateLimiter<String> = RateLimiter::keyed(quota.allow_burst(burst));
    let clock = DefaultClock::default();
    Ok(Limiter::new("governor", move |key| {
        ready(Ok(match limiter.check_key(&key) {
            Ok(()) => Reply::Admitted,
            Err(denied) => Reply::Denied(Some(denied.wait_time_from(clock.now()))),
        }))
    }))
}

fn throttle_kit(name: &str, backend: impl RateLimitBackend) -> Limiter {
    let quota = throttle_kit::Quota::from_parts(WINDOW / LIMIT, LIMIT);
    let limiter = Arc::new(KeyedRateLimiter::new(quota, backend));
    Limiter::new(name, move |key| {
        let limiter = limiter.clone();
        async move {
            let result = limiter.check(&key).await;
            Ok(if result.allowed { Reply::Admitted } else { Reply::Denied(result.retry_after) })
        }
    })
}

fn rate_net(name: &str, algorithm: rate_net::Algorithm) -> Limiter {
    let limiter =
        rate_net::RateLimiter::builder().algorithm(algorithm).quota(LIMIT, WINDOW).build();
    Limiter::new(name, move |key| {
        let decision = limiter.check(key.as_str());
        ready(Ok(match decision.is_allow() {
            true => Reply::Admitted,
            false => Reply::Denied(decision.retry_after()),
        }))
    })
}

fn trypema() -> Result<Limiter> {
    let provider = trypema::local::LocalRateLimiterProvider::builder()
        .window_size(WindowSize::seconds(WINDOW.as_secs())?)
        .bucket_size(BucketSize::milliseconds(10)?)
        .disable_cleanup()
        .build()?;
    let rate = RateLimit::per_second(f64::from(LIMIT))?;
    Ok(Limiter::new("trypema, absolute", move |key| {
        ready(match provider.absolute().inc(&key, &rate, 1) {
            RateLimitDecision::Allowed => Ok(Reply::Admitted),
            RateLimitDecision::Rejected { retry_after, .. } => Ok(Reply::Denied(Some(retry_after))),
            RateLimitDecision::Suppressed { .. } => Err(anyhow!("trypema suppresses")),
        })
    }))
}

/// A request and its reply. The limiter read its clock at some instant of the call.
#[derive(Clone, Copy)]
struct Request {
    /// Just before and just after the call.
    before: Duration,
    after: Duration,
    reply: Reply,
}

/// What is wrong at every instant at which the limiter can have read its clock.
#[derive(Default)]
struct Faults {
    admitted: usize,
    /// Admissions that had `limit` others in the window before them.
    above: usize,
    /// The most admissions in a window.
    most: usize,
    denied: usize,
    /// Denials although fewer than `limit` admissions were in the window.
    needless: usize,
    /// How much longer than necessary a `Retry-After` was.
    longest_wait: Option<Duration>,
    /// Denials whose `Retry-After` ends while `limit` admissions are still in the window.
    short: usize,
    /// How much too short a `Retry-After` was.
    largest_shortfall: Option<Duration>,
    /// How often a key waited alone as long as `Retry-After` said.
    waited: usize,
    /// How often it was denied again.
    denied_again: usize,
}

impl Faults {
    /// Judges the requests of one key.
    fn judge(&mut self, mut requests: Vec<Request>, limit: usize) {
        requests.sort_by_key(|request| request.after);
        let admissions: Vec<Request> =
            requests.iter().copied().filter(|it| it.reply == Reply::Admitted).collect();
        self.admitted += admissions.len();
        for (index, last) in admissions.iter().enumerate() {
            // All of these are in one window, whenever in their calls they were counted.
            let surely = admissions[..index]
                .iter()
                .filter(|earlier| last.after < earlier.before + WINDOW - ALLOWANCE)
                .count();
            self.above += usize::from(surely >= limit);
            self.most = self.most.max(surely + 1);
        }
        for denial in &requests {
            if let Reply::Denied(retry_after) = denial.reply {
                self.judge_denial(denial, retry_after, &admissions, limit);
            }
        }
    }

    fn judge_denial(
        &mut self,
        denial: &Request,
        retry_after: Option<Duration>,
        admissions: &[Request],
        limit: usize,
    ) {
        self.denied += 1;
        // As late as it can have been: each admission that may have been in the window leaves it at the latest.
        let may_be_inside = |it: &&Request| {
            it.before < denial.after && it.after + WINDOW + ALLOWANCE > denial.before
        };
        let inside = admissions.iter().filter(may_be_inside);
        let fits = room_at(inside.map(|it| it.after + WINDOW + ALLOWANCE), limit);
        self.needless += usize::from(fits.is_none());
        let Some(retry_after) = retry_after else { return };
        let needless_wait =
            (denial.before + retry_after).saturating_sub(fits.unwrap_or(denial.before));
        self.longest_wait = self.longest_wait.max(Some(needless_wait));

        // As early: those that were counted before the denial leave it at the earliest.
        let counted = admissions.iter().filter(|it| it.after <= denial.before);
        let fits = room_at(counted.map(|it| it.before + WINDOW - ALLOWANCE), limit);
        let shortfall = fits.unwrap_or_default().saturating_sub(denial.after + retry_after);
        self.short += usize::from(!shortfall.is_zero());
        self.largest_shortfall = self.largest_shortfall.max(Some(shortfall));
    }
}

/// Returns when the window has room, if that is full: when so many admissions less one are left of these, which leave it
/// then.
fn room_at(ends: impl Iterator<Item = Duration>, limit: usize) -> Option<Duration> {
    let mut ends: Vec<Duration> = ends.collect();
    ends.sort_by(|a, b| b.cmp(a));
    ends.get(limit - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    /// A request whose call took from one millisecond to another.
    fn request(before: u64, after: u64, reply: Reply) -> Request {
        Request { before: ms(before), after: ms(after), reply }
    }

    fn admitted(at: u64) -> Request {
        request(at, at, Reply::Admitted)
    }

    fn denied(at: u64, retry_after: u64) -> Request {
        request(at, at, Reply::Denied(Some(ms(retry_after))))
    }

    fn faults(requests: &[Request]) -> Faults {
        let mut faults = Faults::default();
        faults.judge(requests.to_vec(), 2);
        faults
    }

    #[test]
    fn exact_limiter_has_no_faults() {
        let exact =
            [admitted(0), admitted(400), denied(500, 500), admitted(1000), denied(1100, 300)];
        let faults = faults(&exact);
        assert_eq!((faults.admitted, faults.above, faults.most), (3, 0, 2));
        assert_eq!((faults.denied, faults.needless, faults.short), (2, 0, 0));
        assert_eq!(faults.longest_wait, Some(Duration::ZERO));
        assert_eq!(faults.largest_shortfall, Some(Duration::ZERO));
    }

    #[test]
    fn admissions_above_the_limit_count() {
        let faults = faults(&[admitted(0), admitted(100), admitted(900), admitted(950)]);
        assert_eq!((faults.above, faults.most), (2, 4));
    }

    #[test]
    fn slow_call_gets_the_benefit_of_the_doubt() {
        // The third may have been counted at 1,000 ms, and then the first has left.
        let slow = [admitted(0), admitted(400), request(900, 1000, Reply::Admitted)];
        assert_eq!(faults(&slow).above, 0);
        // The denial may have been decided at 900 ms.
        let slow = [admitted(0), admitted(400), request(900, 1000, Reply::Denied(None))];
        assert_eq!(faults(&slow).needless, 0);
        // The second admission may have been counted before the denial.
        let counted = request(100, 200, Reply::Admitted);
        let slow = [admitted(0), counted, request(150, 160, Reply::Denied(None))];
        assert_eq!(faults(&slow).needless, 0);
    }

    #[test]
    fn needless_denials_and_waits_count() {
        let faults = faults(&[admitted(0), denied(100, 400), admitted(200), denied(300, 1000)]);
        assert_eq!(faults.needless, 1);
        // The last could go at 1,000 ms, and a millisecond is forgiven.
        assert_eq!(faults.longest_wait, Some(ms(400)));
    }

    #[test]
    fn short_waits_count() {
        let faults = faults(&[admitted(0), admitted(100), denied(200, 700)]);
        assert_eq!((faults.needless, faults.short), (0, 1));
        assert_eq!(faults.largest_shortfall, Some(ms(99)));
    }
}
