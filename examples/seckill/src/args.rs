//! [`Args`]: the command line.

use std::collections::HashSet;
use std::fmt::Display;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use clap::builder::NonEmptyStringValueParser;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use ipnet::IpNet;
use tower_sliding_window::key::TrustedProxies;
use tower_sliding_window::{FailurePolicy, Penalty, Policy, Quota};

use crate::names::Sku;
use crate::stock::MinReplicas;
use example_support::admin::AdminFlags;
use example_support::flags::{ListenFlags, RedisFlags, penalty_length, span};

/// A flash sale: at most so many requests of each user in any minute, the stock never oversold.
#[derive(Parser)]
#[command(
    name = "seckill",
    mut_arg("redis", |redis| redis.env("SECKILL_REDIS")),
    mut_arg("sentinel_master", |master| master.env("SECKILL_SENTINEL_MASTER")),
    mut_arg("prefix", |prefix| prefix.default_value("seckill")),
    mut_arg("admin_token", |token| token.env("SECKILL_ADMIN_TOKEN")),
    after_help = "\
Try it:
  curl -i -X POST -H 'x-user-id: alice' http://127.0.0.1:3000/seckill/iphone/orders
  curl http://127.0.0.1:3000/seckill/iphone

examples/seckill/README.md has the requests of a draw, of a payment, and of an operator.

RUST_LOG sets what is logged, to stderr; `info` unless it is set. User ids appear from `debug` on."
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) listen: ListenFlags,

    #[command(flatten)]
    pub(crate) redis: RedisFlags,

    /// What decides about the limits while Redis does not answer: `local` (this process alone: each of N servers has the
    /// whole limits), `local:N` (this process as one of N servers), `open` (admit all) or `closed` (503). Orders are a 503
    /// until Redis answers. A server does not start without Redis
    #[arg(long, value_name = "POLICY", default_value = "local", requires = "redis")]
    pub(crate) on_failure: FailurePolicy,

    /// Requests a user may make in any window; several quotas as 2/1s,5/60s.
    #[arg(long, value_name = "LIMIT/WINDOW", default_value = "5/60s")]
    pub(crate) quota: Policy,

    /// Requests an IP address may make in any window, or `off`. It bounds how many user ids one
    /// client can invent. Behind a proxy that --trust-proxy does not name, all clients share one
    /// quota, that of the proxy's address.
    #[arg(long, value_name = "LIMIT/WINDOW", default_value = "100/60s", value_parser = or_off::<Policy>)]
    pub(crate) ip_quota: OrOff<Policy>,

    /// Different users of an IP address that may enter a draw in any window, or `off`. The window should be as long as
    /// entries are taken. Sales to who comes first have no such limit.
    #[arg(long, value_name = "USERS/WINDOW", default_value = "5/10m", value_parser = or_off::<Quota>)]
    pub(crate) accounts: OrOff<Quota>,

    /// A network whose addresses have many customers each, such as those of a mobile carrier, and how many
    /// users of such an address may enter. --ip-quota is that many times as large there as it is for the
    /// users of --accounts, whatever an operator changes later. The addresses of an IPv6 network of 64 bits
    /// count as one. Repeat it; the first network that has an address counts.
    #[arg(long, value_name = "CIDR=USERS", value_parser = nat)]
    pub(crate) nat: Vec<(IpNet, u32)>,

    /// Networks of the proxies or balancers in front of the server, such as 10.0.0.0/8,127.0.0.1. The
    /// client of a request from there is the last address in X-Forwarded-For that is in none of these
    /// networks: each proxy must add the address of its own client to that header. The networks may
    /// not hold all addresses together. No proxy is trusted, and the header is ignored, if left out.
    #[arg(long, value_name = "CIDR,...")]
    pub(crate) trust_proxy: Option<TrustedProxies>,

    /// Bans users that are denied by --quota again and again. 3/10m:1m,1h,24h means: three strikes
    /// within ten minutes are a ban of a minute, the next ban lasts an hour, and each one after that
    /// a day. A full quota is one strike until its window has passed. Requests before the opening count
    /// too; in a draw only entries. Only denials by --quota are strikes, not those by --ip-quota: many
    /// users may share an address. No bans if left out.
    #[arg(long, value_name = "STRIKES/TIME:LENGTH,LENGTH,...")]
    pub(crate) ban: Option<Penalty>,

    /// A query parameter with the user id, for requests without the header x-user-id. For load
    /// generators, which can vary the URL only.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) user_query: Option<String>,

    /// A SKU on sale, and how many pieces there are; repeat it for more SKUs. A SKU that is in Redis
    /// already keeps its stock.
    #[arg(long, value_name = "SKU=COUNT", default_value = "iphone=100", value_parser = stock)]
    pub(crate) stock: Vec<(Sku, u32)>,

    /// Replicas that must have an order before it is answered with 201; without them it is a 503. A
    /// failover loses what no replica has. Defaults to 1 behind Sentinels and on a Cluster, and to 0
    /// with one Redis. Two replicas or more let the sale go on while one of them is the new master. No
    /// order is taken for five seconds after a replica has left, and while one does not follow a new or restarted
    /// master yet, for it may be the next one.
    #[arg(long, value_name = "COUNT", requires = "redis")]
    min_replicas: Option<u32>,

    /// Opens the sale after this time, such as 30s or 5m. With Redis, the first server of a prefix adds it to
    /// the time of Redis, and all others keep that opening, also without this flag and after a restart. Without
    /// any opening the sale is open at once. A server that has no opening at its start sells, whatever the
    /// others do later. For a new sale delete the key PREFIX:opening first. Requests before the opening count
    /// in the windows, but for orders of a draw: without a ticket they are a 403 before the limit.
    #[arg(long, value_name = "DURATION", value_parser = span, conflicts_with = "opens_at")]
    pub(crate) opens_in: Option<Duration>,

    /// Opens the sale at this date and time in UTC, such as 2030-11-11T04:00:00Z: with Redis by its
    /// clock, and otherwise by the clock of this machine. Of two dates the later one holds on every
    /// server of a prefix that is still closed. A sale that is open is not closed again.
    #[arg(long, value_name = "DATETIME", value_parser = date)]
    pub(crate) opens_at: Option<SystemTime>,

    /// Sells to who comes first, although there is an opening. Without it a sale with an opening is a draw:
    /// until it opens, everybody enters, and chance decides who comes when. The first server keeps in Redis
    /// which of the two a SKU is.
    #[arg(long)]
    pub(crate) first_come: bool,

    /// How long a user whose turn it is has to order. Then the turn passes to the next in line.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = penalty_length)]
    pub(crate) turn: Duration,

    /// How long an order holds its piece until it is paid.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = penalty_length)]
    pub(crate) pay_within: Duration,

    /// Token that the payment provider sends to POST /orders/ORDER/payment, 16 characters or more. Without it
    /// everybody can say that an order is paid. Every user of this machine can see it in `ps`: better set
    /// the variable.
    #[arg(long, value_name = "TOKEN", env = "SECKILL_PAYMENT_TOKEN", hide_env_values = true)]
    pub(crate) payment_token: Option<String>,

    #[command(flatten)]
    pub(crate) admin: AdminFlags,
}

impl Args {
    /// Reads the command line, or prints what is wrong with it and exits with 2.
    pub(crate) fn read() -> Self {
        let args = Self::parse();
        let mut skus = HashSet::new();
        let twice = args.stock.iter().find(|(sku, _)| !skus.insert(sku));
        let wrong = match twice {
            Some((sku, _)) => format!("--stock names the SKU {sku} twice"),
            None if args.accounts.is_none() && !args.nat.is_empty() => {
                "--nat needs --accounts".into()
            }
            None => return args,
        };
        Self::command().error(ErrorKind::ArgumentConflict, wrong).exit()
    }

    /// Returns how many replicas must have an order.
    pub(crate) fn replicas(&self) -> MinReplicas {
        // Of a Cluster, or behind Sentinels, one server can take the place of another.
        let has_sentinels = self.redis.sentinel_master.is_some();
        let on_cluster = self.redis.redis.len() > 1 && !has_sentinels;
        let default = (on_cluster || has_sentinels).into();
        let timeout = self.redis.response_timeout;
        MinReplicas { wanted: self.min_replicas.unwrap_or(default), timeout, on_cluster }
    }
}

/// Reads a date and time of RFC 3339, in UTC.
fn date(text: &str) -> Result<SystemTime, &'static str> {
    let error = "it is not a date and time of RFC 3339 in UTC, such as 2030-11-11T04:00:00Z";
    humantime::parse_rfc3339(text).map_err(|_| error)
}

/// A flag that can be `off`. By this name, clap does not take it for one that can be left out.
pub(crate) type OrOff<T> = Option<T>;

/// Reads a limit or `off`.
fn or_off<T: FromStr<Err: Display>>(text: &str) -> Result<OrOff<T>, String> {
    if text == "off" {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|error| format!("{error}; to turn the limit off, write off"))
}

/// Reads a network and how many users an address there may have, written `CIDR=USERS`.
fn nat(text: &str) -> Result<(IpNet, u32), &'static str> {
    let error = "write CIDR=USERS, such as 100.64.0.0/10=500, with one user or more";
    let (net, users) = text.split_once('=').ok_or(error)?;
    let users: NonZeroU32 = users.parse().map_err(|_| error)?;
    let net = net.parse().map_err(|_| error)?;
    if matches!(net, IpNet::V6(net) if net.prefix_len() > 64) {
        return Err("the addresses of an IPv6 network of 64 bits count as one: write 64 or fewer");
    }
    Ok((net, users.get()))
}

/// Reads a SKU and how many pieces of it there are, written `SKU=COUNT`.
fn stock(text: &str) -> Result<(Sku, u32), String> {
    let (sku, count) = text.split_once('=').ok_or("write SKU=COUNT, such as iphone=100")?;
    let pieces: Result<NonZeroU32, _> = count.parse();
    let error =
        |error| format!("the count {count:?} is not a whole number from 1 to 4294967295: {error}");
    Ok((sku.parse()?, pieces.map_err(error)?.get()))
}
