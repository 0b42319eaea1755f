//! [`ListenFlags`] and [`RedisFlags`]: the flags that all servers have, and the texts they accept.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use clap::Args;

/// The longest length of time that a flag takes: a year.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Where a server listens, and to how many clients.
///
/// `mut_arg` gives `--listen` another port.
#[derive(Args)]
pub struct ListenFlags {
    /// Address to listen on; port 0 takes a free one. The server prints the address when it is ready.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:3000")]
    pub listen: SocketAddr,

    /// Connections that may be open at one time. When one more comes, idle ones close at once, and busy ones
    /// after their response, ten seconds at most. The system's limit of open files (`ulimit -Hn`) may allow fewer.
    #[arg(long, value_name = "COUNT", default_value = "8192")]
    pub max_connections: NonZeroU32,
}

/// Which Redis a server uses.
///
/// `mut_arg` gives `--redis` and `--sentinel-master` the environment variables of the server, and `--prefix` its default.
#[derive(Args, Clone)]
pub struct RedisFlags {
    /// Redis that keeps what the servers share: redis://[:PASSWORD@]HOST[:PORT][/DB]. Repeat it, or separate by commas (in a
    /// password write %2C), for the nodes of a Cluster or for Sentinels. Without it, this process keeps everything. Every user
    /// of this machine can see a password in `ps`: better set the variable.
    // Text here, so that an error of clap, which repeats the value, can't show a password.
    #[arg(long, value_name = "URL", hide_env_values = true, value_delimiter = ',')]
    pub redis: Vec<String>,

    /// The name of the master that Sentinels watch, behind its own user and password if it has any, such as
    /// `:PASSWORD@shop`. Then --redis names the Sentinels.
    #[arg(long, value_name = "[[USER]:PASSWORD@]NAME", requires = "redis", hide_env_values = true)]
    pub sentinel_master: Option<String>,

    /// How long Redis may be silent before it counts as down. A late reply is no silence.
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = timeout)]
    pub response_timeout: Duration,

    /// What the Redis keys begin with; servers with the same prefix share what they keep. Each program needs its own.
    #[arg(long, value_name = "NAME", default_value = "server", value_parser = prefix)]
    pub prefix: String,
}

/// What is wrong with the text of a flag.
pub type FlagError = Cow<'static, str>;

/// Reads what the Redis keys begin with.
pub fn prefix(text: &str) -> Result<String, FlagError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte);
    let fits = (1..=64).contains(&text.len()) && text.bytes().all(allowed);
    let error = "a prefix is 1 to 64 characters of A-Z a-z 0-9 _ . : -";
    if fits { Ok(text.to_owned()) } else { Err(error.into()) }
}

/// Reads a length of time of up to a year, written `200ms`, `30s` or `5m`.
pub fn span(text: &str) -> Result<Duration, FlagError> {
    let span = humantime::parse_duration(text)
        .map_err(|error| format!("it is not a length of time such as 30s or 5m: {error}"))?;
    if span > LONGEST { Err("it is longer than a year".into()) } else { Ok(span) }
}

/// Reads a [`span`] that is not zero.
pub fn timeout(text: &str) -> Result<Duration, FlagError> {
    span(text).and_then(|it| if it.is_zero() { Err("it is zero".into()) } else { Ok(it) })
}

/// Reads how long a ban or a mute lasts: a [`span`] of at least a second.
pub fn penalty_length(text: &str) -> Result<Duration, FlagError> {
    let is_short = "it is shorter than a second";
    span(text).and_then(|it| if it.as_secs() < 1 { Err(is_short.into()) } else { Ok(it) })
}
