//! [`Seeds`]: the servers of a Cluster that the application has named.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redis::{Client, ConnectionAddr, ConnectionInfo, ErrorKind, RedisResult};
use tokio::task::JoinSet;

use super::connection::{Connection, connect_to, within};
use super::servers::Certificates;

/// The limit to connect to one of them, and to learn that it replies.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The servers of a Cluster that the application has named, of which at least one has to reply.
pub(crate) struct Seeds {
    /// Not empty.
    pub(super) servers: Vec<ConnectionInfo>,
    pub(super) certificates: Certificates,
    /// The host of the last one that has replied first.
    host: Mutex<String>,
}

impl Seeds {
    pub(super) fn new(servers: Vec<ConnectionInfo>, certificates: Certificates) -> Self {
        Self { servers, certificates, host: Mutex::default() }
    }

    /// Connects to the one that replies first.
    pub(super) async fn connect(&self) -> RedisResult<Connection> {
        let mut attempts = JoinSet::new();
        for info in &self.servers {
            let (client, info) = (self.certificates.open(info.clone())?, info.clone());
            attempts.spawn(async move {
                let connect = async {
                    let mut connection = connect_to(&client).await?;
                    redis::cmd("PING").exec_async(&mut connection).await?;
                    Ok(connection)
                };
                (within(TIMEOUT, connect).await, info)
            });
        }
        let mut errors = Vec::new();
        while let Some(attempt) = attempts.join_next().await {
            match attempt {
                Ok((Ok(connection), info)) => {
                    *self.host.lock().unwrap_or_else(PoisonError::into_inner) = host_of(&info);
                    return Ok(connection);
                }
                Ok((Err(error), info)) => errors.push(format!("{}: {error}", info.addr())),
                // Its runtime ends.
                Err(_) => {}
            }
        }
        Err((ErrorKind::Io, "no server of the Cluster replies", errors.join(", ")).into())
    }

    /// Returns the host of the one that has replied first.
    pub(super) fn host(&self) -> String {
        self.host.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns a client of a node, with the credentials and certificates of the first one.
    pub(super) fn client_of(&self, (host, port): &(String, u16)) -> RedisResult<Client> {
        let (host, port, first) = (host.clone(), *port, self.servers[0].clone());
        let address = match first.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        self.certificates.open(first.set_addr(address))
    }
}

fn host_of(info: &ConnectionInfo) -> String {
    match info.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
        _ => String::new(),
    }
}
