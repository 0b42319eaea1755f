//! [`Connector`]: makes connections to a server, and finds out whether it still has its data.

use redis::{Client, ErrorKind, RedisError, RedisResult, ServerErrorKind};
use uuid::Uuid;

use super::connection::{Address, Connection, STEP_TIMEOUT, connect_to, within};
use super::reply;
use super::sentinel::Sentinel;
use super::view::View;
use crate::error::StoreError;
use crate::telemetry;

pub(crate) enum Connector {
    /// A server, and its identity if it is a node of a Cluster and this is known.
    One(Box<Client>, Option<String>),
    Sentinel(Sentinel),
}

impl Connector {
    /// Connects to a server that replies, and finds out what tells whether it still has the data that it had. Warns if
    /// it may evict data. An error names the server.
    pub(super) async fn connect(&self, mark: &str) -> Result<(Connection, Server), StoreError> {
        let (client, master) = match self {
            Self::One(client, _) => (client.clone(), None),
            Self::Sentinel(sentinel) => {
                let (master, _) = sentinel.master().await?;
                let client = sentinel.client(master.clone()).map_err(reply::error)?;
                (Box::new(client), Some(master))
            }
        };
        self.connect_by(&client, master, mark).await.map_err(|error| {
            let message = format!("{}: {error}", client.get_connection_info().addr());
            StoreError::Unreachable { message }
        })
    }

    async fn connect_by(
        &self,
        client: &Client,
        master: Option<Address>,
        mark: &str,
    ) -> RedisResult<(Connection, Server)> {
        let mut connection = connect_to(client).await?;
        let pinged = within(STEP_TIMEOUT, redis::cmd("PING").exec_async(&mut connection)).await;
        // One that can't save its data refuses a PING as a write, and still has what denies.
        if !is_unsaved(&pinged) {
            pinged.clone()?;
        }
        if let Self::One(_, Some(id)) = self {
            let command = View::command();
            // Before anything is written there.
            if let Ok(reply) = within(STEP_TIMEOUT, command.query_async(&mut connection)).await
                && View::of(&reply, "").is_ok_and(|view| !view.ids.contains(id))
            {
                let message = "the node has left the Cluster, or another one has its address";
                return Err((ErrorKind::Io, message).into());
            }
        }
        // A user of few rights may not all of that. A server that does not reply, as one whose writes are paused, decides nothing.
        let (mark, info) = within(STEP_TIMEOUT, query_mark(mark, "all", &mut connection)).await?;
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
        // A server that does not tell either counts as another one.
        let run_id = value(&info, "run_id").map(ToOwned::to_owned);
        let history = history(&info);
        Ok((connection, Server { master, run_id, history, mark: mark.ok() }))
    }

    /// Returns the master that more than half of the Sentinels name, if there are any.
    pub(super) async fn master(&self) -> Option<Address> {
        match self {
            Self::One(..) => None,
            Self::Sentinel(sentinel) => {
                let (master, is_agreed) = sentinel.master().await.ok()?;
                is_agreed.then_some(master)
            }
        }
    }

    /// Returns what a warning calls the server.
    pub(super) fn name(&self) -> String {
        match self {
            Self::One(client, _) => client.get_connection_info().addr().to_string(),
            Self::Sentinel(sentinel) => format!("the master {}", sentinel.name),
        }
    }
}

/// What tells whether a server still has the data that it had.
pub(super) struct Server {
    /// Where it is, if Sentinels named it.
    pub(super) master: Option<Address>,
    /// The identity of the process, if Redis tells it.
    pub(super) run_id: Option<String>,
    /// The replication ID.
    pub(super) history: String,
    /// None if it could not be read or made, as on a master that lacks replicas.
    pub(super) mark: Option<String>,
}

/// Returns the mark and the replication ID (`master_replid`). The mark is lost with the data, and made if there is none.
///
/// A server that became a replica and then the master again has the mark from its master, but has lost what that one did
/// not have. Redis changes the ID in such a case, and also an hour after a server has lost its last replica.
pub(super) async fn read_mark(
    connection: &mut Connection,
    name: &str,
) -> RedisResult<(String, String)> {
    let (mark, info) = query_mark(name, "replication", connection).await?;
    Ok((mark?, history(&info)))
}

/// Returns the mark and a section of `INFO`.
async fn query_mark(
    name: &str,
    section: &str,
    connection: &mut Connection,
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
