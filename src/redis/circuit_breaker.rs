//! [`CircuitBreaker`]: the connection to Redis, given up when it fails and made again in the
//! background.

#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::task::{AbortHandle, yield_now};
use tokio::time::{Instant, sleep, timeout};

use super::connect::{Server, read_server};
use super::connection::Connection;
use super::health::{Health, LostConnection};
use super::{RedisServers, reply};
use crate::error::StoreError;
use crate::telemetry;
use crate::time::pause_after;

/// The most calls under way of each kind. At 15 microseconds each they keep Redis busy for about a millisecond,
/// so more would only wait there, where they can't be given up.
pub(super) const MOST_CALLS: usize = 64;
/// The longest wait of a request for its call. A user who waits longer has left.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// Short enough that Redis decides again within a second of its return.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// The longest time that an attempt takes while its runtime is driven: longer than its steps.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(7);
/// The least time between two replacements of a connection whose server is no longer the master.
const LEAST_AGE: Duration = Duration::from_secs(1);
/// The least time between reports of one outage.
const REPORT_PAUSE: Duration = Duration::from_secs(10);

/// A connection shared by all requests, with a circuit breaker.
///
/// - The first connection is made when it is needed, and one that breaks is made again at once. Calls wait for
///   the first attempt, for at most the response timeout from its beginning, and fail at once when it has failed.
/// - A connection that is silent is given up: calls wait on it, and no reply to any of them arrives
///   for the response timeout. The calls that wait on it fail with it. A late reply is none of that:
///   while others arrive, a call waits for its own.
/// - While there is no connection, calls fail at once. A background task makes one attempt at a
///   time, with growing pauses. An attempt succeeds when the server replies to a PING, and to a
///   write, if only by an error. The second connection in a row that breaks at once, before it has brought a
///   reply to a call, was no success either.
///
/// # Interleavings
///
/// - A connection breaks while many calls wait on it. Each failed call passes the number of its
///   connection to `record_result`. The first one changes the state and starts the only task; the others
///   find another number and change nothing. Calls that have not failed yet are notified
///   and fail at once. Test: `call_ends_with_its_connection`.
/// - Two calls find that no task connects. `connect_if_idle` looks at the state again while it changes it,
///   so that one of them starts the task.
/// - A runtime ends while its task connects. The task has finished then, so the next call starts one
///   on its own runtime. A call that waits for the attempt is not notified, and ends at its deadline. A runtime that is at rest
///   counts as ended after 7 s, and if its task goes on, it finds another number. Tests:
///   `task_that_has_ended_is_replaced`, `wait_for_a_connection_has_a_deadline` and, with a server,
///   `writer_that_was_at_rest_brings_nothing_back`.
/// - A call uses the new connection at once. `health` knows of a loss of data before the state is stored,
///   so a log is reconciled before it is checked on the new connection.
pub(crate) struct CircuitBreaker {
    servers: RedisServers,
    response_timeout: Duration,
    state: watch::Sender<State>,
    /// The places of the calls that are made in turn.
    calls: Semaphore,
    /// When the last call had a reply.
    replied_at: Mutex<Instant>,
    /// When it was last reported that there is no connection. `None` if there is one, or nobody has missed it yet.
    reported: Mutex<Option<(Instant, LostConnection)>>,
    health: Health,
    /// The server behind the last connection.
    server: Mutex<Option<Server>>,
    /// The name of the mark that is lost when the data is.
    pub(super) mark: String,
}

struct State {
    /// The number of the connection, or of the task that makes it.
    number: u64,
    connection: Option<Connection>,
    /// When it was made, or the present attempt began, with the pause before it.
    since: Instant,
    /// How many attempts in a row have failed. From two on, calls do not wait for the next one, and there are pauses.
    /// The first attempt that fails counts as two, as does a silence. A connection that breaks before it has brought a reply to a
    /// call counts as one: it may lose its first reply.
    failures: u32,
    /// The task that connects. `None` before the first one.
    task: Option<AbortHandle>,
}

impl State {
    fn ready(&self) -> Option<(Connection, u64)> {
        Some((self.connection.clone()?, self.number))
    }

    fn is_ready(&self, wanted: u64) -> bool {
        self.connection.is_some() && self.number == wanted
    }

    /// Returns whether a task connects that has not ended with its runtime, and is not at rest with it.
    fn is_connecting(&self) -> bool {
        self.connection.is_none()
            && self.task.as_ref().is_some_and(|task| !task.is_finished())
            && self.since.elapsed() <= LONGEST_ATTEMPT
    }

    /// Returns whether calls wait for the task.
    fn is_awaited(&self) -> bool {
        self.is_connecting() && self.failures < 2
    }
}

impl CircuitBreaker {
    /// Creates a circuit breaker without a connection.
    pub(crate) fn new(
        servers: RedisServers,
        response_timeout: Duration,
        health: Health,
        mark: String,
    ) -> Arc<Self> {
        let since = Instant::now();
        let state = State { number: 0, connection: None, since, failures: 0, task: None };
        Arc::new(Self {
            servers,
            response_timeout,
            state: watch::Sender::new(state),
            calls: Semaphore::new(MOST_CALLS),
            replied_at: Mutex::new(since),
            reported: Mutex::default(),
            health,
            server: Mutex::default(),
            mark,
        })
    }

    /// Makes one attempt to connect, however long that takes.
    pub(crate) async fn connect(&self) -> Result<(), StoreError> {
        let number = self.state.borrow().number;
        let connection = self.make_connection().await?;
        self.set_connection(number, connection);
        Ok(())
    }

    /// Looks in the background whether the data is still there, and whether the Sentinels still name this master: one
    /// that they can't reach does not know that it was replaced.
    pub(super) fn verify_data_in_background(self: &Arc<Self>) {
        let breaker = self.clone();
        tokio::spawn(async move {
            let Ok((connection, number)) = breaker.connection().await else { return };
            let _ = breaker.verify_data().await;
            if let Some(master) = breaker.servers.master().await
                && master != *connection.address
            {
                let message = "the Sentinels name another master".to_owned();
                let error = StoreError::Refused { code: "MASTERDOWN".to_owned(), message };
                breaker.record_result::<()>(number, &Err(error));
            }
        });
    }

    /// Looks whether the data is still there.
    pub(super) async fn verify_data(self: &Arc<Self>) -> Result<(), StoreError> {
        let look = async |mut connection: Connection| {
            read_server(&mut connection, &self.mark).await.map_err(reply::error)
        };
        match self.call(look).await {
            Ok(server) => self.note_server(server, false),
            // A user of few rights knows of no loss.
            Err(error @ StoreError::Refused { .. }) if !reply::is_not_the_master(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Makes a call, and waits for the reply until the connection is silent or broken. The caller is a task that nobody
    /// drops: otherwise callers with little patience would never find out that a server is silent.
    pub(crate) async fn call<T>(
        self: &Arc<Self>,
        request: impl AsyncFnOnce(Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let (connection, number) = self.connection().await?;
        let mut states = self.state.subscribe();
        // Also if the connection is given up already.
        let mut given_up = pin!(states.wait_for(|state| !state.is_ready(number)));
        let (mut request, mut silence) = (pin!(request(connection)), pin!(self.silence()));
        let result = poll_fn(|cx| {
            if let Poll::Ready(result) = request.as_mut().poll(cx) {
                return Poll::Ready(result);
            }
            if given_up.as_mut().poll(cx).is_ready() {
                let message = "the connection was given up".to_owned();
                return Poll::Ready(Err(StoreError::Disconnected { message }));
            }
            silence.as_mut().poll(cx).map(|()| Err(StoreError::Timeout))
        });
        let result = result.await;
        self.record_result(number, &result);
        result
    }

    pub(super) fn is_connected(&self) -> bool {
        self.state.borrow().connection.is_some()
    }

    /// Waits for a connection as a call does.
    pub(super) async fn connected(self: &Arc<Self>) -> Result<(), StoreError> {
        if self.is_connected() { Ok(()) } else { self.connection().await.map(|_| ()) }
    }

    /// Returns the connection and its number. Waits for the first attempt to make one.
    async fn connection(self: &Arc<Self>) -> Result<(Connection, u64), StoreError> {
        if let Some(ready) = self.state.borrow().ready() {
            return Ok(ready);
        }
        self.connect_if_idle();
        let (began, mut states) = (Instant::now(), self.state.subscribe());
        // A program that waits for each check by `block_on` gives the task that connects no other time.
        yield_now().await;
        let left = self.response_timeout.saturating_sub(states.borrow().since.elapsed());
        let state = timeout(left, states.wait_for(|state| !state.is_awaited())).await;
        let ready = state.ok().and_then(Result::ok).and_then(|state| state.ready());
        // A call at rest with its runtime is not sent late: others may have done since what would undo it.
        let ready = ready.filter(|_| began.elapsed() < self.response_timeout.saturating_mul(2));
        ready.ok_or(StoreError::Unavailable)
    }

    /// Ends when the connection has been silent for the response timeout.
    ///
    /// It looks a few times within that time whether a reply has arrived. A process that stands still,
    /// because its machine is busy, looks once when it goes on, and reads what has arrived before the
    /// next look. So it does not take its own delay for one of the server.
    async fn silence(&self) {
        const LOOKS: u32 = 5;
        let (mut seen, mut looks) = (self.replied_at(), 0);
        while looks < LOOKS {
            sleep(self.response_timeout / LOOKS).await;
            let before = std::mem::replace(&mut seen, self.replied_at());
            looks = if seen == before { looks + 1 } else { 0 };
        }
    }

    async fn make_connection(&self) -> Result<Connection, StoreError> {
        let (connection, server) = self.servers.connect(&self.mark).await?;
        // Before the connection is used: whoever uses it knows of a loss.
        self.note_server(server, true);
        Ok(connection)
    }

    /// Starts the task that connects, if no task does and there is a runtime.
    pub(super) fn connect_if_idle(self: &Arc<Self>) {
        if Handle::try_current().is_err() {
            return;
        }
        self.state.send_if_modified(|state| {
            let is_idle = state.connection.is_none() && !state.is_connecting();
            if is_idle {
                // Of a server that was never tried nobody knows that it fails.
                let failures = if state.task.is_none() { 0 } else { state.failures.max(2) };
                self.begin(state, failures);
            }
            is_idle
        });
    }

    /// Starts the task that connects, in place of a connection or of another task.
    fn begin(self: &Arc<Self>, state: &mut State, failures: u32) {
        let number = state.number + 1;
        let task = tokio::spawn(connect_in_background(Arc::downgrade(self), number));
        let (since, task) = (Instant::now(), Some(task.abort_handle()));
        *state = State { number, connection: None, since, failures, task };
    }

    /// Changes the state, if the connection of this number is still being made.
    fn change(&self, number: u64, change: impl FnOnce(&mut State)) -> bool {
        self.state.send_if_modified(|state| {
            let is_needed = state.number == number && state.connection.is_none();
            if is_needed {
                state.since = Instant::now();
                change(state);
            }
            is_needed
        })
    }

    /// Takes note that a task begins an attempt: calls wait for it from now on. Returns how many have failed.
    fn begin_attempt(&self, number: u64) -> Option<u32> {
        let mut failures = None;
        self.change(number, |state| failures = Some(state.failures));
        failures
    }

    fn set_connection(&self, number: u64, connection: Connection) {
        if self.change(number, |state| state.connection = Some(connection)) {
            self.report_found();
        }
    }

    fn fail(&self, number: u64, error: &StoreError) {
        if self.change(number, |state| state.failures = state.failures.max(1) + 1) {
            self.report_lost(error);
        }
    }

    /// Compares the server behind the connection with the last one. Records a loss if its ID or its mark differs.
    fn note_server(&self, mut server: Server, is_new: bool) {
        let mut known = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*known {
            // One that does not tell counts as another one.
            let is_same = known.history == server.history && !(is_new && known.history.is_empty());
            if is_same && server.mark.is_none() {
                // The next mark that can be read tells whether there was a loss.
                server.mark.clone_from(&known.mark);
            }
            if !is_same || known.mark != server.mark {
                self.health.record_loss();
            }
        }
        *known = Some(server);
    }

    fn replied_at(&self) -> Instant {
        *self.replied_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place among the calls under way, for at most a second.
    pub(crate) async fn place(&self) -> Result<SemaphorePermit<'_>, StoreError> {
        let since = Instant::now();
        match timeout(LONGEST_WAIT, self.calls.acquire()).await {
            Ok(Ok(place)) => Ok(place),
            _ => Err(self.waited_too_long(since)),
        }
    }

    /// Returns why a request was not sent in time that waits since an instant. If Redis has served no other meanwhile, this is an
    /// outage.
    pub(super) fn waited_too_long(&self, since: Instant) -> StoreError {
        if self.replied_at() < since { StoreError::Unavailable } else { StoreError::Overloaded }
    }

    /// Takes note of a reply on a connection, or gives it up if it has broken or is silent, or its server is not the master.
    fn record_result<T>(self: &Arc<Self>, number: u64, result: &Result<T, StoreError>) {
        let (error, least_age) = match result {
            Err(error @ (StoreError::Timeout | StoreError::Disconnected { .. })) => {
                (error, Duration::ZERO)
            }
            Err(error) if reply::is_not_the_master(error) => (error, LEAST_AGE),
            _ => {
                *self.replied_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
                return;
            }
        };
        let mut failures = 0;
        let is_given_up = self.state.send_if_modified(|state| {
            let age = state.since.elapsed();
            let is_it = state.is_ready(number) && age >= least_age;
            if is_it {
                let was_of_use = self.replied_at() > state.since || age >= LONGEST_PAUSE;
                failures = if was_of_use { 0 } else { state.failures + 1 };
                if matches!(error, StoreError::Timeout) {
                    failures = failures.max(2);
                }
                self.begin(state, failures);
            }
            is_it
        });
        if is_given_up && failures >= 2 {
            self.report_lost(error);
            if self.is_connected() {
                // The task was faster.
                self.report_found();
            }
        }
    }

    fn reported(&self) -> MutexGuard<'_, Option<(Instant, LostConnection)>> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports that there is no connection, also if there never was one, every ten seconds at most. The reason may change: first
    /// the server is down, then it refuses the password.
    fn report_lost(&self, error: &StoreError) {
        let mut reported = self.reported();
        let is_new = reported.is_none();
        match &mut *reported {
            Some((at, _)) if at.elapsed() < REPORT_PAUSE => return,
            Some((at, _)) => *at = Instant::now(),
            none => *none = Some((Instant::now(), self.health.lose_connection())),
        }
        // Not under the lock: a subscriber may use the store.
        drop(reported);
        match error {
            // The error names the server itself.
            StoreError::Unreachable { .. } => telemetry::store_lost(error, is_new),
            _ => telemetry::store_lost(format!("{}: {error}", self.servers.name()), is_new),
        }
    }

    fn report_found(&self) {
        let lost = self.reported().take();
        // Not under the lock: a recorder may use the store.
        drop(lost);
        self.health.find_connection();
    }
}

/// Makes a connection, in as many attempts as it takes.
async fn connect_in_background(breaker: Weak<CircuitBreaker>, number: u64) {
    loop {
        // The pause must not keep the circuit breaker alive.
        let failures = breaker.upgrade().and_then(|it| it.begin_attempt(number));
        let Some(failures) = failures else { return };
        if let Some(failures) = failures.checked_sub(2) {
            sleep(pause_after(failures, FIRST_PAUSE, LONGEST_PAUSE)).await;
        }
        let Some(breaker) = breaker.upgrade() else { return };
        match breaker.make_connection().await {
            Ok(connection) => return breaker.set_connection(number, connection),
            Err(error) => breaker.fail(number, &error),
        }
    }
}
