//! [`Client`]: runs scripts and sends other commands, for the keys of one prefix.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

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
    pub(super) cluster: Arc<Cluster>,
    pub(crate) keys: Keys,
    pub(crate) scripts: &'static Scripts,
    /// When the last look at the data began.
    pace: Arc<Pace>,
    /// Whether a call is made again whose connection has broken, such as one that was closed while nobody used it.
    repeats: bool,
}

impl Client {
    pub(crate) fn new(cluster: Arc<Cluster>, scripts: &'static Scripts) -> Self {
        let (keys, pace) = (cluster.keys.clone(), Arc::new(Pace::done()));
        Self { cluster, keys, scripts, pace, repeats: true }
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
            self.cluster.connected(&self.keys.log(log)).await?;
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
        self.cluster.refresh_slots(USUAL_PAUSE);
    }

    /// Looks whether the server of a log still has its data.
    pub(crate) async fn verify_data(&self, log: &LogId) -> Result<(), StoreError> {
        let breaker = self.cluster.breaker_of(Some(&self.keys.log(log)));
        // The caller may leave, and a call may not be dropped.
        let looked = tokio::spawn(async move { breaker.verify_data().await }).await;
        looked.unwrap_or_else(|_| Err(task_has_ended()))
    }

    /// Returns why a request was not sent in time that waits since an instant for the server of a log.
    pub(super) fn waited_too_long(&self, log: Option<&LogId>, since: Instant) -> StoreError {
        let name = log.map(|log| self.keys.log(log));
        self.cluster.breaker_of(name.as_deref()).waited_too_long(since)
    }

    /// Returns the number of the server that has a log, if a call to it may have logs of several keys.
    pub(crate) fn number_of(&self, log: Option<&LogId>) -> Option<usize> {
        match self.is_cluster() {
            true => self.cluster.number_of(&self.keys.log(log?)),
            false => Some(0),
        }
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

    /// Sends a request to its server, and waits for the reply. A server that lacks the script gets its text.
    async fn call(&self, request: &Request) -> Result<Value, StoreError> {
        let reply = self.cluster.call(request).await;
        if matches!(&reply, Err(StoreError::Refused { code, .. }) if code == "NOSCRIPT")
            && let Some(request) = request.with_text()
        {
            return self.cluster.call(&request).await;
        }
        reply
    }

    /// Makes a call in a task of its own: a caller that does not poll its future, or drops it, holds
    /// none of the places under way. A caller that has gone before its turn sends nothing.
    async fn call_in_turn(&self, request: Request) -> Result<Value, StoreError> {
        self.watch_data();
        let (client, (caller, reply)) = (self.clone(), oneshot::channel());
        tokio::spawn(async move {
            let (since, breaker) = (Instant::now(), client.cluster.breaker_of(request.key()));
            let result = match timeout(LONGEST_WAIT, breaker.calls.acquire()).await {
                Ok(_) if caller.is_closed() => return,
                Ok(_place) => match client.call(&request).await {
                    Err(error @ StoreError::Disconnected { .. }) if client.repeats => {
                        client.call(&request).await.map_err(|_| error)
                    }
                    result => result,
                },
                Err(_) => Err(breaker.waited_too_long(since)),
            };
            // An error means that the caller has gone.
            let _ = caller.send(result);
        });
        reply.await.unwrap_or_else(|_| Err(task_has_ended()))
    }
}

/// Reports a call, unless there was none because there is no connection.
fn report<T>(script: &Script, start: Instant, result: &Result<T, StoreError>) {
    let error = result.as_ref().err();
    if error.is_none_or(StoreError::was_sent) {
        telemetry::script_called(script.name(), start.elapsed(), error.map(StoreError::kind));
    }
}
