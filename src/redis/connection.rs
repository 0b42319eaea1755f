//! [`Connection`]: a connection to a server.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, Pipeline,
    RedisFuture, RedisResult, Value,
};
use tokio::time::timeout;

/// A connection that pipelines the commands of concurrent requests. Clones share it.
#[derive(Clone)]
pub(crate) struct Connection {
    inner: MultiplexedConnection,
    /// Where the server is.
    pub(super) address: Arc<Address>,
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

/// A host and a port. The path of a socket has port 0.
pub(super) type Address = (String, u16);

fn address(info: &ConnectionInfo) -> Address {
    match info.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            (host.clone(), *port)
        }
        other => (other.to_string(), 0),
    }
}

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

pub(super) async fn connect_to(client: &Client) -> RedisResult<Connection> {
    // The circuit breaker applies its own timeouts.
    let config =
        AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
    let inner = client.get_multiplexed_async_connection_with_config(&config);
    let inner = within(STEP_TIMEOUT, inner).await.map_err(|error| match error.kind() {
        // The `redis` crate drops what the server says.
        ErrorKind::AuthenticationFailed => {
            let message = "the user or the password is wrong, or the server has none, or no connection left (maxclients)";
            (ErrorKind::AuthenticationFailed, message).into()
        }
        _ => error,
    })?;
    let address = Arc::new(address(client.get_connection_info()));
    Ok(Connection { inner, address, is_asking: false })
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
