//! [`Connection`]: a connection to a server. [`Connector`] makes it.

use std::future::Future;
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, Pipeline,
    RedisFuture, RedisResult, Value,
};
use tokio::time::timeout;
use uuid::Uuid;

use super::scripts::Scripts;
use super::sentinel::Sentinel;
use crate::telemetry;

/// A connection that pipelines the commands of concurrent requests. Clones share it.
#[derive(Clone)]
pub(crate) struct Connection {
    inner: MultiplexedConnection,
    /// Whether a node of a Cluster is asked for a slot that it is about to get. Each command has an `ASKING` before it then,
    /// with nothing between the two. A transaction has none, because Valkey 9 does not know it any more after `MULTI`.
    is_asking: bool,
}

impl Connection {
    pub(super) fn asking(self, is_asking: bool) -> Self {
        Self { is_asking, ..self }
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        if self.is_asking {
            let mut both = redis::pipe();
            both.cmd("ASKING").add_command(command.clone());
            return Box::pin(async move {
                let reply = self.inner.req_packed_commands(&both, 1, 1).await?.pop();
                reply.unwrap_or(Value::Nil).extract_error()
            });
        }
        self.inner.req_packed_command(command)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        if self.is_asking && !pipeline.is_transaction() {
            let mut asking = redis::pipe();
            for command in pipeline.cmd_iter() {
                asking.cmd("ASKING").add_command(command.clone());
            }
            return Box::pin(async move {
                let replies = self.inner.req_packed_commands(&asking, 0, 2 * count).await?;
                Ok(replies.into_iter().skip(1).step_by(2).collect())
            });
        }
        self.inner.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.inner.get_db()
    }
}

pub(crate) enum Connector {
    One(Box<Client>),
    Sentinel(Sentinel),
}

/// What TLS needs to know a server, and to be known by it.
#[derive(Clone, Default)]
pub(super) struct Certificates(#[cfg(feature = "tls")] pub(super) Option<redis::TlsCertificates>);

impl Certificates {
    /// Makes a client of a server.
    pub(super) fn open(&self, info: ConnectionInfo) -> RedisResult<Client> {
        // Without it a call waits for the acknowledgement of the one before, so that a Redis one
        // round trip away takes two or three.
        let settings = info.tcp_settings().clone().set_nodelay(true);
        let info = info.set_tcp_settings(settings);
        #[cfg(feature = "tls")]
        if let Some(certificates) = &self.0 {
            return Client::build_with_tls(info, certificates.clone());
        }
        Client::open(info)
    }
}

/// A host and a port.
pub(super) type Address = (String, u16);

/// Returns how to connect to a server at an address as to another one.
pub(super) fn at(other: &ConnectionInfo, (host, port): Address) -> ConnectionInfo {
    let address = match other.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            let (insecure, tls_params) = (*insecure, tls_params.clone());
            ConnectionAddr::TcpTls { host, port, insecure, tls_params }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    other.clone().set_addr(address)
}

/// The limit of each step to a new connection: to connect, to learn that the server replies. A step
/// takes up to three round trips.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(1);

impl Connector {
    /// Connects to a server that replies, and finds out what tells whether it still has the data that it had. Warns if
    /// it may evict data.
    pub(super) async fn connect(&self, mark: &str) -> RedisResult<(Connection, Server)> {
        let (mut connection, master) = match self {
            Self::One(client) => (connect_to(client).await?, None),
            Self::Sentinel(sentinel) => {
                let (master, _) = sentinel.master().await?;
                (connect_to(&sentinel.client(master.clone())?).await?, Some(master))
            }
        };
        within(STEP_TIMEOUT, redis::cmd("PING").exec_async(&mut connection)).await?;
        let mut commands = redis::pipe();
        let scripts = Scripts::shipped();
        for script in [&scripts.admit, &scripts.reconcile] {
            // So that the first of many concurrent requests do not all find it missing.
            commands.add_command(script.load()).ignore();
        }
        // A user of few rights may not all of that. A call whose script is missing sends the script along. A server that
        // does not reply, as one whose writes are paused, decides nothing.
        let replies = query_mark(&mut commands, mark, "all", &mut connection);
        let (mark, info) = within(STEP_TIMEOUT, replies).await?;
        if let (Some(memory), Some(policy)) =
            (value(&info, "maxmemory"), value(&info, "maxmemory_policy"))
            && memory != "0"
            && policy != "noeviction"
        {
            telemetry::may_evict(policy);
        }
        // A server that does not tell either counts as another one.
        let run_id = value(&info, "run_id").map(ToOwned::to_owned);
        Ok((connection, Server { master, run_id, mark: mark.unwrap_or_default() }))
    }

    /// Returns the master that more than half of the Sentinels name, if there are any.
    pub(super) async fn master(&self) -> Option<Address> {
        match self {
            Self::One(_) => None,
            Self::Sentinel(sentinel) => {
                let (master, is_agreed) = sentinel.master().await.ok()?;
                is_agreed.then_some(master)
            }
        }
    }

    /// Returns the host and port of the server for messages, if it is known.
    pub(super) fn address(&self) -> Option<String> {
        match self {
            Self::One(client) => Some(client.get_connection_info().addr().to_string()),
            _ => None,
        }
    }
}

/// What tells whether a server still has the data that it had.
#[derive(PartialEq, Eq)]
pub(super) struct Server {
    /// Where it is, if Sentinels named it.
    pub(super) master: Option<Address>,
    /// The identity of the process, if Redis tells it.
    pub(super) run_id: Option<String>,
    pub(super) mark: String,
}

pub(super) async fn connect_to(client: &Client) -> RedisResult<Connection> {
    // The circuit breaker applies its own timeouts.
    let config =
        AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
    let inner = client.get_multiplexed_async_connection_with_config(&config);
    Ok(Connection { inner: within(STEP_TIMEOUT, inner).await?, is_asking: false })
}

/// Returns the mark that is lost when the data is, and makes one if there is none.
pub(super) async fn read_mark(connection: &mut Connection, name: &str) -> RedisResult<String> {
    query_mark(&mut redis::pipe(), name, "replication", connection).await?.0
}

/// Sends some commands whose replies do not matter, and returns the mark and a section of `INFO`.
///
/// A server that became a replica and then the master again has the mark from its master, but has lost what that one did
/// not have. So the name that Redis gives to a history of writes is part of the mark. Redis changes it in such a
/// case, and also an hour after a server has lost its last replica.
async fn query_mark(
    commands: &mut Pipeline,
    name: &str,
    section: &str,
    connection: &mut Connection,
) -> RedisResult<(RedisResult<String>, String)> {
    /// In seconds. Each process renews it while it uses Redis.
    const KEPT_FOR: u64 = 86_400;
    let new = Uuid::new_v4().to_string();
    commands.cmd("SET").arg(name).arg(new).arg("NX").arg("EX").arg(KEPT_FOR).ignore();
    commands.cmd("GETEX").arg(name).arg("EX").arg(KEPT_FOR);
    commands.cmd("INFO").arg(section).ignore_errors();
    let (mark, info): (RedisResult<String>, RedisResult<String>) =
        commands.query_async(connection).await?;
    let info = info.unwrap_or_default();
    let history = value(&info, "master_replid").unwrap_or_default();
    Ok((mark.map(|mark| format!("{mark} {history}")), info))
}

/// Returns a value that `INFO` names.
fn value<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

pub(super) async fn within<T>(
    limit: Duration,
    step: impl Future<Output = RedisResult<T>>,
) -> RedisResult<T> {
    let start = std::time::Instant::now();
    let late = |_| {
        // A clock that is paused runs ahead while the reply is under way.
        let message = match start.elapsed() < limit / 2 {
            true => "no reply in time: tokio's clock is paused, and Redis does not wait for it",
            false => "no reply in time",
        };
        Err((ErrorKind::Io, message).into())
    };
    timeout(limit, step).await.unwrap_or_else(late)
}
