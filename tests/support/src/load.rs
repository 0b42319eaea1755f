//! Load on a layer while something fails, and checks of the answers afterwards.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn};
use tower_sliding_window::store::Store;
use tower_sliding_window::{
    DecidedBy, Decision, FailurePolicy, Policy, Quota, SlidingWindowLayer, key,
};

use crate::eventually;

pub const LIMIT: u32 = 5;
/// How long a window is: short enough that several go by while a fault lasts.
pub const WINDOW: Duration = Duration::from_secs(2);
/// How many users there are. All of them ask for more than they may have, all the time.
pub const USERS: usize = 24;
const TASKS: usize = 8;
/// How many tasks send requests of ever new users, which are always admitted.
const CROWD_TASKS: usize = 2;
/// How soon after its return the store must decide again, however busy a log is.
const RETURN: Duration = Duration::from_secs(1);
/// No answer may take longer, whatever fails.
const HANG: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct Answered {
    /// From [`USERS`] on it is one of the crowd, of which each comes once.
    pub user: usize,
    pub sent: Instant,
    pub received: Instant,
    pub status: StatusCode,
    /// What decided; a refusal does not tell.
    pub decided_by: Option<DecidedBy>,
}

impl Answered {
    pub fn took(&self) -> Duration {
        self.received.duration_since(self.sent)
    }
}

pub struct Load {
    going_on: Arc<AtomicBool>,
    tasks: JoinSet<()>,
    answers: Arc<Mutex<Vec<Answered>>>,
}

impl Load {
    /// Begins to send requests to a layer on the store.
    ///
    /// Besides the user's own log, each request counts in a log that all of them share. A crowd of
    /// ever new users, hundreds a second, keeps that one busy without a pause.
    pub fn start(store: impl Store, on_failure: FailurePolicy) -> Self {
        let everyone = Policy::new("everyone").quota(Quota::per_minute(1_000_000));
        let layer = SlidingWindowLayer::new(user_policy(), key::header("x-user-id"), store)
            .rule(everyone, key::constant("everyone"));
        Self::with_crowd(layer.failure_policy(on_failure), CROWD_TASKS)
    }

    /// Begins to send requests through a layer whose key is the header `x-user-id`.
    pub fn through(layer: SlidingWindowLayer) -> Self {
        Self::with_crowd(layer, 0)
    }

    fn with_crowd(layer: SlidingWindowLayer, crowd_tasks: usize) -> Self {
        let service = layer.layer(service_fn(move |request: Request<String>| {
            let decided_by = request.extensions().get::<Decision>().map(Decision::decided_by);
            async move {
                let mut response = Response::new(String::new());
                response.extensions_mut().insert(decided_by);
                Ok::<_, Infallible>(response)
            }
        }));
        let going_on = Arc::new(AtomicBool::new(true));
        let answers = Arc::new(Mutex::new(Vec::new()));
        let (users, crowd) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(USERS)));
        let mut tasks = JoinSet::new();
        for task in 0..TASKS + crowd_tasks {
            let (service, going_on, answers) = (service.clone(), going_on.clone(), answers.clone());
            let (next, of) =
                if task < TASKS { (users.clone(), USERS) } else { (crowd.clone(), usize::MAX) };
            tasks.spawn(async move {
                while going_on.load(Ordering::Relaxed) {
                    let user = next.fetch_add(1, Ordering::Relaxed) % of;
                    let request = Request::builder().header("x-user-id", format!("user-{user}"));
                    let request = request.body(String::new()).unwrap();
                    let sent = Instant::now();
                    let response = tokio::time::timeout(HANG, service.clone().oneshot(request));
                    let response = response.await.expect("no answer hangs").unwrap();
                    let decided_by = response.extensions().get::<Option<DecidedBy>>().copied();
                    answers.lock().unwrap().push(Answered {
                        user,
                        sent,
                        received: Instant::now(),
                        status: response.status(),
                        decided_by: decided_by.flatten(),
                    });
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            });
        }
        Self { going_on, tasks, answers }
    }

    /// Waits until some request sent from now on was admitted by the store, or by this process.
    pub async fn until_decided_by(&self, by: DecidedBy) {
        let from = Instant::now();
        eventually(&format!("decided by {by:?}"), async || {
            let answers = self.answers.lock().unwrap();
            let new = answers.iter().rev().take_while(|answer| answer.received >= from);
            new.into_iter().any(|answer| answer.sent >= from && answer.decided_by == Some(by))
        })
        .await;
    }

    /// Waits as long as the store may take to decide again after its return, and returns when that
    /// is over. What a busy machine is late by does not count.
    pub async fn store_must_be_back(&self) -> Instant {
        const STEP: Duration = Duration::from_millis(10);
        let mut left = RETURN;
        while !left.is_zero() {
            let began = Instant::now();
            tokio::time::sleep(STEP).await;
            left = left.saturating_sub(began.elapsed().min(STEP * 2));
        }
        Instant::now()
    }

    /// Returns the answers so far, and forgets them.
    pub fn take(&self) -> Responses {
        Responses(std::mem::take(&mut self.answers.lock().unwrap()))
    }

    /// Stops, and returns all answers in the order in which they came.
    pub async fn stop(mut self) -> Responses {
        self.going_on.store(false, Ordering::Relaxed);
        while let Some(task) = self.tasks.join_next().await {
            task.expect("no request panics");
        }
        Responses(std::mem::take(&mut self.answers.lock().unwrap()))
    }
}

pub fn user_policy() -> Policy {
    Policy::new("user").quota(Quota::new(LIMIT, WINDOW))
}

pub struct Responses(pub Vec<Answered>);

impl Responses {
    pub fn between(&self, from: Instant, to: Instant) -> Self {
        self.those(|answer| (from..to).contains(&answer.sent))
    }

    pub fn those(&self, are_so: impl Fn(&Answered) -> bool) -> Self {
        Self(self.0.iter().filter(|answer| are_so(answer)).cloned().collect())
    }

    pub fn count(&self, is_so: impl Fn(&Answered) -> bool) -> usize {
        self.0.iter().filter(|answer| is_so(answer)).count()
    }

    /// Checks that the store has decided since a moment, but for requests here and there that it did
    /// not answer in time: on a busy machine it may be late now and then.
    pub fn decided_by_the_store_since(&self, back: Instant) {
        let admitted = self.between(back, Instant::now());
        let by = |by: DecidedBy| admitted.count(|it| it.decided_by == Some(by));
        let (store, here) = (by(DecidedBy::Store), by(DecidedBy::LocalLog));
        assert!(
            store > 0 && here * 10 <= store,
            "later than {RETURN:?} after its return the store decided {store}, the process {here}"
        );
    }

    pub fn are_decisions(&self) {
        for answer in &self.0 {
            assert!([200, 429].contains(&answer.status.as_u16()), "{answer:?}");
        }
    }

    /// Returns by how many the fullest window of any user was above the limit, as far as that is
    /// certain: of a request is known only that it was admitted between its sending and its answer.
    pub fn over_admitted(&self) -> usize {
        self.fullest().len().saturating_sub(LIMIT as usize)
    }

    /// Returns what was admitted in the fullest window of any user, as far as that is certain.
    pub fn fullest(&self) -> Vec<&Answered> {
        let mut by_user: HashMap<usize, Vec<&Answered>> = HashMap::new();
        for answer in self.0.iter().filter(|answer| answer.status == StatusCode::OK) {
            by_user.entry(answer.user).or_default().push(answer);
        }
        let mut fullest = Vec::new();
        for admitted in by_user.values() {
            for first in admitted {
                let surely_within = |it: &&&Answered| {
                    it.sent >= first.sent && it.received.duration_since(first.sent) < WINDOW
                };
                let within: Vec<&Answered> =
                    admitted.iter().filter(surely_within).copied().collect();
                if within.len() > fullest.len() {
                    fullest = within;
                }
            }
        }
        fullest
    }

    /// Checks that every user got about the limit all the time.
    pub fn no_user_starves(&self) {
        let (first, last) = (self.0.first().expect("answers"), self.0.last().expect("answers"));
        let windows = last.sent.duration_since(first.sent).as_secs_f64() / WINDOW.as_secs_f64();
        let least = ((windows - 1.5).max(1.0) * f64::from(LIMIT)) as usize;
        for user in 0..USERS {
            let admitted = self.count(|it| it.user == user && it.status == StatusCode::OK);
            assert!(admitted >= least, "user {user}: {admitted} in {windows:.1} windows");
        }
    }
}
