//! [`Shared`]: the state of a circuit breaker, and the task that reconnects.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::error::StoreError;
use crate::redis::connection::Server;
use crate::redis::{Backoff, Connection, Connector, Health, Pace};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// Short enough that Redis decides again within a second of its return.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// The least time between two replacements of a connection whose server is no longer the master.
const LEAST_AGE: Duration = Duration::from_secs(1);

// # Interleavings
//
// Calls read `state` without a lock. Each change holds `lock`, stores the new state and then
// notifies `changed`.
//
// - A call reads the new connection before `set_ready` notifies. The notification then arrives
//   while the call waits for its reply. So a notification only means that some change was made: the
//   call compares the number of its connection and goes on waiting.
//   Test: `call_survives_a_late_notification`.
// - The state changes after a call has read it and before the call waits. The call creates its
//   `Notified` before it reads, and a `Notified` receives every later `notify_waiters`.
// - A connection breaks while many calls wait on it. Each failed call passes the number of its
//   connection to `give_up`. The first one changes the state and starts the only task; the others
//   find another state or number and change nothing. Calls that have not failed yet are notified
//   and fail at once. Test: `call_ends_with_its_connection`.
// - Two calls find that no task connects. `connect_if_idle` reads the state again under the lock,
//   so that one of them starts the task. A state without a connection holds a weak reference to a
//   token of its task. The task drops the token after it has stored `Ready`, so that there is no
//   moment at which a second task could start.
// - A runtime ends while its task reconnects. The token is dropped with the task, so the state
//   counts as idle, and the next call starts a task on its own runtime. A call that waits for the
//   attempt is not notified, and ends at its deadline. Tests:
//   `wait_for_a_connection_has_a_deadline` and, with a server,
//   `outage_ends_when_its_runtime_is_gone`.
// - A call uses the new connection at once. `health` knows of a loss of data before the state is stored,
//   so a log is reconciled before it is checked on the new connection.
pub(super) struct Shared {
    pub(super) connector: Connector,
    pub(super) response_timeout: Duration,
    pub(super) state: ArcSwap<State>,
    /// Held while the state is changed.
    lock: Mutex<()>,
    pub(super) changed: Notify,
    /// How many calls have had a reply.
    replies: AtomicU64,
    /// Whether the loss of the connection was reported, and no other was made since.
    is_reported: AtomicBool,
    /// Whether a PING is under way, for callers that have left.
    pub(super) is_probing: AtomicBool,
    health: Health,
    /// The server behind the last connection.
    server: Mutex<Option<Server>>,
    pub(super) mark: String,
    /// When the last look at the mark began.
    pub(super) pace: Pace,
}

pub(super) enum State {
    /// No call has needed a connection yet.
    Idle,
    /// The first attempt, at all or after a connection that worked. Calls wait for it.
    Connecting(Attempt),
    Ready {
        connection: Connection,
        number: u64,
        since: Instant,
    },
    /// The last attempt failed. Calls fail at once.
    Failed(Attempt),
}

/// A reference to the token of the task that connects. It is dangling when the task is gone.
pub(super) type Attempt = Weak<()>;

impl State {
    pub(super) fn is_idle(&self) -> bool {
        match self {
            Self::Idle => true,
            Self::Connecting(attempt) | Self::Failed(attempt) => attempt.strong_count() == 0,
            Self::Ready { .. } => false,
        }
    }
}

impl Shared {
    pub(super) fn new(
        connector: Connector,
        response_timeout: Duration,
        health: Health,
        mark: String,
    ) -> Self {
        Self {
            connector,
            response_timeout,
            state: ArcSwap::from_pointee(State::Idle),
            lock: Mutex::default(),
            changed: Notify::new(),
            replies: AtomicU64::new(0),
            is_reported: AtomicBool::new(false),
            is_probing: AtomicBool::new(false),
            health,
            server: Mutex::default(),
            mark,
            pace: Pace::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_ready(&self, wanted: u64) -> bool {
        matches!(&**self.state.load(), State::Ready { number, .. } if *number == wanted)
    }

    pub(super) async fn connect(&self) -> Result<Connection, StoreError> {
        let error = match self.connector.connect().await {
            Ok(connection) => {
                // Before the connection is used: whoever uses it knows of a loss.
                self.see(Connector::server(&connection, &self.mark).await);
                return Ok(connection);
            }
            Err(error) => error.to_string(),
        };
        let message = match self.connector.address() {
            Some(address) => format!("{address}: {error}"),
            None => error,
        };
        Err(StoreError::Unreachable { message })
    }

    /// Starts the task that connects, if no task does and there is a runtime.
    pub(super) fn connect_if_idle(self: &Arc<Self>) {
        if self.state.load().is_idle()
            && let Ok(runtime) = Handle::try_current()
        {
            let _lock = self.lock();
            if self.state.load().is_idle() {
                let token = Arc::new(());
                let attempt = Arc::downgrade(&token);
                // Of a server that was never tried nobody knows that it fails.
                let next = match **self.state.load() {
                    State::Idle => State::Connecting(attempt),
                    _ => State::Failed(attempt),
                };
                self.state.store(Arc::new(next));
                runtime.spawn(reconnect(Arc::downgrade(self), token));
            }
        }
    }

    pub(super) fn set_ready(&self, connection: Connection) {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let lock = self.lock();
        if !matches!(**self.state.load(), State::Idle) {
            self.health.record_connection();
        }
        self.state.store(Arc::new(State::Ready { connection, number, since: Instant::now() }));
        self.changed.notify_waiters();
        drop(lock);
        if self.is_reported.swap(false, Ordering::Relaxed) {
            self.health.forget_lost_connection();
        }
        self.health.find_connection();
    }

    /// Takes note of the server behind a new connection. Records a loss if it is not the one of before.
    fn see(&self, server: Server) {
        let mut known = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |known: &Server| known.run_id.is_some() && *known == server;
        if known.as_ref().is_some_and(|known| !is_same(known)) {
            self.health.record_loss();
        }
        *known = Some(server);
    }

    /// Takes note of the mark on the connection in use. Records a loss if it is another one.
    pub(super) fn see_mark(&self, mark: String) {
        let mut known = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &mut *known
            && known.mark != mark
        {
            known.mark = mark;
            self.health.record_loss();
        }
    }

    pub(super) fn replies(&self) -> u64 {
        self.replies.load(Ordering::Relaxed)
    }

    /// Counts the replies on a connection, and gives it up if it has broken or is silent.
    pub(super) fn record_result<T>(self: &Arc<Self>, number: u64, result: &Result<T, StoreError>) {
        match result {
            Err(error @ StoreError::Timeout) => {
                self.give_up(number, State::Failed, Duration::ZERO, error);
            }
            Err(error @ StoreError::Disconnected { .. }) => {
                self.give_up(number, State::Connecting, Duration::ZERO, error);
            }
            Err(error @ StoreError::Refused { code, .. }) if code == "READONLY" => {
                self.give_up(number, State::Connecting, LEAST_AGE, error);
            }
            _ => drop(self.replies.fetch_add(1, Ordering::Relaxed)),
        }
    }

    pub(super) fn give_up(
        self: &Arc<Self>,
        failed: u64,
        next: fn(Attempt) -> State,
        least_age: Duration,
        error: &StoreError,
    ) {
        let lock = self.lock();
        match &**self.state.load() {
            State::Ready { number, since, .. }
                if *number == failed && since.elapsed() >= least_age => {}
            _ => return,
        }
        self.health.record_failure();
        let token = Arc::new(());
        let next = next(Arc::downgrade(&token));
        let is_lost = matches!(next, State::Failed(_));
        self.state.store(Arc::new(next));
        self.changed.notify_waiters();
        drop(lock);
        if is_lost {
            self.report_lost(error);
        }
        tokio::spawn(reconnect(Arc::downgrade(self), token));
    }

    /// Makes a connection. If that takes longer than a reply may, calls no longer wait for it.
    async fn reconnect(&self) -> Result<Connection, StoreError> {
        let mut attempt = pin!(self.connect());
        match timeout(self.response_timeout, attempt.as_mut()).await {
            Ok(result) => result,
            Err(_) => {
                self.set_failed(&StoreError::Timeout);
                attempt.await
            }
        }
    }

    fn set_failed(&self, error: &StoreError) {
        self.report_lost(error);
        let _lock = self.lock();
        if let State::Connecting(attempt) = &**self.state.load() {
            self.state.store(Arc::new(State::Failed(attempt.clone())));
            self.changed.notify_waiters();
        }
    }

    /// Reports once that there is no connection, also if there never was one.
    fn report_lost(&self, error: &StoreError) {
        if !self.is_reported.swap(true, Ordering::Relaxed) {
            self.health.lose_connection(error);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if *self.is_reported.get_mut() {
            self.health.forget_lost_connection();
        }
    }
}

async fn reconnect(breaker: Weak<Shared>, _token: Arc<()>) {
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    while let Some(breaker) = breaker.upgrade() {
        match breaker.reconnect().await {
            Ok(connection) => return breaker.set_ready(connection),
            Err(error) => breaker.set_failed(&error),
        }
        // The pause must not keep the circuit breaker alive.
        drop(breaker);
        backoff.pause().await;
    }
}
