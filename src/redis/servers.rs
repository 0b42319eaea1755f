//! [`RedisServers`]: which servers keep the windows.

use std::convert::Infallible;
use std::fmt;
use std::time::Duration;

use redis::{Client, ConnectionInfo, IntoConnectionInfo, RedisError, RedisResult};

use super::connector::Connector;
use super::outage::Outage;
#[cfg(feature = "sentinel")]
use super::sentinel::Sentinel;
use crate::error::StoreError;

/// Which Redis servers keep the windows: one server, the master that Sentinels name, or a cluster.
///
/// A URL is `redis://[USERNAME][:PASSWORD@]HOST[:PORT][/DATABASE]`, or `rediss://` for TLS with
/// the feature `tls`. Text is the URL of one server. TLS uses the cryptography that the process has
/// installed in rustls, or else installs ring.
///
/// ```
/// use tower_sliding_window::store::RedisServers;
///
/// let one = RedisServers::try_from("redis://127.0.0.1:6379")?;
/// # #[cfg(feature = "sentinel")]
/// let watched = RedisServers::sentinel(["redis://10.0.0.1:26379", "redis://10.0.0.2:26379"], "shop")?;
/// # #[cfg(feature = "cluster")]
/// let cluster = RedisServers::cluster(["redis://10.0.0.1:6379", "redis://10.0.0.2:6379"])?;
/// # Ok::<(), tower_sliding_window::StoreError>(())
/// ```
#[derive(Clone)]
pub struct RedisServers {
    kind: Kind,
    #[cfg(feature = "tls")]
    certificates: Option<redis::TlsCertificates>,
}

#[derive(Clone)]
enum Kind {
    One(ConnectionInfo),
    #[cfg(feature = "sentinel")]
    Sentinel(Sentinel),
    #[cfg(feature = "cluster")]
    Cluster(Vec<ConnectionInfo>),
}

impl RedisServers {
    fn new(kind: Kind) -> Self {
        Self {
            kind,
            #[cfg(feature = "tls")]
            certificates: None,
        }
    }

    /// Names the server at a URL.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unreachable`] if it is no URL of a Redis server.
    pub fn one(url: impl IntoConnectionInfo) -> Result<Self, StoreError> {
        Ok(Self::new(Kind::One(url.into_connection_info().map_err(unusable)?)))
    }

    /// Names the master that Sentinels at these URLs watch under this name.
    ///
    /// After a failover the new master is used.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unreachable`] if there is no URL, or one is no URL of a Redis server.
    #[cfg(feature = "sentinel")]
    pub fn sentinel<U: IntoConnectionInfo>(
        urls: impl IntoIterator<Item = U>,
        master: impl Into<String>,
    ) -> Result<Self, StoreError> {
        Ok(Self::new(Kind::Sentinel(Sentinel {
            sentinels: all(urls)?,
            master: master.into(),
            username: None,
            password: None,
            #[cfg(feature = "tls")]
            certificates: None,
        })))
    }

    /// Sets the username and password of the servers behind Sentinels.
    ///
    /// What stands in the Sentinels' URLs, of which the first counts, is for the Sentinels alone. Defaults to none. Of no
    /// effect elsewhere.
    #[cfg(feature = "sentinel")]
    #[must_use]
    pub fn credentials(mut self, username: Option<String>, password: Option<String>) -> Self {
        if let Kind::Sentinel(sentinel) = &mut self.kind {
            (sentinel.username, sentinel.password) = (username, password);
        }
        self
    }

    /// Names the cluster that the nodes at these URLs are part of.
    ///
    /// The other nodes are learnt from them. Username and password are those of the first URL.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unreachable`] if there is no URL, or one is no URL of a Redis server.
    #[cfg(feature = "cluster")]
    pub fn cluster<U: IntoConnectionInfo>(
        urls: impl IntoIterator<Item = U>,
    ) -> Result<Self, StoreError> {
        Ok(Self::new(Kind::Cluster(all(urls)?)))
    }

    /// Sets the certificate authority that the servers' certificates must come from, in PEM.
    ///
    /// Defaults to those that the system trusts.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates().root_cert = Some(pem.into());
        self
    }

    /// Sets the certificate and the key that the servers know this client by, both in PEM.
    ///
    /// Defaults to none.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn client_certificate(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.certificates().client_tls = Some(redis::ClientTlsConfig {
            client_cert: certificate.into(),
            client_key: key.into(),
        });
        self
    }

    #[cfg(feature = "tls")]
    fn certificates(&mut self) -> &mut redis::TlsCertificates {
        self.certificates
            .get_or_insert(redis::TlsCertificates { client_tls: None, root_cert: None })
    }

    /// Tells whether a request's windows may be on several servers.
    #[cfg(feature = "cluster")]
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.kind, Kind::Cluster(_))
    }

    pub(crate) fn connector(
        self,
        response_timeout: Duration,
        outage: &Outage,
    ) -> Result<Connector, StoreError> {
        self.try_into_connector(response_timeout, outage).map_err(unusable)
    }

    #[cfg_attr(not(feature = "cluster"), allow(unused_variables, reason = "only clusters use it"))]
    fn try_into_connector(
        self,
        response_timeout: Duration,
        outage: &Outage,
    ) -> RedisResult<Connector> {
        #[cfg(feature = "tls")]
        let certificates = self.certificates;
        #[cfg(feature = "tls")]
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // rustls wants one chosen for the process, and panics at the first connection without.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        match self.kind {
            Kind::One(info) => {
                #[cfg(feature = "tls")]
                if let Some(certificates) = certificates {
                    return Client::build_with_tls(info, certificates)
                        .map(Box::new)
                        .map(Connector::One);
                }
                Client::open(info).map(Box::new).map(Connector::One)
            }
            #[cfg(feature = "sentinel")]
            Kind::Sentinel(sentinel) => {
                let sentinel = Sentinel {
                    #[cfg(feature = "tls")]
                    certificates,
                    ..sentinel
                };
                sentinel.client(0)?;
                Ok(Connector::Sentinel(sentinel, Default::default()))
            }
            #[cfg(feature = "cluster")]
            Kind::Cluster(nodes) => {
                let outage = outage.clone();
                let builder = redis::cluster::ClusterClient::builder(nodes)
                    // A slot that is on the move is asked for again after a few milliseconds.
                    .min_retry_wait(1)
                    .max_retry_wait(20)
                    .retry_wait_formula(1, 2)
                    // Whoever waits for an answer gives up sooner; this notices a node that stalls.
                    .response_timeout(response_timeout * 4)
                    .overall_response_timeout(None)
                    .connection_timeout(response_timeout * 4)
                    // The connection to a node is made again in silence, and the node may have lost
                    // its memory. Only RESP3 tells of it.
                    .use_protocol(redis::ProtocolVersion::RESP3)
                    .push_sender(move |info: redis::PushInfo| {
                        if info.kind == redis::PushKind::Disconnection {
                            outage.mark_reconnection();
                        }
                        Ok::<_, redis::aio::SendError>(())
                    });
                #[cfg(feature = "tls")]
                if let Some(certificates) = certificates {
                    return builder
                        .certs(certificates)
                        .build()
                        .map(Box::new)
                        .map(Connector::Cluster);
                }
                builder.build().map(Box::new).map(Connector::Cluster)
            }
        }
    }
}

impl fmt::Debug for RedisServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A URL may hold a password.
        f.debug_struct("RedisServers").finish_non_exhaustive()
    }
}

impl From<ConnectionInfo> for RedisServers {
    fn from(info: ConnectionInfo) -> Self {
        Self::new(Kind::One(info))
    }
}

impl TryFrom<&str> for RedisServers {
    type Error = StoreError;

    fn try_from(url: &str) -> Result<Self, StoreError> {
        Self::one(url)
    }
}

impl TryFrom<String> for RedisServers {
    type Error = StoreError;

    fn try_from(url: String) -> Result<Self, StoreError> {
        Self::one(url)
    }
}

impl From<Infallible> for StoreError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

#[cfg(any(feature = "sentinel", feature = "cluster"))]
fn all<U: IntoConnectionInfo>(
    urls: impl IntoIterator<Item = U>,
) -> Result<Vec<ConnectionInfo>, StoreError> {
    let urls = urls.into_iter().map(IntoConnectionInfo::into_connection_info);
    let infos: Vec<ConnectionInfo> = urls.collect::<RedisResult<_>>().map_err(unusable)?;
    if infos.is_empty() {
        return Err(StoreError::Unreachable { message: "no server is named".to_owned() });
    }
    Ok(infos)
}

fn unusable(error: RedisError) -> StoreError {
    StoreError::Unreachable { message: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_url_is_refused_and_not_repeated() {
        for url in ["", "127.0.0.1:6379", "http://:secret@host", "redis://:secret@host:port"] {
            let error = RedisServers::try_from(url).unwrap_err();
            assert!(matches!(error, StoreError::Unreachable { .. }), "{url:?}: {error:?}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        let servers = RedisServers::try_from("redis://:secret@host").unwrap();
        assert!(!format!("{servers:?}").contains("secret"));
    }
}
