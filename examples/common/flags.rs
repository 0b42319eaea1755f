//! [`ListenFlags`], [`RedisFlags`] and [`FailureFlags`]: what the examples are told in the same way.

use std::net::SocketAddr;

use clap::Args;
use tower_sliding_window::FailurePolicy;

use super::redis::{OpenError, Redis};
use super::span::{IdleTimeout, Span};

/// Where a server listens, and for how long to whom.
///
/// `mut_arg` gives `--listen` another port.
#[derive(Args)]
pub(crate) struct ListenFlags {
    /// Address to listen on; port 0 takes a free one. The address is printed when ready.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:3000")]
    pub(crate) listen: SocketAddr,

    /// Hangs up on whoever takes longer over a request, or between two. A proxy in front must hang
    /// up sooner, or it may send a request into a closed connection.
    #[arg(long, value_name = "DURATION", default_value = "75s")]
    pub(crate) idle_timeout: IdleTimeout,
}

/// Which Redis an example has.
///
/// `mut_arg` gives `--redis` the environment variable of the example.
#[derive(Args)]
pub(crate) struct RedisFlags {
    /// Redis that keeps everything, for all processes that use it:
    /// redis://[:PASSWORD@]HOST[:PORT][/DB]. Repeat it, or separate by commas, for the nodes of a
    /// Cluster or for Sentinels. Without it, this process keeps everything.
    // Text here, so that an error of clap, which repeats the value, can't show a password.
    #[arg(long, value_name = "URL", hide_env_values = true, value_delimiter = ',')]
    redis: Vec<String>,

    /// Says that --redis names Sentinels, and what they call the master.
    #[arg(long, value_name = "NAME", requires = "redis")]
    sentinel_master: Option<String>,

    /// How long Redis may take to answer.
    #[arg(long, value_name = "DURATION", default_value = "50ms")]
    response_timeout: Span,
}

/// What a server does without Redis.
#[derive(Args)]
pub(crate) struct FailureFlags {
    /// Who decides while Redis can't: `local` (windows in this process), `local:N` (as one of N
    /// servers), `open` (all pass) or `closed` (503).
    #[arg(long, value_name = "POLICY", default_value = "local")]
    pub(crate) on_failure: FailurePolicy,
}

impl RedisFlags {
    /// Returns the Redis that was named, if one was.
    pub(crate) fn redis(&self) -> Result<Option<Redis>, OpenError> {
        if self.redis.is_empty() {
            return Ok(None);
        }
        let Self { redis, sentinel_master, response_timeout } = self;
        Redis::new(redis, sentinel_master.clone(), response_timeout.0).map(Some)
    }
}
