//! [`ListenFlags`], [`RedisFlags`] and [`FailureFlags`]: the flags that all servers have.

use std::net::SocketAddr;

use clap::Args;
use tower_sliding_window::FailurePolicy;

use crate::prefix::Prefix;
use crate::redis::{Connected, OpenError, connect};
use crate::span::{IdleTimeout, Span};

/// Where a server listens, and for how long it waits for a client.
///
/// `mut_arg` gives `--listen` another port.
#[derive(Args)]
pub struct ListenFlags {
    /// Address to listen on; port 0 takes a free one. The server prints the address when it is ready.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:3000")]
    pub listen: SocketAddr,

    /// Closes a connection on which no whole request head has come for this long. A proxy in front
    /// of the server must have a shorter idle timeout.
    #[arg(long, value_name = "DURATION", default_value = "75s")]
    pub idle_timeout: IdleTimeout,
}

/// Which Redis a server uses.
///
/// `mut_arg` gives `--redis` the environment variable of the server.
#[derive(Args)]
pub struct RedisFlags {
    /// Redis that keeps everything, for all processes that use it:
    /// redis://[:PASSWORD@]HOST[:PORT][/DB]. Repeat it, or separate by commas, for the nodes of a
    /// Cluster or for Sentinels. Without it, this process keeps everything.
    // Text here, so that an error of clap, which repeats the value, can't show a password.
    #[arg(long, value_name = "URL", hide_env_values = true, value_delimiter = ',')]
    redis: Vec<String>,

    /// The name of the master that Sentinels watch. Then --redis names the Sentinels.
    #[arg(long, value_name = "NAME", requires = "redis")]
    sentinel_master: Option<String>,

    /// How long Redis may take to reply.
    #[arg(long, value_name = "DURATION", default_value = "50ms")]
    response_timeout: Span,
}

impl RedisFlags {
    /// Connects to the Redis that the flags name, if they name one.
    ///
    /// # Errors
    ///
    /// [`OpenError`] if a URL is wrong or the Redis can't be used.
    pub async fn connect(&self, prefix: &Prefix) -> Result<Option<Connected>, OpenError> {
        if self.redis.is_empty() {
            return Ok(None);
        }
        let master = self.sentinel_master.as_deref();
        connect(&self.redis, master, self.response_timeout.0, prefix).await.map(Some)
    }
}

/// What a server does while Redis does not answer.
#[derive(Args)]
pub struct FailureFlags {
    /// What decides while Redis does not answer: `local` (this process alone), `local:N` (this
    /// process as one of N servers), `open` (admit all) or `closed` (503).
    #[arg(long, value_name = "POLICY", default_value = "local")]
    pub on_failure: FailurePolicy,
}
