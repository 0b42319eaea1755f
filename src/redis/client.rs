//! [`Client`]: runs scripts and sends other commands, for the keys of one prefix.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use redis::{Arg, Cmd, Pipeline, RedisResult, Value};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, timeout};

use super::circuit_breaker::CircuitBreaker;
use super::connection::Connection;
use super::keys::Keys;
use super::node::Node;
use super::reply::{self, Replies};
use super::scripts::{Script, Scripts};
use crate::error::StoreError;
use crate::telemetry;
use crate::window::LogId;

/// The most calls under way. At 15 microseconds each they keep Redis busy for about a millisecond,
/// so more would only wait there, where they can't be given up.
pub(super) const MOST_CALLS: usize = 64;
/// The longest wait of a request for its call. A user who waits longer has left.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Runs scripts and sends other commands through a circuit breaker. Clones share the connection.
///
/// At most 64 calls of a client and its clones are under way. Others wait in their order, and fail as
/// [`StoreError::Overloaded`] after a second, without having been sent.
#[derive(Clone)]
pub(crate) struct Client {
    breaker: CircuitBreaker,
    keys: Keys,
    scripts: &'static Scripts,
    calls: Arc<Semaphore>,
}

impl Client {
    pub(crate) fn new(breaker: CircuitBreaker, keys: Keys, scripts: &'static Scripts) -> Self {
        let calls = Arc::new(Semaphore::new(MOST_CALLS));
        Self { breaker, keys, scripts, calls }
    }

    /// Looks once a second whether Redis still has its data.
    pub(crate) fn watch_data(&self) {
        self.breaker.watch_data();
    }

    /// Returns the node of a Cluster that has a log, if it is known.
    pub(super) fn node_of(&self, log: &LogId) -> Option<Arc<Node>> {
        self.breaker.node_of(&self.keys.log(log))
    }

    /// Looks which node of a Cluster has which slot, at most once a second.
    pub(super) fn watch_nodes(&self) {
        self.breaker.watch_nodes();
    }

    /// Waits for a connection as a call does.
    pub(crate) async fn connected(&self) -> Result<(), StoreError> {
        self.breaker.connected().await
    }

    /// Returns a client on the same connection that has calls of its own: it waits for none of this
    /// client's, nor this one for its.
    pub(crate) fn beside(&self) -> Self {
        Self { calls: Arc::new(Semaphore::new(MOST_CALLS)), ..self.clone() }
    }

    pub(super) fn response_timeout(&self) -> Duration {
        self.breaker.response_timeout()
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }

    pub(crate) fn scripts(&self) -> &'static Scripts {
        self.scripts
    }

    #[cfg(feature = "redis-commands")]
    pub(crate) fn name(&self, key: &crate::key::Key, name: &str) -> Vec<u8> {
        self.keys.name(key.as_bytes(), name)
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.breaker.is_cluster()
    }

    /// Runs a script and waits for the reply.
    ///
    /// The command is one that [`Script::command`] has started.
    pub(crate) async fn run(&self, script: &Script, command: &Cmd) -> Result<Value, StoreError> {
        let start = Instant::now();
        let node = if self.is_cluster() { self.node_of_script(command) } else { None };
        let (own, command) = (script.clone(), command.clone());
        let call = |mut connection| async move { own.run(&command, &mut connection).await };
        let reply = self.call(node, call).await;
        report(script, start, &reply);
        reply
    }

    /// Returns the node of the first key of a call of a script, if it is known.
    fn node_of_script(&self, command: &Cmd) -> Option<Arc<Node>> {
        // After EVALSHA, the hash and the number of keys.
        match command.args_iter().nth(3)? {
            Arg::Simple(name) => self.breaker.node_of(name),
            _ => None,
        }
    }

    /// Runs a script that takes several requests, and returns the reply to each of them. On a Cluster `first` is one of
    /// the Redis keys. If `are_spread` is set, it tells the node in place of declared keys.
    ///
    /// The caller bounds how many of these calls are under way.
    pub(crate) async fn run_many<T>(
        &self,
        script: &Script,
        command: &Cmd,
        first: Option<&[u8]>,
        are_spread: bool,
        read: impl FnOnce(Replies<'_>) -> Result<Vec<Result<T, StoreError>>, StoreError>,
    ) -> Result<Vec<Result<T, StoreError>>, StoreError> {
        let call = async |mut connection: Connection| {
            if let Some(first) = first.filter(|_| are_spread) {
                connection = connection.at_node_of(first);
            }
            let reply = script.run(command, &mut connection).await.map_err(reply::error)?;
            let replies = read(Replies::of(&reply)?)?;
            match replies.iter().find_map(read_only) {
                // It concerns the connection.
                Some(error) => Err(error.clone()),
                None => Ok(replies),
            }
        };
        let start = Instant::now();
        let node = first.and_then(|first| self.breaker.node_of(first));
        let replies = self.breaker.call(node, call).await;
        report(script, start, &replies);
        replies
    }

    pub(crate) async fn send_all(&self, commands: &Pipeline) -> Result<Vec<Value>, StoreError> {
        let commands = commands.clone();
        let send = |mut connection| async move { commands.query_async(&mut connection).await };
        self.call(None, send).await
    }

    pub(crate) async fn send(&self, command: &Cmd) -> Result<Value, StoreError> {
        let command = command.clone();
        let send = |mut connection| async move { command.query_async(&mut connection).await };
        self.call(None, send).await
    }

    /// Makes a call in a task of its own: a caller that does not poll its future, or drops it, holds
    /// none of the places under way. A caller that has gone before its turn sends nothing.
    async fn call<T, F>(
        &self,
        node: Option<Arc<Node>>,
        request: impl FnOnce(Connection) -> F + Send + 'static,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = RedisResult<T>> + Send + 'static,
    {
        let (client, (caller, reply)) = (self.clone(), oneshot::channel());
        tokio::spawn(async move {
            let replies = client.breaker.replies();
            let place = timeout(LONGEST_WAIT, client.calls.acquire()).await;
            let result = match place {
                Ok(_) if caller.is_closed() => return,
                Ok(_place) => {
                    let call = async |connection| request(connection).await.map_err(reply::error);
                    client.breaker.call(node, call).await
                }
                Err(_) => Err(waited_too_long(replies, client.breaker.replies())),
            };
            // An error means that the caller has gone.
            let _ = caller.send(result);
        });
        // The task ends early only with its runtime. It may have sent the request.
        reply.await.unwrap_or_else(|_| {
            Err(StoreError::Disconnected { message: "the task of the call has ended".to_owned() })
        })
    }
}

/// Returns why a request was not sent in time, by the numbers of replies before and after its wait. If Redis served no other
/// meanwhile, this is an outage.
pub(super) fn waited_too_long(before: u64, after: u64) -> StoreError {
    if before == after { StoreError::Unavailable } else { StoreError::Overloaded }
}

/// Reports a call, unless there was none because there is no connection.
fn report<T>(script: &Script, start: Instant, result: &Result<T, StoreError>) {
    let error = result.as_ref().err();
    if error.is_none_or(StoreError::was_sent) {
        telemetry::script_called(script.name(), start.elapsed(), error.map(StoreError::kind));
    }
}

fn read_only<T>(reply: &Result<T, StoreError>) -> Option<&StoreError> {
    let is_it = |error: &&StoreError| matches!(error, StoreError::Refused { code, .. } if code == "READONLY");
    reply.as_ref().err().filter(is_it)
}
