//! [`Sentinel`]: finds the master through Redis Sentinel.

use redis::io::tcp::TcpSettings;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{Client, ConnectionAddr, ConnectionInfo, RedisResult};

#[derive(Clone)]
pub(crate) struct Sentinel {
    pub(super) sentinels: Vec<ConnectionInfo>,
    pub(super) master: String,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    #[cfg(feature = "tls")]
    pub(super) certificates: Option<redis::TlsCertificates>,
}

impl Sentinel {
    /// Looks the master up. The order of the Sentinels differs from attempt to attempt, because the
    /// first one may be the one that does not reply.
    pub(super) async fn master(&self, attempt: usize) -> RedisResult<Client> {
        self.client(attempt)?.async_get_client().await
    }

    pub(super) fn client(&self, attempt: usize) -> RedisResult<SentinelClient> {
        let mut addresses: Vec<_> = self.sentinels.iter().map(|info| info.addr().clone()).collect();
        let first = attempt % addresses.len();
        addresses.rotate_left(first);
        let settings = self.sentinels[0].redis_settings();
        let uses_tls = matches!(addresses[0], ConnectionAddr::TcpTls { .. });

        let tcp = TcpSettings::default().set_nodelay(true);
        let mut builder =
            SentinelClientBuilder::new(addresses, &self.master, SentinelServerType::Master)?
                .set_client_to_redis_tcp_settings(tcp.clone())
                .set_client_to_sentinel_tcp_settings(tcp);
        if let Some(username) = settings.username() {
            builder = builder.set_client_to_sentinel_username(username);
        }
        if let Some(password) = settings.password() {
            builder = builder.set_client_to_sentinel_password(password);
        }
        if let Some(username) = &self.username {
            builder = builder.set_client_to_redis_username(username);
        }
        if let Some(password) = &self.password {
            builder = builder.set_client_to_redis_password(password);
        }
        if uses_tls {
            builder = builder.set_client_to_redis_tls_mode(redis::TlsMode::Secure);
        }
        #[cfg(feature = "tls")]
        if let Some(certificates) = &self.certificates {
            builder = builder
                .set_client_to_sentinel_certificates(certificates.clone())
                .set_client_to_redis_certificates(certificates.clone());
        }
        builder.build()
    }
}
