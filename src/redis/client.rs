//! [`Client`]: runs scripts and sends other commands, for the keys of one prefix.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};
use tokio::time::{Instant, timeout};

use super::circuit_breaker::CircuitBreaker;
use super::cluster::{Cluster, USUAL_PAUSE};
use super::keys::Keys;
use super::reply::Replies;
use super::request::Request;
use super::scripts::{Script, Scripts};
use crate::error::{StoreError, task_has_ended};
use crate::telemetry;
use crate::time::Pace;
use crate::window::LogId;

/// The longest wait of a request for its call. A user who waits longer has left.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Runs scripts and sends other commands. Clones share the connections.
///
/// At most 64 calls to one server are under way, beside those of [`Client::run_many`]. Others wait in
/// their order, and fail after a second without having been sent: as [`StoreError::Overloaded`], or as
/// [`StoreError::Unavailable`] if Redis was silent meanwhile.
#[derive(Clone)]
pub(crate) struct Client {
    backend: Backend,
    pub(crate) keys: Keys,
    pub(crate) scripts: &'static Scripts,
    pub(super) response_timeout: Duration,
    /// When the last look at the data began.
    pace: Arc<Pace>,
    /// Whether a call is made again whose connection has broken, such as one that was closed while nobody used it.
    repeats: bool,
}

/// The connection to one server, or those to the nodes of a Cluster, each with its circuit breaker.
#[derive(Clone)]
pub(crate) enum Backend {
    One(Arc<CircuitBreaker>),
    Cluster(Arc<Cluster>),
}

impl Client {
    pub(crate) fn new(
        backend: Backend,
        keys: Keys,
        scripts: &'static Scripts,
        response_timeout: Duration,
    ) -> Self {
        let pace = Arc::new(Pace::done());
        Self { backend, keys, scripts, response_timeout, pace, repeats: true }
    }

    pub(crate) async fn connect(&self) -> Result<(), StoreError> {
        match &self.backend {
            Backend::One(breaker) => breaker.connect().await,
            Backend::Cluster(cluster) => cluster.connect().await,
        }
    }

    /// Starts to connect in the background. Does nothing outside a runtime.
    pub(crate) fn connect_in_background(&self) {
        self.breakers().iter().for_each(|breaker| breaker.connect_if_idle());
    }

    fn breakers(&self) -> Vec<Arc<CircuitBreaker>> {
        match &self.backend {
            Backend::One(breaker) => vec![breaker.clone()],
            Backend::Cluster(cluster) => cluster.breakers(),
        }
    }

    /// Returns whether there is a connection to any server.
    pub(crate) fn has_connection(&self) -> bool {
        self.breakers().iter().any(|breaker| breaker.is_connected())
    }

    /// Waits for a connection to the server of each log as a call does.
    pub(crate) async fn connected(&self, logs: &[LogId]) -> Result<(), StoreError> {
        match &self.backend {
            Backend::One(breaker) => breaker.connected().await,
            Backend::Cluster(cluster) => {
                for log in logs {
                    cluster.connected(&self.keys.log(log)).await?;
                }
                Ok(())
            }
        }
    }

    /// Looks once a second whether Redis still has its data, and which node of a Cluster has which slot.
    pub(crate) fn watch_data(&self) {
        // `FLUSHALL` breaks no connection.
        if self.pace.is_due(Duration::from_secs(1)) {
            self.breakers().iter().for_each(|breaker| breaker.verify_data_in_background());
        }
        if let Backend::Cluster(cluster) = &self.backend {
            cluster.refresh_slots(USUAL_PAUSE);
        }
    }

    /// Looks whether the server of a log still has its data.
    pub(crate) async fn verify_data(&self, log: &LogId) -> Result<(), StoreError> {
        let breaker = self.breaker_of(Some(&self.keys.log(log)));
        // The caller may leave, and a call may not be dropped.
        let looked = tokio::spawn(async move { breaker.verify_data().await }).await;
        looked.unwrap_or_else(|_| Err(task_has_ended()))
    }

    /// Returns the circuit breaker of the server that has a Redis key, or of any if that is not known.
    fn breaker_of(&self, name: Option<&[u8]>) -> Arc<CircuitBreaker> {
        match &self.backend {
            Backend::One(breaker) => breaker.clone(),
            Backend::Cluster(cluster) => cluster.breaker_of(name),
        }
    }

    /// Returns why a request was not sent in time that waits since an instant for the server of a log.
    pub(super) fn waited_too_long(&self, log: Option<&LogId>, since: Instant) -> StoreError {
        self.breaker_of(log.map(|log| self.keys.log(log)).as_deref()).waited_too_long(since)
    }

    /// Returns the number of the server that has a log, if a call to it may have logs of several keys.
    pub(crate) fn number_of(&self, log: Option<&LogId>) -> Option<usize> {
        match (&self.backend, log) {
            (Backend::One(_), _) => Some(0),
            (Backend::Cluster(cluster), Some(log)) => cluster.number_of(&self.keys.log(log)),
            _ => None,
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        !matches!(self.backend, Backend::One(_))
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

    /// Sends a request to its server, and waits for the reply. A server that lacks the script gets its text.
    async fn call(&self, request: &Request) -> Result<Value, StoreError> {
        match self.call_once(request).await {
            Err(StoreError::Refused { code, message }) if code == "NOSCRIPT" => {
                match request.with_text() {
                    Some(request) => self.call_once(&request).await,
                    None => Err(StoreError::Refused { code, message }),
                }
            }
            result => result,
        }
    }

    async fn call_once(&self, request: &Request) -> Result<Value, StoreError> {
        match &self.backend {
            Backend::One(breaker) => breaker.call(async |it| request.send(it).await).await,
            Backend::Cluster(cluster) => cluster.call(request).await,
        }
    }

    /// Makes a call in a task of its own, which finishes it: a caller that does not poll its future, or drops it, holds
    /// none of the places under way.
    async fn call_in_turn(&self, request: Request) -> Result<Value, StoreError> {
        self.watch_data();
        let client = self.clone();
        let call = tokio::spawn(async move {
            let (since, breaker) = (Instant::now(), client.breaker_of(request.key()));
            let Ok(_place) = timeout(LONGEST_WAIT, breaker.calls.acquire()).await else {
                return Err(breaker.waited_too_long(since));
            };
            match client.call(&request).await {
                Err(error @ StoreError::Disconnected { .. }) if client.repeats => {
                    client.call(&request).await.map_err(|_| error)
                }
                result => result,
            }
        });
        call.await.unwrap_or_else(|_| Err(task_has_ended()))
    }
}

/// Reports a call, unless there was none because there is no connection.
fn report<T>(script: &Script, start: Instant, result: &Result<T, StoreError>) {
    let error = result.as_ref().err();
    if error.is_none_or(StoreError::was_sent) {
        telemetry::script_called(script.name(), start.elapsed(), error.map(StoreError::kind));
    }
}
