//! [`CircuitBreaker`]: the connection to Redis, given up when it fails and made again in the
//! background.

#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};

use super::connection::{Address, Connection};
use super::connector::{Connector, Server, read_mark};
use super::{Backoff, Health, reply};
use crate::error::StoreError;
use crate::telemetry;
use crate::time::Pace;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// Short enough that Redis decides again within a second of its return.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// The longest time that an attempt takes while its runtime is driven: longer than its steps.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(7);
/// The least time between two replacements of a connection whose server is no longer the master.
const LEAST_AGE: Duration = Duration::from_secs(1);

/// The least time between reports of reasons that differ.
const REASON_PAUSE: Duration = Duration::from_secs(10);
/// After how long a reason is reported again that stays: other lines of the log say only that there is no connection.
const REMINDER: Duration = Duration::from_secs(60);

/// A connection shared by all requests, with a circuit breaker.
///
/// - The first connection is made when it is needed, and one that breaks is made again at once. Calls wait for
///   the first attempt, for at most the response timeout, and fail at once when it has failed.
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
///   connection to `give_up`. The first one changes the state and starts the only task; the others
///   find another state or number and change nothing. Calls that have not failed yet are notified
///   and fail at once. Test: `call_ends_with_its_connection`.
/// - Two calls find that no task connects. `connect_if_idle` looks at the state again while it changes it,
///   so that one of them starts the task. A state without a connection holds a weak reference to a
///   token of its task. The task drops the token after it has stored `Ready`, so that there is no
///   moment at which a second task could start.
/// - A runtime ends while its task reconnects. The token is dropped with the task, so the state
///   counts as idle, and the next call starts a task on its own runtime. A call that waits for the
///   attempt is not notified, and ends at its deadline. A runtime that is at rest counts as ended after 7 s, and if its task goes
///   on, it finds that another one has taken its place. Tests:
///   `wait_for_a_connection_has_a_deadline` and, with a server,
///   `store_that_was_made_in_a_runtime_at_rest_connects`.
/// - A call uses the new connection at once. `health` knows of a loss of data before the state is stored,
///   so a log is reconciled before it is checked on the new connection.
pub(crate) struct CircuitBreaker {
    connector: Connector,
    response_timeout: Duration,
    state: watch::Sender<State>,
    /// How many calls have had a reply.
    replies: AtomicU64,
    /// Why there is no connection, as it was last reported, and when. `None` if there is one, or nobody has missed it yet.
    reported: Mutex<Option<(String, Instant)>>,
    /// When a further reason was last reported.
    reported_again: Pace,
    health: Health,
    /// The server behind the last connection.
    server: Mutex<Option<Server>>,
    mark: String,
    /// Whether the connection before broke at once.
    was_useless: AtomicBool,
    /// The pauses before attempts to connect. They begin anew once a connection was of use.
    backoff: Mutex<Backoff>,
}

enum State {
    /// No call has needed a connection yet.
    Idle,
    /// A task connects.
    Connecting {
        /// A reference to its token. It is dangling when the task is gone.
        token: Weak<()>,
        /// When it last began anew.
        since: Instant,
        /// Whether calls wait for it: it makes the first attempt, at all or after a connection that worked. If it has
        /// failed, calls fail at once.
        is_awaited: bool,
    },
    Ready {
        connection: Connection,
        number: u64,
        since: Instant,
        /// How many calls had had a reply by then.
        replies: u64,
    },
}

impl State {
    fn connecting(token: &Arc<()>, is_awaited: bool) -> Self {
        Self::Connecting { token: Arc::downgrade(token), since: Instant::now(), is_awaited }
    }

    fn ready(&self) -> Option<(Connection, u64)> {
        match self {
            Self::Ready { connection, number, .. } => Some((connection.clone(), *number)),
            _ => None,
        }
    }

    fn is_ready(&self, wanted: u64) -> bool {
        matches!(self, Self::Ready { number, .. } if *number == wanted)
    }

    fn is_connecting(&self) -> bool {
        matches!(self, Self::Connecting { is_awaited: true, .. }) && !self.is_idle()
    }

    /// Returns whether no other task connects in place of that of a token.
    fn is_of(&self, token: &Arc<()>) -> bool {
        matches!(self, Self::Connecting { token: of, .. } if of.as_ptr() == Arc::as_ptr(token))
    }

    /// Returns whether no task connects, or only one that is at rest with its runtime.
    fn is_idle(&self) -> bool {
        match self {
            Self::Idle => true,
            Self::Connecting { token, since, .. } => {
                token.strong_count() == 0 || since.elapsed() > LONGEST_ATTEMPT
            }
            Self::Ready { .. } => false,
        }
    }
}

impl CircuitBreaker {
    /// Creates a circuit breaker without a connection. `mark` is the name of the mark that is lost when
    /// the data is.
    pub(crate) fn new(
        connector: Connector,
        response_timeout: Duration,
        health: Health,
        mark: String,
    ) -> Arc<Self> {
        Arc::new(Self {
            connector,
            response_timeout,
            state: watch::Sender::new(State::Idle),
            replies: AtomicU64::new(0),
            reported: Mutex::default(),
            reported_again: Pace::new(),
            health,
            server: Mutex::default(),
            mark,
            was_useless: AtomicBool::new(false),
            backoff: Mutex::new(Backoff::new(FIRST_PAUSE, LONGEST_PAUSE)),
        })
    }

    pub(crate) async fn connect(&self) -> Result<(), StoreError> {
        let connection = self.make_connection().await?;
        self.set_ready(connection);
        Ok(())
    }

    /// Looks in the background whether the data is still there, and whether the Sentinels still name this master: one
    /// that they can't reach does not know that it was replaced.
    pub(super) fn verify_data_in_background(self: &Arc<Self>) {
        let breaker = self.clone();
        tokio::spawn(async move {
            let Ok((_, number)) = breaker.connection().await else { return };
            let _ = breaker.verify_data().await;
            if let Some(master) = breaker.connector.master().await
                && breaker.is_another_master(&master)
            {
                let message = "the Sentinels name another master".to_owned();
                let error = StoreError::Disconnected { message };
                breaker.give_up(number, true, LEAST_AGE, &error);
            }
        });
    }

    /// Looks whether the data is still there.
    pub(super) async fn verify_data(self: &Arc<Self>) -> Result<(), StoreError> {
        let look = async |mut connection: Connection| {
            read_mark(&mut connection, &self.mark).await.map_err(reply::error)
        };
        match self.call(look).await {
            Ok((mark, history)) => self.see_mark(mark, history),
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
        self.state.borrow().ready().is_some()
    }

    /// Waits for a connection as a call does.
    pub(super) async fn connected(self: &Arc<Self>) -> Result<(), StoreError> {
        self.connection().await.map(|_| ())
    }

    /// Returns the connection and its number. Waits for the first attempt to make one.
    async fn connection(self: &Arc<Self>) -> Result<(Connection, u64), StoreError> {
        if let Some(ready) = self.state.borrow().ready() {
            return Ok(ready);
        }
        self.connect_if_idle();
        let (began, mut states) = (Instant::now(), self.state.subscribe());
        let tried = states.wait_for(|state| !state.is_connecting());
        let state = timeout(self.response_timeout, tried).await;
        let ready = state.ok().and_then(Result::ok).and_then(|state| state.ready());
        // A call at rest with its runtime is not sent late: others may have done since what would undo it.
        let ready = ready.filter(|_| began.elapsed() < self.response_timeout.saturating_mul(2));
        if ready.is_none() {
            // A program that waits for each check by `block_on` gives the task that connects no other time.
            yield_now().await;
        }
        ready.ok_or(StoreError::Unavailable)
    }

    /// Ends when the connection has been silent for the response timeout.
    ///
    /// It looks a few times within that time whether a reply has arrived. A process that stands still,
    /// because its machine is busy, looks once when it goes on, and reads what has arrived before the
    /// next look. So it does not take its own delay for one of the server.
    async fn silence(&self) {
        const LOOKS: u32 = 5;
        let (mut seen, mut looks) = (self.replies(), 0);
        while looks < LOOKS {
            sleep(self.response_timeout / LOOKS).await;
            let before = std::mem::replace(&mut seen, self.replies());
            looks = if seen == before { looks + 1 } else { 0 };
        }
    }

    async fn make_connection(&self) -> Result<Connection, StoreError> {
        let (connection, server) = self.connector.connect(&self.mark).await?;
        // Before the connection is used: whoever uses it knows of a loss.
        self.see(server);
        Ok(connection)
    }

    /// Starts the task that connects, if no task does and there is a runtime.
    pub(super) fn connect_if_idle(self: &Arc<Self>) {
        let is_idle = self.state.borrow().is_idle();
        let Ok(runtime) = Handle::try_current() else { return };
        let token = Arc::new(());
        let is_first = is_idle
            && self.state.send_if_modified(|state| {
                let is_idle = state.is_idle();
                if is_idle {
                    // Of a server that was never tried nobody knows that it fails.
                    *state = State::connecting(&token, matches!(state, State::Idle));
                }
                is_idle
            });
        if is_first {
            runtime.spawn(reconnect(Arc::downgrade(self), token, false));
        }
    }

    fn set_ready(&self, connection: Connection) {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        self.state.send_modify(|state| {
            let (since, replies) = (Instant::now(), self.replies());
            *state = State::Ready { connection, number, since, replies };
        });
        if self.reported().take().is_some() {
            self.health.forget_lost_connection();
        }
        self.health.find_connection();
    }

    /// Takes note of the server behind a new connection. Records a loss if it is not the one of before.
    fn see(&self, mut server: Server) {
        let mut known = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*known {
            let is_same = known.run_id.is_some()
                && (&known.run_id, &known.master, &known.history)
                    == (&server.run_id, &server.master, &server.history);
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

    /// Takes note of the mark and the replication ID on the connection in use. Records a loss if they are others.
    fn see_mark(&self, mark: String, history: String) {
        let mut known = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &mut *known
            && (known.mark.as_ref(), &known.history) != (Some(&mark), &history)
        {
            (known.mark, known.history) = (Some(mark), history);
            self.health.record_loss();
        }
    }

    fn is_another_master(&self, master: &Address) -> bool {
        let known = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().is_some_and(|known| known.master.as_ref() != Some(master))
    }

    /// Returns how many calls have had a reply.
    pub(super) fn replies(&self) -> u64 {
        self.replies.load(Ordering::Relaxed)
    }

    /// Counts the replies on a connection, and gives it up if it has broken or is silent.
    fn record_result<T>(self: &Arc<Self>, number: u64, result: &Result<T, StoreError>) {
        match result {
            Err(error @ StoreError::Timeout) => {
                self.give_up(number, false, Duration::ZERO, error);
            }
            Err(error @ StoreError::Disconnected { .. }) => {
                self.give_up(number, true, Duration::ZERO, error);
            }
            Err(error) if reply::is_not_the_master(error) => {
                self.give_up(number, true, LEAST_AGE, error);
            }
            _ => drop(self.replies.fetch_add(1, Ordering::Relaxed)),
        }
    }

    fn give_up(
        self: &Arc<Self>,
        failed: u64,
        is_awaited: bool,
        least_age: Duration,
        error: &StoreError,
    ) {
        let (token, mut pauses) = (Arc::new(()), false);
        let is_given_up = self.state.send_if_modified(|state| match state {
            State::Ready { number, since, replies, .. }
                if *number == failed && since.elapsed() >= least_age =>
            {
                let was_of_use = self.replies() > *replies || since.elapsed() >= LONGEST_PAUSE;
                // One may lose its first reply.
                pauses = self.was_useless.swap(!was_of_use, Ordering::Relaxed) && !was_of_use;
                *state = State::connecting(&token, is_awaited && !pauses);
                true
            }
            _ => false,
        });
        if is_given_up {
            if matches!(error, StoreError::Timeout) || pauses {
                self.report_lost(error);
            }
            if !pauses {
                self.backoff().reset();
            }
            tokio::spawn(reconnect(Arc::downgrade(self), token, pauses));
        }
    }

    /// Makes a connection. If that takes longer than a reply may, calls no longer wait for it.
    async fn reconnect(&self) -> Result<Connection, StoreError> {
        let mut attempt = pin!(self.make_connection());
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
        self.state.send_if_modified(|state| match state {
            State::Connecting { since, is_awaited, .. } => {
                *since = Instant::now();
                std::mem::replace(is_awaited, false)
            }
            _ => false,
        });
    }

    fn backoff(&self) -> MutexGuard<'_, Backoff> {
        self.backoff.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reported(&self) -> MutexGuard<'_, Option<(String, Instant)>> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports that there is no connection, also if there never was one: once a minute, and sooner if there is none for
    /// another reason, such as a server that does not run yet, and then refuses the password.
    fn report_lost(&self, error: &StoreError) {
        let text = match error {
            // The error names the server itself.
            StoreError::Unreachable { .. } => error.to_string(),
            _ => format!("{}: {error}", self.connector.name()),
        };
        let mut reported = self.reported();
        let is_first = reported.is_none();
        let is_due = match &*reported {
            None => true,
            Some((before, at)) if *before == text => at.elapsed() >= REMINDER,
            // A slow attempt is reported as a timeout first, and then as what it fails with.
            Some(_) => {
                !matches!(error, StoreError::Timeout) && self.reported_again.is_due(REASON_PAUSE)
            }
        };
        if is_due {
            *reported = Some((text.clone(), Instant::now()));
            // Not under the lock: a subscriber may use the store.
            drop(reported);
            match is_first {
                true => self.health.lose_connection(&text),
                false => telemetry::store_lost(&text),
            }
        }
    }
}

impl Drop for CircuitBreaker {
    fn drop(&mut self) {
        if self.reported().is_some() {
            self.health.forget_lost_connection();
        }
    }
}

async fn reconnect(breaker: Weak<CircuitBreaker>, token: Arc<()>, mut pauses: bool) {
    loop {
        // The pause must not keep the circuit breaker alive.
        if pauses {
            let Some(pause) = breaker.upgrade().map(|it| it.backoff().next_pause()) else { return };
            sleep(pause).await;
        }
        pauses = true;
        let Some(breaker) = breaker.upgrade() else { return };
        let result = breaker.reconnect().await;
        if !breaker.state.borrow().is_of(&token) {
            return;
        }
        match result {
            Ok(connection) => return breaker.set_ready(connection),
            Err(error) => breaker.set_failed(&error),
        }
    }
}
