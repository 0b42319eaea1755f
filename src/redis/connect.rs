//! Makes connections to [`RedisServers`], and finds out whether a server still has its data.

use std::collections::HashMap;

use redis::{ConnectionInfo, ErrorKind, RedisError, RedisResult, ServerErrorKind};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::RedisServers;
use super::connection::{Address, Connection, STEP_TIMEOUT, at, connect_to, within};
use super::servers::Kind;
use super::view::View;
use crate::error::StoreError;
use crate::telemetry;

impl RedisServers {
    /// Connects to one of the servers that replies, and finds out what tells whether it still has the data that it had.
    /// Warns if it may evict data. An error names the servers.
    pub(super) async fn connect(&self, mark: &str) -> Result<(Connection, Server), StoreError> {
        let servers = match &self.kind {
            Kind::Sentinel(name) => {
                let (master, _) = self.ask_sentinels(name).await?;
                vec![at(&self.urls[0], master).set_redis_settings(self.login.clone())]
            }
            _ => self.urls.clone(),
        };
        if let [server] = &servers[..] {
            // In a task of its own it would wait for a busy runtime twice more.
            return self.connect_to(server.clone(), mark).await;
        }
        let connect = |server: ConnectionInfo| {
            let (this, mark) = (self.clone(), mark.to_owned());
            async move { this.connect_to(server, &mark).await }
        };
        first_success(servers.into_iter().map(connect).collect()).await
    }

    async fn connect_to(
        &self,
        server: ConnectionInfo,
        mark: &str,
    ) -> Result<(Connection, Server), StoreError> {
        let address = server.addr().to_string();
        let connected = async {
            let mut connection = connect_to(&self.client(server)?).await?;
            let pinged = within(STEP_TIMEOUT, redis::cmd("PING").exec_async(&mut connection)).await;
            // One that can't save its data refuses a PING as a write, and still has what denies.
            if !is_unsaved(&pinged) {
                pinged.clone()?;
            }
            // Before anything is written there.
            let problem = match &self.kind {
                Kind::Node(Some(id)) => {
                    let view = within(STEP_TIMEOUT, View::ask(&mut connection)).await;
                    view.is_ok_and(|view| !view.ids.contains(id))
                        .then_some("the node has left the Cluster, or another one has its address")
                }
                Kind::Cluster => {
                    let view = within(STEP_TIMEOUT, View::ask(&mut connection)).await?;
                    view.ranges.is_empty().then_some("the node serves nobody, or knows no slots")
                }
                _ => None,
            };
            if let Some(problem) = problem {
                return Err((ErrorKind::Io, problem).into());
            }
            // A user of few rights may not all of that. A server that does not reply, as one whose writes are paused, decides nothing.
            let (mark, info) =
                within(STEP_TIMEOUT, read_mark(&mut connection, mark, "all")).await?;
            if is_replica(&info) {
                pinged?;
            }
            // Valkey calls it `server_mode`.
            let mode = value(&info, "redis_mode").or_else(|| value(&info, "server_mode"));
            let mistake = match (mode, &self.kind) {
                (Some("sentinel"), _) => Some("this is a Sentinel: use RedisServers::sentinel"),
                // Most of its keys are refused, of requests with several nearly all.
                (Some("cluster"), Kind::One | Kind::Sentinel(_)) => {
                    Some("this is a node of a Cluster: use RedisServers::cluster")
                }
                _ => None,
            };
            if let Some(mistake) = mistake {
                return Err((ErrorKind::InvalidClientConfig, mistake).into());
            }
            if let (Some(memory), Some(policy)) =
                (value(&info, "maxmemory"), value(&info, "maxmemory_policy"))
                && memory != "0"
                && policy != "noeviction"
            {
                telemetry::may_evict(policy);
            }
            // A replica has the ID of its master, and lacks what that one did not send.
            let history = if is_replica(&info) { String::new() } else { history(&info) };
            Ok((connection, Server { history, mark: mark.ok() }))
        };
        connected.await.map_err(|error: RedisError| StoreError::Unreachable {
            message: format!("{address}: {error}"),
        })
    }

    /// Returns the master that more than half of the Sentinels name, if there are any.
    pub(super) async fn master(&self) -> Option<Address> {
        let Kind::Sentinel(name) = &self.kind else { return None };
        let (master, is_agreed) = self.ask_sentinels(name).await.ok()?;
        is_agreed.then_some(master)
    }

    /// Asks all Sentinels at once, and returns the master that most of them name, and whether more than half of all do. Does
    /// not wait for the others then, of which one may hang.
    async fn ask_sentinels(&self, name: &str) -> Result<(Address, bool), StoreError> {
        let ask = |sentinel: ConnectionInfo| {
            let (this, name) = (self.clone(), name.to_owned());
            async move {
                let address = sentinel.addr().to_string();
                let asked = this.ask_sentinel(sentinel, &name).await;
                asked.map_err(|error| format!("{address}: {error}"))
            }
        };
        let mut asked: JoinSet<_> = self.urls.iter().cloned().map(ask).collect();
        let (mut votes, mut errors) = (HashMap::new(), Vec::new());
        while let Some(reply) = asked.join_next().await {
            match reply {
                Ok(Ok(master)) => {
                    let count = votes.entry(master.clone()).or_insert(0);
                    *count += 1;
                    if *count > self.urls.len() / 2 {
                        return Ok((master, true));
                    }
                }
                Ok(Err(error)) => errors.push(error),
                Err(_) => {}
            }
        }
        let most = votes.into_iter().max_by_key(|(_, count)| *count);
        most.map(|(master, _)| (master, false)).ok_or_else(|| unreachable(errors))
    }

    async fn ask_sentinel(&self, sentinel: ConnectionInfo, name: &str) -> RedisResult<Address> {
        let mut connection = connect_to(&self.client(sentinel)?).await?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
        let reply = question.query_async::<Option<Address>>(&mut connection);
        let unknown = (ErrorKind::Io, "the Sentinel knows no master of this name");
        within(STEP_TIMEOUT, reply).await?.ok_or_else(|| unknown.into())
    }

    /// Returns what a warning calls the servers.
    pub(super) fn name(&self) -> String {
        match &self.kind {
            Kind::One | Kind::Node(_) => self.urls[0].addr().to_string(),
            Kind::Sentinel(name) => format!("the master {name}"),
            Kind::Cluster => "the servers of the Cluster".to_owned(),
        }
    }
}

/// Waits until one of some attempts has succeeded, or all have failed. Each error names its server.
pub(super) async fn first_success<T: 'static>(
    mut attempts: JoinSet<Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let mut errors = Vec::new();
    while let Some(attempt) = attempts.join_next().await {
        match attempt {
            Ok(Ok(success)) => return Ok(success),
            Ok(Err(StoreError::Unreachable { message })) => errors.push(message),
            Ok(Err(error)) => errors.push(error.to_string()),
            // Its runtime ends.
            Err(_) => {}
        }
    }
    Err(unreachable(errors))
}

/// Makes one error of several, in one order: otherwise each attempt would seem to fail for another reason.
fn unreachable(mut errors: Vec<String>) -> StoreError {
    errors.sort();
    StoreError::Unreachable { message: errors.join(", ") }
}

/// What tells whether a server still has the data that it had.
///
/// A server that became a replica and then the master again has the mark from its master, but has lost what that one did
/// not have. Redis changes the ID in such a case, at each start, and also an hour after a server has lost its last replica.
pub(super) struct Server {
    /// The replication ID (`master_replid`). Empty if the server does not tell.
    pub(super) history: String,
    /// It is lost with the data. None if it could not be read or made, as on a master that lacks replicas.
    pub(super) mark: Option<String>,
}

/// Reads what tells whether a server still has its data.
pub(super) async fn read_server(connection: &mut Connection, mark: &str) -> RedisResult<Server> {
    let (mark, info) = read_mark(connection, mark, "replication").await?;
    Ok(Server { history: history(&info), mark: Some(mark?) })
}

/// Returns the mark, which is made if there is none, and a section of `INFO`.
async fn read_mark(
    connection: &mut Connection,
    name: &str,
    section: &str,
) -> RedisResult<(RedisResult<String>, String)> {
    /// In seconds. Each process renews it while it uses Redis.
    const KEPT_FOR: u64 = 86_400;
    let (mut commands, new) = (redis::pipe(), Uuid::new_v4().to_string());
    commands.cmd("SET").arg(name).arg(new).arg("NX").arg("EX").arg(KEPT_FOR).ignore();
    commands.cmd("GETEX").arg(name).arg("EX").arg(KEPT_FOR);
    commands.cmd("GET").arg(name);
    commands.cmd("INFO").arg(section).ignore_errors();
    // None if Redis has no memory for it.
    type Mark = RedisResult<Option<String>>;
    let (renewed, mark, info): (Mark, Mark, RedisResult<String>) =
        commands.query_async(connection).await?;
    let info = info.unwrap_or_default();
    // One that can't save its data renews nothing. Other errors say that this is not the master, but a replica that can't
    // save does not.
    let mark = match is_unsaved(&renewed) {
        true if is_replica(&info) => Err(RedisError::from((
            ErrorKind::Server(ServerErrorKind::ReadOnly),
            "a replica that can't save its data",
        ))),
        true => mark,
        false => renewed,
    };
    Ok((mark.map(Option::unwrap_or_default), info))
}

fn history(info: &str) -> String {
    value(info, "master_replid").unwrap_or_default().to_owned()
}

/// Returns whether a server has refused a write because it can't save its data.
fn is_unsaved<T>(reply: &RedisResult<T>) -> bool {
    reply.as_ref().err().and_then(RedisError::code) == Some("MISCONF")
}

fn is_replica(info: &str) -> bool {
    value(info, "role") == Some("slave")
}

/// Returns a value that `INFO` names.
fn value<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}
