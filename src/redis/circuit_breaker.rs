//! [`CircuitBreaker`]: the connection to Redis, given up when it fails and made again in the background.

#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::backoff::Backoff;
use super::connection::Connection;
use super::connector::Connector;
use super::outage::Outage;
use crate::error::StoreError;
use crate::telemetry;

/// How many answers in a row have to fail to come before the connection is given up.
const FAILURES_IN_A_ROW: u32 = 5;
/// How long making a connection may take.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// Short enough that Redis decides again within a second of its return.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// How often a connection that works may be exchanged because its server is no longer the master.
const LEAST_AGE: Duration = Duration::from_secs(1);

/// A connection shared by all requests, with a circuit breaker.
///
/// - A connection that breaks is made again at once. Client wait for that no longer than for an
///   answer, and fail at once when the first attempt has failed.
/// - A connection on which five answers in a row fail to come is given up, and client that wait on
///   it with it.
/// - While there is none, client fail at once. One attempt at a time is made in the background, after
///   ever longer pauses; it counts if the new connection answers a PING.
#[derive(Clone)]
pub(crate) struct CircuitBreaker(Arc<Shared>);

struct Shared {
    connector: Connector,
    response_timeout: Duration,
    state: arc_swap::ArcSwap<State>,
    /// Held to change the state.
    changing: Mutex<()>,
    changed: Notify,
    failures: AtomicU32,
    /// Whether it was reported that there is no connection.
    reported: AtomicBool,
    outage: Outage,
}

enum State {
    /// Nobody has asked for a connection yet.
    Idle,
    /// The first attempt after a connection that worked: worth waiting for.
    Connecting(Attempt),
    Ready {
        connection: Connection,
        number: u64,
        since: Instant,
    },
    Failed(Attempt),
}

/// Held by whoever connects, and let go if a runtime that ends has dropped them.
type Attempt = Weak<()>;

impl State {
    /// Tells whether there is no connection and nobody makes one.
    fn is_idle(&self) -> bool {
        match self {
            Self::Idle => true,
            Self::Connecting(attempt) | Self::Failed(attempt) => attempt.strong_count() == 0,
            Self::Ready { .. } => false,
        }
    }
}

impl CircuitBreaker {
    /// Creates a breaker that connects when it is first used.
    pub(crate) fn idle(connector: Connector, response_timeout: Duration, outage: Outage) -> Self {
        Self(Arc::new(Shared {
            connector,
            response_timeout,
            state: arc_swap::ArcSwap::from_pointee(State::Idle),
            changing: Mutex::default(),
            changed: Notify::new(),
            failures: AtomicU32::new(0),
            reported: AtomicBool::new(false),
            outage,
        }))
    }

    /// Connects, or says why that can't be.
    pub(crate) async fn connect(&self) -> Result<(), StoreError> {
        let connection = self.0.attempt().await?;
        self.0.ready(connection);
        Ok(())
    }

    /// Begins to connect in the background, if somebody is there to do it.
    pub(crate) fn connect_soon(&self) {
        if self.0.state.load().is_idle()
            && let Ok(runtime) = Handle::try_current()
        {
            let _changing = self.0.changing();
            if self.0.state.load().is_idle() {
                let attempt = Arc::new(());
                self.0.state.store(Arc::new(State::Failed(Arc::downgrade(&attempt))));
                runtime.spawn(reconnect(Arc::downgrade(&self.0), attempt));
            }
        }
    }

    /// Uses a connection that works.
    pub(crate) fn ready(&self, connection: Connection) {
        self.0.ready(connection);
    }

    /// Tells whether the connection is to several servers.
    pub(crate) fn is_cluster(&self) -> bool {
        self.0.connector.heals_itself()
    }

    /// Asks Redis something, and waits for the answer no longer than the response timeout.
    pub(crate) async fn call<T>(
        &self,
        ask: impl AsyncFnOnce(Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut late = pin!(sleep(self.0.response_timeout));
        let (connection, number, changed) = self.connection(late.as_mut()).await?;
        let (mut answer, mut changed) = (pin!(ask(connection)), pin!(changed));
        let answer = poll_fn(|cx| {
            if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                return Poll::Ready(answer);
            }
            // What is heard may be the news of this very connection.
            while changed.as_mut().poll(cx).is_ready() {
                changed.set(self.0.changed.notified());
                if !self.0.is_ready(number) {
                    return Poll::Ready(Err(given_up()));
                }
            }
            late.as_mut().poll(cx).map(|()| Err(StoreError::Timeout))
        });
        let answer = answer.await;
        self.0.note(number, &answer);
        answer
    }

    /// Returns the connection, its number, and what to hear from when it changes.
    async fn connection(
        &self,
        mut late: Pin<&mut Sleep>,
    ) -> Result<(Connection, u64, Notified<'_>), StoreError> {
        loop {
            // Before the look at the state: a change is either seen or heard.
            let changed = self.0.changed.notified();
            match &**self.0.state.load() {
                State::Ready { connection, number, .. } => {
                    return Ok((connection.clone(), *number, changed));
                }
                state if state.is_idle() => {
                    self.connect_soon();
                    return Err(StoreError::Unavailable);
                }
                State::Connecting(_) => {}
                State::Failed(_) | State::Idle => return Err(StoreError::Unavailable),
            }
            let mut changed = pin!(changed);
            let wait = poll_fn(|cx| match changed.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(Ok(())),
                Poll::Pending => late.as_mut().poll(cx).map(|()| Err(StoreError::Timeout)),
            });
            wait.await?;
        }
    }
}

/// The connection went away while the answer was under way.
fn given_up() -> StoreError {
    StoreError::Disconnected { message: "the connection was given up".to_owned() }
}

impl Shared {
    fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_ready(&self, wanted: u64) -> bool {
        matches!(&**self.state.load(), State::Ready { number, .. } if *number == wanted)
    }

    /// Makes a connection that answers.
    async fn attempt(&self) -> Result<Connection, StoreError> {
        match timeout(CONNECTION_TIMEOUT, self.connector.connect()).await {
            Ok(connection) => {
                connection.map_err(|error| StoreError::Unreachable { message: error.to_string() })
            }
            Err(_) => Err(StoreError::Unreachable { message: "no answer in time".to_owned() }),
        }
    }

    /// Makes a connection, and lets nobody wait for it any longer than for an answer.
    async fn attempt_noticing_delay(&self) -> Result<Connection, StoreError> {
        let mut attempt = pin!(self.attempt());
        match timeout(self.response_timeout, attempt.as_mut()).await {
            Ok(attempted) => attempted,
            Err(_) => {
                self.failed(&StoreError::Timeout);
                attempt.await
            }
        }
    }

    fn ready(&self, connection: Connection) {
        static NUMBERS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let _changing = self.changing();
        if !matches!(**self.state.load(), State::Idle) {
            self.outage.mark_connection();
        }
        self.failures.store(0, Ordering::Relaxed);
        self.state.store(Arc::new(State::Ready { connection, number, since: Instant::now() }));
        self.changed.notify_waiters();
        self.reported.store(false, Ordering::Relaxed);
        telemetry::store_found();
    }

    /// Draws conclusions from an answer on a connection.
    fn note<T>(self: &Arc<Self>, number: u64, answer: &Result<T, StoreError>) {
        let error = match answer {
            Err(error @ (StoreError::Timeout | StoreError::Disconnected { .. })) => error,
            Err(error @ StoreError::Refused { code, .. }) if code == "READONLY" => {
                return self.lose(number, State::Connecting, LEAST_AGE, error);
            }
            _ => {
                if self.failures.load(Ordering::Relaxed) > 0 {
                    self.failures.store(0, Ordering::Relaxed);
                }
                return;
            }
        };
        let breaks = matches!(error, StoreError::Disconnected { .. });
        if breaks && !self.connector.heals_itself() {
            self.lose(number, State::Connecting, Duration::ZERO, error);
        } else if self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= FAILURES_IN_A_ROW {
            self.lose(number, State::Failed, Duration::ZERO, error);
        }
    }

    /// Gives up a connection, if it is still the one in use.
    fn lose(
        self: &Arc<Self>,
        lost: u64,
        next: fn(Attempt) -> State,
        least_age: Duration,
        error: &StoreError,
    ) {
        let _changing = self.changing();
        match &**self.state.load() {
            State::Ready { number, since, .. }
                if *number == lost && since.elapsed() >= least_age => {}
            _ => return,
        }
        self.outage.mark();
        let attempt = Arc::new(());
        let next = next(Arc::downgrade(&attempt));
        if matches!(next, State::Failed(_)) {
            self.report_lost(error);
        }
        self.state.store(Arc::new(next));
        self.changed.notify_waiters();
        tokio::spawn(reconnect(Arc::downgrade(self), attempt));
    }

    /// Reports once that there is no connection, also if there never was one.
    fn report_lost(&self, error: &StoreError) {
        if !self.reported.swap(true, Ordering::Relaxed) {
            telemetry::store_lost(error);
        }
    }

    /// Has client fail at once from now on.
    fn failed(&self, error: &StoreError) {
        let _changing = self.changing();
        self.report_lost(error);
        if let State::Connecting(attempt) = &**self.state.load() {
            self.state.store(Arc::new(State::Failed(attempt.clone())));
            self.changed.notify_waiters();
        }
    }
}

/// Makes a connection, however long it takes.
async fn reconnect(breaker: Weak<Shared>, _attempt: Arc<()>) {
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    while let Some(breaker) = breaker.upgrade() {
        match breaker.attempt_noticing_delay().await {
            Ok(connection) => return breaker.ready(connection),
            Err(error) => breaker.failed(&error),
        }
        // Meanwhile nobody may be left who wants a connection.
        drop(breaker);
        backoff.pause().await;
    }
}
