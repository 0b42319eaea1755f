//! The way to Redis.
//!
//! A [`Client`] calls the [`Scripts`] and sends other commands through the [`CircuitBreaker`] of the server, which holds the
//! [`Connection`](connection::Connection), or those of the nodes of a Cluster.

mod batch;
mod circuit_breaker;
mod client;
mod cluster;
#[cfg(feature = "redis-commands")]
mod commands;
mod connect;
mod connection;
mod health;
mod keys;
mod reply;
mod request;
mod scripts;
mod servers;
mod view;

pub(crate) use self::batch::{Batch, BatchedRequest};
pub(crate) use self::client::Client;
#[cfg(feature = "redis-commands")]
pub use self::commands::{RedisCommands, RedisScript};
pub(crate) use self::health::Health;
pub(crate) use self::keys::Keys;
pub(crate) use self::reply::{Numbers, Replies, malformed, read};
pub(crate) use self::scripts::{Script, Scripts};
pub use self::servers::RedisServers;
