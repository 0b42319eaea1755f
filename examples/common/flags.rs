//! [`ServerFlags`]: what the example servers are told in the same way.

use std::net::SocketAddr;

use clap::Args;
use tower_sliding_window::FailurePolicy;

use super::redis::{OpenError, Redis};
use super::span::{IdleTimeout, Span};

/// Where a server listens, how long for, and which Redis it has.
///
/// `mut_arg` gives `--redis` the environment variable of the example, and `--listen` another port.
#[derive(Args)]
pub(crate) struct ServerFlags {
    /// Address to listen on; port 0 takes a free one. The address is printed when ready.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:3000")]
    pub(crate) listen: SocketAddr,

    /// Hangs up on whoever takes longer over a request, or between two. A proxy in front must hang
    /// up sooner, or it may send a request into a closed connection.
    #[arg(long, value_name = "DURATION", default_value = "75s")]
    pub(crate) idle_timeout: IdleTimeout,

    /// Redis that keeps what is counted and set, for all servers that use it:
    /// redis://[:PASSWORD@]HOST[:PORT][/DB]. Repeat it, or separate by commas, for the nodes of a
    /// Cluster or for Sentinels. Without it, this process keeps everything.
    // Text here, so that an error of clap, which repeats the value, can't show a password.
    #[arg(long, value_name = "URL", hide_env_values = true, value_delimiter = ',')]
    redis: Vec<String>,

    /// Says that --redis names Sentinels, and what they call the master.
    #[arg(long, value_name = "NAME", requires = "redis")]
    sentinel_master: Option<String>,

    /// How long Redis may take to answer about windows before the failure policy decides.
    #[arg(long, value_name = "DURATION", default_value = "50ms")]
    pub(crate) response_timeout: Span,

    /// Who decides while Redis can't: `local` (windows in this process), `local:N` (as one of N
    /// servers), `open` (all pass) or `closed` (503).
    #[arg(long, value_name = "POLICY", default_value = "local")]
    pub(crate) on_failure: FailurePolicy,
}

impl ServerFlags {
    /// Connects to the Redis that was named, if one was.
    pub(crate) async fn redis(&self) -> Result<Option<Redis>, OpenError> {
        if self.redis.is_empty() {
            return Ok(None);
        }
        Redis::open(self.redis.clone(), self.sentinel_master.clone()).await.map(Some)
    }
}
