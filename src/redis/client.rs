//! [`Client`]: runs scripts and sends other commands, for the keys of one prefix.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::circuit_breaker::CircuitBreaker;
use super::cluster::{Cluster, Node, USUAL_PAUSE};
use super::connection::Connection;
use super::health::Health;
use super::keys::Keys;
use super::reply::Replies;
use super::request::{Request, is_redirection};
use super::scripts::{Script, Scripts};
use super::servers::RedisServers;
use crate::error::{StoreError, task_has_ended};
use crate::telemetry;
use crate::time::{Pace, pause_after};
use crate::window::LogId;

/// The least time between two looks who has which slot, after a call has failed.
const SHORT_PAUSE: Duration = Duration::from_millis(200);
/// How long a call follows redirections at most, and waits for a slot of which each node has a part.
const LONGEST_DETOUR: Duration = Duration::from_millis(200);
/// The pauses before a call is made again whose slot is on its way to another node.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// Runs scripts and sends other commands, on a Cluster to the node of the first key. Clones share the connections.
///
/// - At most 64 calls to one server are under way, beside those of [`Client::run_many`]. Others wait in
///   their order, and fail after a second without having been sent: as [`StoreError::Overloaded`], or as
///   [`StoreError::Unavailable`] if Redis was silent meanwhile.
/// - A node that refuses a call because its slot is elsewhere has executed nothing. It is asked who has which slot, and the call
///   goes to the node that it names, for at most 0.2 s.
/// - Somebody looks who has which slot once a second while the store is in use, and more often after a call has failed.
#[derive(Clone)]
pub(crate) struct Client {
    pub(super) cluster: Arc<Cluster>,
    pub(crate) keys: Keys,
    pub(crate) scripts: &'static Scripts,
    /// When the last look at the data began.
    pace: Arc<Pace>,
    /// Whether a call is made again whose connection has broken, such as one that was closed while nobody used it.
    repeats: bool,
}

impl Client {
    /// Connects when that is needed.
    pub(crate) fn new(
        servers: RedisServers,
        response_timeout: Duration,
        health: Health,
        keys: Keys,
        scripts: &'static Scripts,
    ) -> Self {
        let cluster = Cluster::new(servers, response_timeout, health, keys.clone());
        Self { cluster, keys, scripts, pace: Arc::new(Pace::done()), repeats: true }
    }

    pub(crate) async fn connect(&self) -> Result<(), StoreError> {
        self.cluster.connect().await
    }

    /// Starts to connect in the background. Does nothing outside a runtime.
    pub(crate) fn connect_in_background(&self) {
        self.cluster.breakers().iter().for_each(|breaker| breaker.connect_if_idle());
    }

    /// Returns whether there is a connection to any server.
    pub(crate) fn has_connection(&self) -> bool {
        self.cluster.breakers().iter().any(|breaker| breaker.is_connected())
    }

    /// Waits for a connection to the server of each log as a call does.
    pub(crate) async fn connected(&self, logs: &[LogId]) -> Result<(), StoreError> {
        if !self.is_cluster() {
            return self.cluster.breaker_of(None).connected().await;
        }
        for log in logs {
            let node = self.node_of(Some(&self.keys.log(log))).await?;
            let connected = node.breaker.connected().await;
            connected.inspect_err(|_| self.refresh_slots(SHORT_PAUSE))?;
        }
        Ok(())
    }

    /// Looks once a second whether Redis still has its data, and which node of a Cluster has which slot.
    pub(crate) fn watch_data(&self) {
        // `FLUSHALL` breaks no connection.
        if self.pace.is_due(Duration::from_secs(1)) {
            let breakers = self.cluster.breakers();
            breakers.iter().for_each(|breaker| breaker.verify_data_in_background());
        }
        self.refresh_slots(USUAL_PAUSE);
    }

    /// Looks in the background who has which slot, unless the last look was less than a pause ago.
    fn refresh_slots(&self, pause: Duration) {
        if self.is_cluster()
            && self.cluster.pace.is_due(pause)
            && let Ok(runtime) = Handle::try_current()
        {
            let cluster = self.cluster.clone();
            runtime.spawn(async move { cluster.look().await });
        }
    }

    /// Looks whether the server of a log still has its data.
    pub(crate) async fn verify_data(&self, log: &LogId) -> Result<(), StoreError> {
        let breaker = self.cluster.breaker_of(Some(&self.keys.log(log)));
        // The caller may leave, and a call may not be dropped.
        let looked = tokio::spawn(async move { breaker.verify_data().await }).await;
        looked.unwrap_or_else(|_| Err(task_has_ended()))
    }

    /// Returns the circuit breaker of the server that has a log, or of any server.
    pub(crate) fn breaker_of(&self, log: Option<&LogId>) -> Arc<CircuitBreaker> {
        self.cluster.breaker_of(log.map(|log| self.keys.log(log)).as_deref())
    }

    /// Returns the number of the server that has a log, if a call to it may have logs of several keys.
    pub(crate) fn number_of(&self, log: Option<&LogId>) -> Option<usize> {
        if !self.is_cluster() {
            return Some(0);
        }
        let number = self.cluster.number_of(&self.keys.log(log?));
        if number.is_none() {
            self.refresh_slots(SHORT_PAUSE);
        }
        number.filter(|_| self.cluster.shares_calls())
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.cluster.has_slots()
    }

    /// Returns a client for calls whose effect, or reply, would be another one if they were repeated.
    pub(crate) fn once(&self) -> Self {
        Self { repeats: false, ..self.clone() }
    }

    /// Runs a script and waits for the reply.
    ///
    /// The command is one that [`Script::command`] has started.
    pub(crate) async fn run(&self, script: &Script, command: &Cmd) -> Result<Value, StoreError> {
        let start = Instant::now();
        let reply = self.call_in_turn(Request::Script(script.clone(), command.clone())).await;
        report(script, start, &reply);
        reply
    }

    /// Runs a script that takes several requests, and returns the reply to each of them.
    ///
    /// The caller bounds how many of these calls are under way.
    pub(crate) async fn run_many<T>(
        &self,
        script: &Script,
        command: Cmd,
        read: impl FnOnce(Replies<'_>) -> Result<Vec<Result<T, StoreError>>, StoreError>,
    ) -> Result<Vec<Result<T, StoreError>>, StoreError> {
        let start = Instant::now();
        let reply = self.call(&Request::Batch(script.clone(), command)).await;
        let replies = reply.and_then(|reply| read(Replies::of(&reply)?));
        report(script, start, &replies);
        replies
    }

    pub(crate) async fn send_all(&self, commands: &Pipeline) -> Result<Value, StoreError> {
        self.call_in_turn(Request::Pipeline(commands.clone())).await
    }

    pub(crate) async fn send(&self, command: &Cmd) -> Result<Value, StoreError> {
        self.call_in_turn(Request::Command(command.clone())).await
    }

    /// Makes a call in a task of its own: a caller that does not poll its future, or drops it, holds
    /// none of the places under way. A caller that has gone before its turn sends nothing.
    async fn call_in_turn(&self, request: Request) -> Result<Value, StoreError> {
        self.watch_data();
        let (client, (caller, reply)) = (self.clone(), oneshot::channel());
        tokio::spawn(async move {
            let breaker = client.cluster.breaker_of(request.key());
            let result = match breaker.place().await {
                Ok(_) if caller.is_closed() => return,
                Ok(_place) => match client.call(&request).await {
                    Err(error @ StoreError::Disconnected { .. }) if client.repeats => {
                        client.call(&request).await.map_err(|_| error)
                    }
                    result => result,
                },
                Err(error) => Err(error),
            };
            // An error means that the caller has gone.
            let _ = caller.send(result);
        });
        reply.await.unwrap_or_else(|_| Err(task_has_ended()))
    }

    /// Sends a request to its server, and waits for the reply. A server that lacks the script gets its text.
    async fn call(&self, request: &Request) -> Result<Value, StoreError> {
        let reply = self.call_node(request).await;
        if matches!(&reply, Err(StoreError::Refused { code, .. }) if code == "NOSCRIPT")
            && let Some(request) = request.with_text()
        {
            return self.call_node(&request).await;
        }
        reply
    }

    /// Sends a request to the node of its first key, or to any node if it has none, and follows redirections.
    async fn call_node(&self, request: &Request) -> Result<Value, StoreError> {
        let name = request.key();
        let mut node = self.node_of(name).await?;
        let (mut end, mut refusals, mut is_asking) = (None, 0, false);
        loop {
            let slots = self.cluster.slots.load_full();
            let call = async |it: Connection| request.send(it.asking(is_asking)).await;
            let result = node.breaker.call(call).await;
            let Err(error) = &result else { return result };
            let (code, message) = match error {
                StoreError::Refused { code, message } if self.is_cluster() => (&**code, &**message),
                _ => ("", ""),
            };
            // From the first refusal on: the way to the node may take longer than that.
            let now = Instant::now();
            if !is_redirection(code) || now >= *end.get_or_insert(now + LONGEST_DETOUR) {
                self.refresh_slots(SHORT_PAUSE);
                return result;
            }
            is_asking = code == "ASK";
            if code == "MOVED" {
                // Whoever refuses it knows who has the slots.
                self.cluster.ask_once(&node, &slots).await;
            }
            if !is_asking {
                sleep(pause_after(refusals, FIRST_PAUSE, LONGEST_PAUSE)).await;
                refusals += 1;
            }
            node = match code {
                "TRYAGAIN" => self.node_of(name).await?,
                // Its key may be another one than `name`.
                _ => self.cluster.node_at(message, is_asking, &node)?,
            };
        }
    }

    /// Returns the node of a Redis key, or any node.
    async fn node_of(&self, name: Option<&[u8]>) -> Result<Arc<Node>, StoreError> {
        let cluster = &self.cluster;
        let slots = cluster.slots.load_full();
        let Some(name) = name.filter(|_| self.is_cluster()) else {
            let connected = slots.nodes.iter().find(|node| node.breaker.is_connected());
            return Ok(connected.unwrap_or(&slots.nodes[0]).clone());
        };
        if let Some(node) = slots.node_of(name) {
            return Ok(node.clone());
        }
        match slots.numbers.is_empty() {
            true => cluster.ask_once(&slots.nodes[0], &slots).await,
            // Nobody has the slot.
            false => self.refresh_slots(SHORT_PAUSE),
        }
        cluster.slots.load().node_of(name).cloned().ok_or(StoreError::Unavailable)
    }
}

/// Reports a call, unless there was none because there is no connection.
fn report<T>(script: &Script, start: Instant, result: &Result<T, StoreError>) {
    let error = result.as_ref().err();
    if error.is_none_or(StoreError::was_sent) {
        telemetry::script_called(script.name(), start.elapsed(), error.map(StoreError::kind));
    }
}
