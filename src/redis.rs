//! Access to Redis, shared by the stores, the storm detector and the speech monitor.
//!
//! A [`Client`] runs the scripts and sends other commands through a [`CircuitBreaker`], which holds
//! the one [`Connection`] of a store.

mod backoff;
mod circuit_breaker;
mod client;
mod connection;
mod connector;
mod keys;
mod outage;
mod reply;
mod scripts;
#[cfg(feature = "sentinel")]
mod sentinel;
mod servers;

pub(crate) use self::backoff::Backoff;
pub(crate) use self::circuit_breaker::CircuitBreaker;
pub(crate) use self::client::Client;
pub(crate) use self::connection::Connection;
pub(crate) use self::connector::Connector;
pub(crate) use self::keys::Keys;
pub(crate) use self::outage::Outage;
pub(crate) use self::reply::{malformed, read};
pub(crate) use self::scripts::Script;
pub use self::servers::RedisServers;

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use redis::Client;
    use redis::aio::{ConnectionManager, ConnectionManagerConfig};
    use redis_test::server::RedisServer;

    /// Connects to a server that may still be starting.
    pub(crate) async fn connect(server: &RedisServer) -> ConnectionManager {
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(Duration::from_secs(10)))
            .set_min_delay(Duration::from_millis(10))
            .set_max_delay(Duration::from_millis(50))
            .set_number_of_retries(200);
        let client = Client::open(server.connection_info()).unwrap();
        ConnectionManager::new_with_config(client, config).await.unwrap()
    }
}
