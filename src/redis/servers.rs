//! [`RedisServers`]: the servers of a store.

use std::collections::HashSet;
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use redis::{
    Client, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo, RedisConnectionInfo,
    RedisError, RedisResult,
};
#[cfg(feature = "tls")]
use rustls::{
    crypto::CryptoProvider,
    pki_types::{CertificateDer, pem::PemObject},
};

use super::connection::at;
use super::view::Primary;
use crate::error::StoreError;

/// The Redis servers of a store: one server, the master that Sentinels name, or a cluster.
///
/// A URL is `redis://[USERNAME][:PASSWORD@]HOST[:PORT][/DATABASE]`, or `rediss://` for TLS with the
/// feature `tls`. In a password `/`, `@`, `#`, `?` and `%` are percent-encoded. A string converts to the
/// server at that URL. TLS uses the cryptography provider that the process has installed in rustls, and
/// installs ring if there is none.
///
/// A server's certificate is verified for the name by which it is reached. For the nodes of a Cluster and for masters behind
/// Sentinels that is what the Cluster or the Sentinels give, by default an IP address. They give names with
/// `cluster-preferred-endpoint-type hostname` and `cluster-announce-hostname` on each node, and with `resolve-hostnames` and
/// `announce-hostnames` on each Sentinel. Sentinels and their master use TLS together, or none of them does.
///
/// ```
/// use tower_sliding_window::RedisServers;
///
/// let one = RedisServers::try_from("redis://127.0.0.1:6379")?;
/// let watched = RedisServers::sentinel(["redis://10.0.0.1:26379", "redis://10.0.0.2:26379"], "shop")?;
/// let cluster = RedisServers::cluster(["redis://limiter:PASSWORD@10.0.0.1:6379", "redis://10.0.0.2:6379"])?;
/// # Ok::<(), tower_sliding_window::StoreError>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct RedisServers {
    /// At least one.
    pub(super) urls: Vec<ConnectionInfo>,
    pub(super) kind: Kind,
    #[cfg(feature = "tls")]
    certificates: Option<redis::TlsCertificates>,
    /// The username and the password of the servers behind Sentinels.
    pub(super) login: RedisConnectionInfo,
}

#[derive(Clone)]
pub(super) enum Kind {
    One,
    /// With what the Sentinels call the master.
    Sentinel(String),
    /// Any of some servers that knows who has which slot.
    Cluster,
    /// A node of a Cluster, with its identity if that is known.
    Node(Option<String>),
}

impl RedisServers {
    fn new(urls: Vec<ConnectionInfo>, kind: Kind) -> Self {
        Self {
            urls,
            kind,
            #[cfg(feature = "tls")]
            certificates: None,
            login: nameless(RedisConnectionInfo::default()),
        }
    }

    /// Uses the server at a URL.
    ///
    /// # Errors
    ///
    /// [`StoreError::Configuration`] if it is not the URL of a Redis server.
    pub fn one(url: impl AsRef<str>) -> Result<Self, StoreError> {
        Ok(Self::new(vec![parse(url)?], Kind::One))
    }

    /// Uses the master that the Sentinels at these URLs watch under a name.
    ///
    /// After a failover the store connects to the new master. While it is used it asks all Sentinels once a second, by
    /// `SENTINEL GET-MASTER-ADDR-BY-NAME`, and leaves a master as soon as more than half of them name another one. So
    /// give it all of them. The master is reached over TLS if the first URL is `rediss://`.
    ///
    /// A Sentinel is asked with the username and the password of its URL, or with those of the first URL if it has none.
    /// [`master_credentials`](Self::master_credentials) are for the master:
    ///
    /// ```
    /// use tower_sliding_window::RedisServers;
    ///
    /// let sentinels = ["redis://:watch@10.0.0.1:26379", "redis://10.0.0.2:26379", "redis://10.0.0.3:26379"];
    /// let servers = RedisServers::sentinel(sentinels, "shop")?
    ///     .master_credentials(Some("limiter".to_owned()), Some("secret".to_owned()));
    /// # Ok::<(), tower_sliding_window::StoreError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`StoreError::Configuration`] if there is no URL, or if one is not the URL of a Redis server.
    pub fn sentinel(
        urls: impl IntoIterator<Item: AsRef<str>>,
        master: impl Into<String>,
    ) -> Result<Self, StoreError> {
        let mut sentinels = parse_all(urls)?;
        let mut named = HashSet::new();
        // Each has one vote.
        sentinels.retain(|sentinel| named.insert(sentinel.addr().to_string()));
        let first = sentinels[0].redis_settings().clone();
        for sentinel in &mut sentinels {
            let own = sentinel.redis_settings();
            if own.username().or(own.password()).is_none() {
                *sentinel = sentinel.clone().set_redis_settings(first.clone());
            }
        }
        Ok(Self::new(sentinels, Kind::Sentinel(master.into())))
    }

    /// Sets the username and password of the servers behind Sentinels. Defaults to none. Their database is 0.
    ///
    /// Those in the URLs are for the Sentinels only. Without Sentinels credentials here are an error
    /// of [`RedisStore::connect`](crate::RedisStore::connect): they belong in the URL.
    pub fn master_credentials(
        mut self,
        username: Option<String>,
        password: Option<String>,
    ) -> Self {
        let mut login = nameless(RedisConnectionInfo::default());
        if let Some(username) = username {
            login = login.set_username(username);
        }
        if let Some(password) = password {
            login = login.set_password(password);
        }
        self.login = login;
        self
    }

    /// Uses the cluster that the nodes at these URLs belong to.
    ///
    /// The store discovers the other nodes, and reaches them at the addresses that they announce. Username, password and TLS
    /// are those of the first URL.
    ///
    /// # Errors
    ///
    /// [`StoreError::Configuration`] if there is no URL, or if one is not the URL of a Redis server.
    pub fn cluster(urls: impl IntoIterator<Item: AsRef<str>>) -> Result<Self, StoreError> {
        Ok(Self::new(parse_all(urls)?, Kind::Cluster))
    }

    /// Sets the certificate authority that must have signed the servers' certificates, in PEM.
    ///
    /// Defaults to the authorities that the system trusts.
    #[cfg(feature = "tls")]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates().root_cert = Some(pem.into());
        self
    }

    /// Sets the certificate and the private key that identify this client, both in PEM.
    ///
    /// Defaults to none.
    #[cfg(feature = "tls")]
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
        let none = redis::TlsCertificates { client_tls: None, root_cert: None };
        self.certificates.get_or_insert(none)
    }

    /// Finds what is wrong with certificates and credentials, which each connection would find out anew.
    pub(crate) fn ensure_usable(&self) -> RedisResult<()> {
        #[cfg(feature = "tls")]
        if let Some(redis::TlsCertificates { root_cert, client_tls }) = &self.certificates {
            let client_cert = client_tls.as_ref().map(|tls| &tls.client_cert);
            for (pem, wrong) in [
                (root_cert.as_ref(), "root_certificate holds no certificate in PEM"),
                (client_cert, "client_certificate holds no certificate in PEM"),
            ] {
                if pem.is_some_and(|pem| CertificateDer::pem_slice_iter(pem).next().is_none()) {
                    return Err((ErrorKind::InvalidClientConfig, wrong).into());
                }
            }
        }
        let has_login = self.login.username().or(self.login.password()).is_some();
        if has_login && !matches!(self.kind, Kind::Sentinel(_)) {
            let fix = "master_credentials are for servers behind Sentinels: write those of others in the URL";
            return Err((ErrorKind::InvalidClientConfig, fix).into());
        }
        self.urls.iter().try_for_each(|url| self.client(url.clone()).map(|_| ()))
    }

    /// Returns a node of the Cluster, which is reached with the credentials of the first server.
    pub(super) fn node(&self, (address, id): Primary) -> Self {
        Self { urls: vec![at(&self.urls[0], address)], kind: Kind::Node(id), ..self.clone() }
    }

    /// Makes a client of a server.
    pub(super) fn client(&self, info: ConnectionInfo) -> RedisResult<Client> {
        #[cfg(feature = "tls")]
        if matches!(info.addr(), ConnectionAddr::TcpTls { .. })
            && CryptoProvider::get_default().is_none()
        {
            // Without a provider rustls panics at the first connection.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        #[cfg(feature = "tls")]
        if let Some(certificates) = &self.certificates {
            return Client::build_with_tls(info, certificates.clone());
        }
        Client::open(info)
    }
}

impl fmt::Debug for RedisServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A URL may hold a password.
        f.debug_struct("RedisServers").finish_non_exhaustive()
    }
}

impl FromStr for RedisServers {
    type Err = StoreError;

    fn from_str(url: &str) -> Result<Self, StoreError> {
        Self::one(url)
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

impl TryFrom<&String> for RedisServers {
    type Error = StoreError;

    fn try_from(url: &String) -> Result<Self, StoreError> {
        Self::one(url.as_str())
    }
}

impl From<Infallible> for StoreError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// Leaves out the name of the library, which a user of few rights may not set: Redis would log each try as refused.
fn nameless(settings: RedisConnectionInfo) -> RedisConnectionInfo {
    settings.set_skip_set_lib_name()
}

fn parse(url: impl AsRef<str>) -> Result<ConnectionInfo, StoreError> {
    let info = url.as_ref().into_connection_info().map_err(wrong_url)?;
    if matches!(info.addr(), ConnectionAddr::TcpTls { insecure: true, .. }) {
        let message = "the URL is wrong: #insecure is not supported, set root_certificate instead";
        return Err(StoreError::Configuration { message: message.to_owned() });
    }
    // With a delay a call waits for the acknowledgement of the one before, so that a Redis one round trip away takes two
    // or three.
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    let settings = nameless(info.redis_settings().clone());
    Ok(info.set_tcp_settings(tcp).set_redis_settings(settings))
}

fn parse_all(urls: impl IntoIterator<Item: AsRef<str>>) -> Result<Vec<ConnectionInfo>, StoreError> {
    let infos: Vec<_> = urls.into_iter().map(parse).collect::<Result<_, _>>()?;
    if infos.is_empty() {
        return Err(StoreError::Configuration {
            message: "the list of servers is empty".to_owned(),
        });
    }
    Ok(infos)
}

/// Converts the error of a URL. It says how to write the URL, and contains no part of it.
fn wrong_url(error: RedisError) -> StoreError {
    let error = error.to_string();
    let fix = if cfg!(not(feature = "tls")) && error.contains("TLS") {
        "enable the feature `tls` of tower-sliding-window for a rediss:// URL"
    } else {
        "write redis://HOST:PORT, or redis://USERNAME:PASSWORD@HOST:PORT/DATABASE; in a password \
         write / @ # ? % as %2F %40 %23 %3F %25"
    };
    StoreError::Configuration { message: format!("the URL is wrong: {error}: {fix}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_have_no_delay() {
        let servers = RedisServers::one("redis://127.0.0.1:6379").unwrap();
        let node = servers.node((("10.0.0.1".to_owned(), 6379), None));
        for servers in [servers, node] {
            assert!(servers.urls[0].tcp_settings().nodelay());
        }
    }

    /// Otherwise an application's own `install_default` would fail. The provider is one for the process, so no other unit
    /// test opens a client with TLS.
    #[cfg(feature = "tls")]
    #[test]
    fn cryptography_provider_is_installed_for_tls_alone() {
        for (url, is_installed) in [("redis://127.0.0.1", false), ("rediss://127.0.0.1", true)] {
            let servers = RedisServers::one(url).unwrap();
            servers.ensure_usable().unwrap();
            let installed = rustls::crypto::CryptoProvider::get_default();
            assert_eq!(installed.is_some(), is_installed, "{url}");
        }
    }

    /// Nothing would be trusted, or no certificate shown.
    #[cfg(feature = "tls")]
    #[test]
    fn certificate_that_holds_none_is_an_error() {
        let urls = ["rediss://127.0.0.1:6379"];
        let all = [
            RedisServers::one(urls[0]).unwrap(),
            RedisServers::sentinel(urls, "shop").unwrap(),
            RedisServers::cluster(urls).unwrap(),
        ];
        for servers in all {
            for pem in ["", "garbage", "-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n"] {
                let of_roots = (servers.clone().root_certificate(pem), "root_certificate");
                let of_client = (servers.clone().client_certificate(pem, ""), "client_certificate");
                for (servers, name) in [of_roots, of_client] {
                    let error = servers.ensure_usable().err();
                    let error = error.expect("an error").to_string();
                    let wanted = format!("{name} holds no certificate in PEM");
                    assert!(error.contains(&wanted), "{pem:?}: {error}");
                }
            }
        }
    }

    #[test]
    fn sentinel_has_one_vote_and_its_own_password() {
        let [one, again] = ["redis://:secret@10.0.0.1:26379/", "redis://10.0.0.1:26379"];
        let urls = [one, again, "redis://10.0.0.2", "redis://:own@10.0.0.3"];
        let sentinels = RedisServers::sentinel(urls, "shop").unwrap().urls;
        let passwords: Vec<_> =
            sentinels.iter().map(|it| it.redis_settings().password().unwrap()).collect();
        // Otherwise one Sentinel could be more than half of all.
        assert_eq!(passwords, ["secret", "secret", "own"]);
    }
}
