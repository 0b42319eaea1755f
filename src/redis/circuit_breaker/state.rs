//! [`Shared`]: the state of a circuit breaker, and the task that reconnects.

#[cfg(feature = "cluster")]
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
#[cfg(feature = "cluster")]
use std::task::Poll;
use std::time::Duration;

use arc_swap::ArcSwap;
use redis::RedisResult;
use tokio::runtime::Handle;
use tokio::sync::Notify;
#[cfg(feature = "cluster")]
use tokio::time::sleep;
use tokio::time::{Instant, timeout};

use crate::error::StoreError;
use crate::redis::node::Node;
use crate::redis::{Backoff, Connection, Connector, Health};
#[cfg(feature = "cluster")]
use crate::redis::{connection::STEP_TIMEOUT, nodes::Nodes};
use crate::telemetry;

/// How many calls in a row fail on a Cluster before its connection is given up.
const MAX_FAILURES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// Short enough that Redis decides again within a second of its return.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// The same for a node of a Cluster, which costs less than a new connection to all of them.
#[cfg(feature = "cluster")]
const LONGEST_NODE_PAUSE: Duration = Duration::from_millis(200);
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
// - A node becomes silent after a call has looked whether it is, and before the call waits. The call receives the
//   notification, as above. A silence lasts for as long as the task that watches the node: if its runtime ends, the
//   next calls wait for the node again. Test: `silence_of_a_node_ends_when_its_runtime_is_gone`.
// - Another node takes the place of one, maybe without its last writes, and calls follow to it on the present connection.
//   `Nodes::read` records a loss before it stores the nodes, so each log is reconciled first. The present connection may
//   do that at the old node, which does not know yet. So `follow_nodes` makes a new one, which counts as a loss again.
//   Test: `replaced_node_never_over_admits`.
// - A connection is replaced while calls to its nodes wait. They fail, and say nothing of the nodes: `give_up_node` compares
//   the number of the connection, under the lock. Test: `failures_on_a_replaced_connection_concern_no_node`.
// - A call uses the new connection at once. `health` knows of a loss of data before the state is stored,
//   so a log is reconciled before it is checked on the new connection.
pub(super) struct Shared {
    pub(super) connector: Connector,
    pub(super) response_timeout: Duration,
    pub(super) state: ArcSwap<State>,
    /// Held while the state is changed.
    lock: Mutex<()>,
    pub(super) changed: Notify,
    failures: AtomicU32,
    /// How many calls have had a reply.
    replies: AtomicU64,
    is_reported: AtomicBool,
    /// Whether a PING is under way, for callers that have left.
    pub(super) is_probing: AtomicBool,
    pub(super) health: Health,
    pub(super) mark: String,
    #[cfg(feature = "cluster")]
    pub(super) nodes: Nodes,
    /// Whether a node has lost its slots since the connection was made.
    #[cfg(feature = "cluster")]
    is_node_gone: AtomicBool,
    epoch: Instant,
    /// When the last look at the mark or at the nodes began, in milliseconds after the epoch.
    looked_ms: AtomicU64,
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
            failures: AtomicU32::new(0),
            replies: AtomicU64::new(0),
            is_reported: AtomicBool::new(false),
            is_probing: AtomicBool::new(false),
            health,
            mark,
            #[cfg(feature = "cluster")]
            nodes: Nodes::default(),
            #[cfg(feature = "cluster")]
            is_node_gone: AtomicBool::new(false),
            epoch: Instant::now(),
            looked_ms: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_ready(&self, wanted: u64) -> bool {
        self.ready(wanted).is_some()
    }

    /// Returns the connection with this number, unless it was given up.
    fn ready(&self, wanted: u64) -> Option<Connection> {
        match &**self.state.load() {
            State::Ready { connection, number, .. } if *number == wanted => {
                Some(connection.clone())
            }
            _ => None,
        }
    }

    pub(super) async fn connect(&self) -> Result<Connection, StoreError> {
        let error = match self.connector.connect().await {
            Ok(connection) => {
                if !self.connector.is_cluster() {
                    // Before the connection is used: whoever uses it knows of a loss.
                    self.health.see(Connector::server(&connection, &self.mark).await);
                }
                #[cfg(feature = "cluster")]
                if self.connector.is_cluster() {
                    // After an error no calls are shared.
                    let mut own = connection.clone();
                    let _ = timeout(STEP_TIMEOUT, self.read_nodes(&mut own)).await;
                }
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
        let _lock = self.lock();
        if !matches!(**self.state.load(), State::Idle) {
            self.health.record_connection();
            if self.connector.is_cluster() {
                // A node may have been emptied while there was no connection to it.
                self.health.record_loss();
            }
        }
        #[cfg(feature = "cluster")]
        self.is_node_gone.store(false, Ordering::Relaxed);
        self.failures.store(0, Ordering::Relaxed);
        self.state.store(Arc::new(State::Ready { connection, number, since: Instant::now() }));
        self.changed.notify_waiters();
        self.is_reported.store(false, Ordering::Relaxed);
        telemetry::store_found();
    }

    /// Returns whether the last look was a second ago. Returns `true` once a second.
    pub(super) fn is_look_due(&self) -> bool {
        let now_ms = u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX);
        let looked_ms = self.looked_ms.load(Ordering::Relaxed);
        let (exchange, order) = (AtomicU64::compare_exchange, Ordering::Relaxed);
        now_ms - looked_ms.min(now_ms) >= 1_000
            && exchange(&self.looked_ms, looked_ms, now_ms, order, order).is_ok()
    }

    pub(super) fn replies(&self) -> u64 {
        self.replies.load(Ordering::Relaxed)
    }

    /// Waits for a reply of the server, or of a node of a Cluster.
    #[cfg_attr(not(feature = "cluster"), expect(unused_variables, reason = "there is one server"))]
    pub(super) async fn ping(
        &self,
        mut connection: Connection,
        node: Option<&Node>,
    ) -> RedisResult<()> {
        #[cfg(feature = "cluster")]
        if let Some(node) = node {
            return self.nodes.reply_of(node, &connection, &self.mark).await;
        }
        redis::cmd("PING").exec_async(&mut connection).await
    }

    /// Asks a Cluster which node has which slot.
    #[cfg(feature = "cluster")]
    pub(super) async fn read_nodes(&self, connection: &mut Connection) -> RedisResult<()> {
        if self.nodes.read(connection, &self.mark, &self.health).await? {
            self.is_node_gone.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Makes a new connection if a node has lost its slots to another one: the present connection may go on asking it.
    #[cfg(feature = "cluster")]
    pub(super) async fn follow_nodes(&self) {
        if self.is_node_gone.load(Ordering::Relaxed)
            && let Ok(new) = self.connect().await
        {
            self.set_ready(new);
        }
    }

    /// Counts the replies on a connection, and gives it up, or a node of it, if it has broken or is silent.
    pub(super) fn record_result<T>(
        self: &Arc<Self>,
        number: u64,
        node: Option<&Arc<Node>>,
        result: &Result<T, StoreError>,
    ) {
        #[cfg(feature = "cluster")]
        if let (Err(error), Some(node)) = (result, node)
            && is_of_lost_node(error)
        {
            return self.give_up_node(number, node);
        }
        let error = match result {
            Err(error @ (StoreError::Timeout | StoreError::Disconnected { .. })) => error,
            Err(error @ StoreError::Refused { code, .. }) if code == "READONLY" => {
                return self.give_up(number, State::Connecting, LEAST_AGE, error);
            }
            _ => {
                self.replies.fetch_add(1, Ordering::Relaxed);
                if let Some(node) = node {
                    node.record_reply();
                }
                if self.failures.load(Ordering::Relaxed) > 0 {
                    self.failures.store(0, Ordering::Relaxed);
                }
                return;
            }
        };
        #[cfg(feature = "cluster")]
        if self.nodes.is_one_silent() {
            // The call may have been for that node. The task that watches it replaces a connection that hangs.
            return;
        }
        if !self.connector.is_cluster() {
            let is_broken = matches!(error, StoreError::Disconnected { .. });
            let next = if is_broken { State::Connecting } else { State::Failed };
            self.give_up(number, next, Duration::ZERO, error);
        } else if self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_FAILURES {
            self.give_up(number, State::Failed, Duration::ZERO, error);
        }
    }

    pub(super) fn give_up(
        self: &Arc<Self>,
        failed: u64,
        next: fn(Attempt) -> State,
        least_age: Duration,
        error: &StoreError,
    ) {
        let _lock = self.lock();
        match &**self.state.load() {
            State::Ready { number, since, .. }
                if *number == failed && since.elapsed() >= least_age => {}
            _ => return,
        }
        self.health.record_failure();
        let token = Arc::new(());
        let next = next(Arc::downgrade(&token));
        if matches!(next, State::Failed(_)) {
            self.report_lost(error);
        }
        self.state.store(Arc::new(next));
        self.changed.notify_waiters();
        tokio::spawn(reconnect(Arc::downgrade(self), token));
    }

    /// Has calls to a node fail at once, until it replies.
    #[cfg(feature = "cluster")]
    fn give_up_node(self: &Arc<Self>, number: u64, node: &Arc<Node>) {
        let _lock = self.lock();
        if self.is_ready(number)
            && let Some(token) = node.begin_watch()
        {
            self.health.record_failure();
            telemetry::node_lost();
            self.changed.notify_waiters();
            tokio::spawn(watch(Arc::downgrade(self), number, node.clone(), token));
        }
    }

    /// Returns whether a node of a Cluster replies in time.
    #[cfg(feature = "cluster")]
    async fn replies_on(&self, connection: Connection, node: &Node) -> bool {
        let ping = timeout(self.response_timeout, self.ping(connection, Some(node)));
        ping.await.is_ok_and(|reply| reply.is_ok())
    }

    /// Has calls to a node wait for replies again.
    #[cfg(feature = "cluster")]
    fn find_node(&self, token: Arc<()>) {
        drop(token);
        self.health.record_connection();
        if !self.nodes.is_one_silent() {
            telemetry::store_found();
        }
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
        let _lock = self.lock();
        self.report_lost(error);
        if let State::Connecting(attempt) = &**self.state.load() {
            self.state.store(Arc::new(State::Failed(attempt.clone())));
            self.changed.notify_waiters();
        }
    }

    /// Reports once that there is no connection, also if there never was one.
    fn report_lost(&self, error: &StoreError) {
        if !self.is_reported.swap(true, Ordering::Relaxed) {
            telemetry::store_lost(error);
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

/// Returns whether an error says that there is no connection to the node of a call, or no reply of it. The other nodes go
/// on naming it: the client has followed that many times before it fails. Or that the node serves nobody.
#[cfg(feature = "cluster")]
fn is_of_lost_node(error: &StoreError) -> bool {
    match error {
        StoreError::Timeout | StoreError::Disconnected { .. } | StoreError::Unreachable { .. } => {
            true
        }
        StoreError::Refused { code, .. } => code == "MOVED" || is_cluster_down(error),
        _ => false,
    }
}

/// Returns whether an error says that a node of a Cluster serves nobody, because some slots have no node. The client has
/// asked it many times.
pub(super) fn is_cluster_down(error: &StoreError) -> bool {
    matches!(error, StoreError::Refused { code, .. } if code == "CLUSTERDOWN")
}

/// Asks a silent node of a connection until it replies, or another one has its slots.
///
/// Meanwhile new connections are made. The present one can't find another node, it may hang as a whole, and a firewall may
/// have forgotten it. But a new connection is as good as a loss of data: better the present one.
#[cfg(feature = "cluster")]
async fn watch(breaker: Weak<Shared>, number: u64, node: Arc<Node>, token: Arc<()>) {
    let begin = Instant::now();
    loop {
        let mut replied = pin!(ask_until_reply(&breaker, number, &node));
        let mut connected = pin!(connect_until_reply(&breaker, number, &node));
        let first = poll_fn(|cx| match replied.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => connected.as_mut().poll(cx),
        });
        let mut new = first.await;
        if new.is_some() && timeout(FIRST_PAUSE, replied).await.is_ok() {
            new = None;
        }
        let Some(breaker) = breaker.upgrade() else { return };
        let Some(mut connection) = breaker.ready(number) else { return };
        if let Some(new) = new {
            drop(token);
            return breaker.set_ready(new);
        }
        if begin.elapsed() > FIRST_PAUSE {
            // A primary that stood still replies before it learns that another one has taken its place.
            sleep(FIRST_PAUSE).await;
            let _ = timeout(breaker.response_timeout, breaker.read_nodes(&mut connection)).await;
        }
        if breaker.nodes.has(&node) {
            return breaker.find_node(token);
        }
    }
}

/// Waits until a node replies on the present connection, or there is another connection.
#[cfg(feature = "cluster")]
async fn ask_until_reply(breaker: &Weak<Shared>, number: u64, node: &Arc<Node>) {
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_NODE_PAUSE);
    while let Some(breaker) = breaker.upgrade()
        && let Some(connection) = breaker.ready(number)
        && !breaker.replies_on(connection, node).await
    {
        drop(breaker);
        backoff.pause().await;
    }
}

/// Makes connections until a node replies on one, or has no slots any more. Returns `None` when another one is in use.
#[cfg(feature = "cluster")]
async fn connect_until_reply(
    breaker: &Weak<Shared>,
    number: u64,
    node: &Arc<Node>,
) -> Option<Connection> {
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    loop {
        backoff.pause().await;
        let breaker = breaker.upgrade().filter(|it| it.is_ready(number))?;
        if let Ok(new) = breaker.connect().await
            && (!breaker.nodes.has(node) || breaker.replies_on(new.clone(), node).await)
        {
            return Some(new);
        }
    }
}
