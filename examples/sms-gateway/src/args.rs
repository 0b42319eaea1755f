//! [`Args`]: the command line.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use clap::builder::RangedI64ValueParser;
use example_support::admin::AdminFlags;
use example_support::flags::{ListenFlags, RedisFlags, span};
use example_support::webhook::WebhookFlags;
use tower_sliding_window::{FailurePolicy, Quota};

use crate::alerts::Bound;

/// A gateway for text messages. Each message counts for its institution, its channel, its destination
/// and its receiver: for all of them or for none. A text of several parts counts once for each part.
/// What was handed to the downstream stays counted, also if that fails.
#[derive(Parser)]
#[command(
    name = "sms-gateway",
    mut_arg("listen", |listen| listen.default_value("127.0.0.1:3001")),
    mut_arg("redis", |redis| redis.env("SMS_GATEWAY_REDIS")),
    mut_arg("sentinel_master", |master| master.env("SMS_GATEWAY_SENTINEL_MASTER")),
    mut_arg("prefix", |prefix| prefix.default_value("sms")),
    mut_arg("admin_token", |token| token.env("SMS_GATEWAY_ADMIN_TOKEN")),
    mut_arg("alert_webhook", |url| url.env("SMS_GATEWAY_ALERT_WEBHOOK")),
    after_help = concat!("\
Try it:
  curl -i http://127.0.0.1:3001/sms \\
    -d '{\"institution\":\"bank\",\"channel\":\"otp\",\"to\":\"+491701234567\",\"text\":\"Hello\"}'

examples/sms-gateway/README.md has the requests of an operator.

The policies without --policies FILE:
", include_str!("../policies.json"), "
The server believes the institution that a message names: authenticate institutions in front of it.

Redis keeps what the operator changes until 30 days after the last server has stopped, and a server that
starts uses it in place of its file. Without --redis a change lasts as long as the server.

RUST_LOG sets what is logged, to stderr; `info` unless it is set.")
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) listen: ListenFlags,

    #[command(flatten)]
    pub(crate) admin: AdminFlags,

    #[command(flatten)]
    pub(crate) redis: RedisFlags,

    /// What decides while Redis does not answer: `local` (this process alone: each of N servers has the whole limits),
    /// `local:N` (this process as one of N servers), `open` (admit all) or `closed` (503). A server does not
    /// start without Redis
    #[arg(long, value_name = "POLICY", requires = "redis", default_value = "local")]
    pub(crate) on_failure: FailurePolicy,

    /// JSON file with the institutions, channels and destinations, the limit of each, and the limit of
    /// the receivers. What the operator changes replaces it.
    #[arg(long, value_name = "FILE")]
    pub(crate) policies: Option<PathBuf>,

    /// Parts of messages that this server, not the fleet, hands on altogether, by a token bucket. An equal
    /// portion belongs to each institution. A message takes its tokens when the levels have admitted it;
    /// one that finds none gets a 503 and counts nowhere.
    #[arg(long, value_name = "LIMIT/WINDOW", default_value = "500/1s")]
    pub(crate) global: Quota,

    /// Lets a message that a level refuses wait for up to this long instead of refusing it at once. Those
    /// that wait for the same limit are sent in their order. With 0s none waits. When all connections are
    /// taken, a response has this more to end.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = span)]
    pub(crate) hold: Duration,

    /// Messages that may wait at one time, of which each institution has an equal share. Each keeps its
    /// connection, so no more than half as many as connections wait.
    #[arg(long, value_name = "COUNT", default_value = "1000")]
    pub(crate) hold_messages: NonZeroU32,

    /// How far limits may be lowered, in percent of what is configured; 100 never lowers any. While more than
    /// 5 % of the downstream's results are failures or later than 500 ms, the limits of all institutions are
    /// lowered by three tenths every four seconds. Else they rise by a twentieth of the configured ones every
    /// two, or after a minute with fewer than five results. A message that the downstream does not take within 5 s has failed. Each server
    /// follows what it sees itself.
    #[arg(long, value_name = "PERCENT", default_value = "10", value_parser = percent())]
    pub(crate) adapt_floor: u32,

    #[command(flatten)]
    pub(crate) bound: Bound,

    #[command(flatten)]
    pub(crate) webhook: WebhookFlags,
}

/// Reads a share in percent.
pub(crate) fn percent() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(0..=100)
}
