//! [`Connector`]: makes connections to a server, and finds out whether it still has its data.

use redis::{Client, ConnectionInfo, ErrorKind, RedisError, RedisResult, ServerErrorKind};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::connection::{Address, Connection, STEP_TIMEOUT, connect_to, within};
use super::reply;
use super::sentinel::Sentinel;
use super::view::View;
use crate::error::StoreError;
use crate::telemetry;

#[derive(Clone)]
pub(crate) enum Connector {
    /// A server, and its identity if it is a node of a Cluster and this is known.
    One(Box<Client>, Option<String>),
    Sentinel(Sentinel),
    /// Any of some servers that knows who has which slot of a Cluster.
    Any(Vec<Client>),
}

impl Connector {
    /// Connects to a server that replies, and finds out what tells whether it still has the data that it had. Warns if
    /// it may evict data. An error names the server.
    pub(super) async fn connect(&self, mark: &str) -> Result<(Connection, Server), StoreError> {
        match self {
            Self::One(client, _) => self.connect_by(client, mark).await,
            Self::Sentinel(sentinel) => {
                let (master, _) = sentinel.master().await?;
                let client = sentinel.client(master).map_err(reply::error)?;
                self.connect_by(&client, mark).await
            }
            Self::Any(clients) => {
                let connect = |client: Client| {
                    let (this, mark) = (self.clone(), mark.to_owned());
                    async move { this.connect_by(&client, &mark).await }
                };
                first_success(clients.iter().cloned().map(connect).collect()).await
            }
        }
    }

    async fn connect_by(
        &self,
        client: &Client,
        mark: &str,
    ) -> Result<(Connection, Server), StoreError> {
        let connected = async {
            let mut connection = connect_to(client).await?;
            let pinged = within(STEP_TIMEOUT, redis::cmd("PING").exec_async(&mut connection)).await;
            // One that can't save its data refuses a PING as a write, and still has what denies.
            if !is_unsaved(&pinged) {
                pinged.clone()?;
            }
            // Before anything is written there.
            let problem = match self {
                Self::One(_, Some(id)) => {
                    let view = within(STEP_TIMEOUT, View::ask(&mut connection)).await;
                    view.is_ok_and(|view| !view.ids.contains(id))
                        .then_some("the node has left the Cluster, or another one has its address")
                }
                Self::Any(_) => {
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
        connected.await.map_err(|error: RedisError| {
            let message = format!("{}: {error}", client.get_connection_info().addr());
            StoreError::Unreachable { message }
        })
    }

    /// Returns the master that more than half of the Sentinels name, if there are any.
    pub(super) async fn master(&self) -> Option<Address> {
        let Self::Sentinel(sentinel) = self else { return None };
        let (master, is_agreed) = sentinel.master().await.ok()?;
        is_agreed.then_some(master)
    }

    /// Returns how to connect to the first server that the application has named.
    pub(super) fn info(&self) -> &ConnectionInfo {
        let client = match self {
            Self::One(client, _) => client,
            Self::Sentinel(sentinel) => &sentinel.sentinels[0],
            Self::Any(clients) => &clients[0],
        };
        client.get_connection_info()
    }

    /// Returns what a warning calls the server.
    pub(super) fn name(&self) -> String {
        match self {
            Self::One(..) => self.info().addr().to_string(),
            Self::Sentinel(sentinel) => format!("the master {}", sentinel.name),
            Self::Any(_) => "the servers of the Cluster".to_owned(),
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
    errors.sort();
    Err(StoreError::Unreachable { message: errors.join(", ") })
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
