//! [`Args`]: the command line.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Instant;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use tower_sliding_window::{Penalty, Policy, PolicyError};

use crate::date::Date;
use crate::opening::Opening;
use crate::order::{Sku, SkuError};
use crate::user::UserFrom;
use example_support::flags::{FailureFlags, ListenFlags, RedisFlags};
use example_support::prefix::Prefix;
use example_support::span::Span;

/// A flash sale: at most so many requests of each user in any minute, the stock never oversold.
#[derive(Parser)]
#[command(
    name = "seckill",
    mut_arg("redis", |redis| redis.env("SECKILL_REDIS")),
    after_help = "\
Try it:
  curl -i -X POST -H 'x-user-id: alice' http://127.0.0.1:3000/seckill/iphone/orders
  curl http://127.0.0.1:3000/seckill/iphone

Bans by hand, with --ban 3/10m:1m,1h,24h --admin 127.0.0.1:3001 and a token in SECKILL_ADMIN_TOKEN;
a ban only ever lengthens until it is lifted:
  bans() { curl -i -H \"authorization: Bearer $SECKILL_ADMIN_TOKEN\" \
    \"$@\"; }
  bans 'http://127.0.0.1:3001/admin/bans?limit=100'  # the next page: &cursor=NEXT
  bans http://127.0.0.1:3001/admin/bans/mallory
  bans -X PUT -d '{\"for\": \"1h\", \"reason\": \"a script\"}' http://127.0.0.1:3001/admin/bans/mallory
  bans -X DELETE http://127.0.0.1:3001/admin/bans/mallory

RUST_LOG sets what is logged, to stderr; `info` unless it is set. User ids appear from `debug` on."
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) listen: ListenFlags,

    #[command(flatten)]
    pub(crate) redis: RedisFlags,

    #[command(flatten)]
    pub(crate) failure: FailureFlags,

    /// What the Redis keys begin with; servers with the same prefix are one shop.
    #[arg(long, value_name = "NAME", default_value = "seckill")]
    pub(crate) prefix: Prefix,

    /// Requests a user may make in any window; several quotas as 2/1s,5/60s.
    #[arg(long, value_name = "LIMIT/WINDOW", default_value = "5/60s")]
    pub(crate) quota: Policy,

    /// Requests an IP address may make in any window, or `off`. It bounds how many user ids one
    /// client can invent. Behind a proxy all clients share the quota of its address: raise it there,
    /// or turn it off and limit addresses in the proxy.
    #[arg(long, value_name = "LIMIT/WINDOW", default_value = "100/60s")]
    pub(crate) ip_quota: IpQuota,

    /// Bans users that are denied by --quota again and again. 3/10m:1m,1h,24h means: three strikes
    /// within ten minutes are a ban of a minute, the next ban lasts an hour, and each one after that
    /// a day. A full quota is one strike until its window has passed. No bans if left out.
    #[arg(long, value_name = "STRIKES/TIME:LEVEL,LEVEL,...")]
    pub(crate) ban: Option<Penalty>,

    /// Where the user id stands in a request: header:NAME, query:NAME or cookie:NAME.
    #[arg(long, value_name = "PLACE:NAME", default_value = "header:x-user-id")]
    pub(crate) user_from: UserFrom,

    /// A SKU on sale, and how many pieces there are; repeat it for more SKUs. A SKU that is in Redis
    /// already keeps its stock.
    #[arg(long, value_name = "SKU=COUNT", default_value = "iphone=100")]
    pub(crate) stock: Vec<StockArg>,

    /// Opens the sale after this time, such as 30s or 5m. It is open at once if left out.
    #[arg(long, value_name = "DURATION", conflicts_with = "opens_at")]
    opens_in: Option<Span>,

    /// Opens the sale at this date and time of RFC 3339, such as 2030-11-11T12:00:00+08:00.
    #[arg(long, value_name = "DATETIME")]
    opens_at: Option<Date>,

    /// Loopback address of the admin listener, which shows, imposes and lifts bans; port 0 takes a
    /// free one. The server prints the address in a second line. Needs a token. Off if left out.
    #[arg(long, value_name = "IP:PORT", requires = "ban")]
    pub(crate) admin: Option<Loopback>,

    /// Token that requests to --admin carry, 16 characters or more. Every user of this machine can
    /// see it in `ps`: better set the variable, or use --admin-token-file.
    // Text here, for the same reason as the URL of Redis.
    #[arg(
        long,
        value_name = "TOKEN",
        env = "SECKILL_ADMIN_TOKEN",
        hide_env_values = true,
        conflicts_with = "admin_token_file"
    )]
    pub(crate) admin_token: Option<String>,

    /// File that holds the token for --admin.
    #[arg(long, value_name = "FILE", requires = "admin")]
    pub(crate) admin_token_file: Option<PathBuf>,
}

impl Args {
    /// Reads the command line, or prints what is wrong with it and exits with 2.
    pub(crate) fn read() -> Self {
        let args = Self::parse();
        let mut skus = HashSet::new();
        if let Some(twice) = args.stock.iter().find(|stock| !skus.insert(&stock.sku)) {
            let message = format!("--stock names the SKU {} twice", twice.sku);
            Self::command().error(ErrorKind::ArgumentConflict, message).exit();
        }
        args
    }

    /// Returns when the sale opens. `--opens-in` counts from this call.
    pub(crate) fn opening(&self) -> Opening {
        match (self.opens_in, self.opens_at) {
            (Some(delay), _) => Opening::At(Instant::now() + delay.0),
            (None, Some(date)) => Opening::OnDate(date.0),
            (None, None) => Opening::Now,
        }
    }
}

/// The quota of an IP address, if there is one, written `LIMIT/WINDOW` or `off`.
#[derive(Clone, Debug)]
pub(crate) struct IpQuota(pub(crate) Option<Policy>);

impl FromStr for IpQuota {
    type Err = IpQuotaError;

    fn from_str(text: &str) -> Result<Self, IpQuotaError> {
        if text == "off" { Ok(Self(None)) } else { Ok(Self(Some(text.parse()?))) }
    }
}

/// What is wrong with the text of an [`IpQuota`].
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}; to turn the limit off, write off")]
pub(crate) struct IpQuotaError(#[from] PolicyError);

/// A SKU and how many pieces of it there are, written `SKU=COUNT`.
#[derive(Clone, Debug)]
pub(crate) struct StockArg {
    pub(crate) sku: Sku,
    pub(crate) count: u32,
}

impl FromStr for StockArg {
    type Err = StockArgError;

    fn from_str(text: &str) -> Result<Self, StockArgError> {
        let (sku, count) = text.split_once('=').ok_or(StockArgError::NoEqualsSign)?;
        let sku = sku.parse()?;
        let count =
            count.parse().map_err(|source| StockArgError::Count { text: count.into(), source })?;
        Ok(Self { sku, count })
    }
}

/// What is wrong with the text of a [`StockArg`].
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum StockArgError {
    #[error("write SKU=COUNT, such as iphone=100")]
    NoEqualsSign,
    #[error(transparent)]
    Sku(#[from] SkuError),
    #[error("the count {text:?} is not a whole number from 0 to 4294967295: {source}")]
    Count { text: String, source: std::num::ParseIntError },
}

/// An address that only this machine can reach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loopback(pub(crate) SocketAddr);

impl FromStr for Loopback {
    type Err = LoopbackError;

    fn from_str(text: &str) -> Result<Self, LoopbackError> {
        let address: SocketAddr = text.parse()?;
        if address.ip().is_loopback() { Ok(Self(address)) } else { Err(LoopbackError::Reachable) }
    }
}

/// What is wrong with the text of a [`Loopback`].
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum LoopbackError {
    #[error("{0}: write IP:PORT, such as 127.0.0.1:3001 or [::1]:3001")]
    Text(#[from] std::net::AddrParseError),
    #[error("other machines could reach it: the IP must be of 127.0.0.0/8 or ::1")]
    Reachable,
}
