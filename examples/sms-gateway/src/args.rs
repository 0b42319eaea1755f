//! [`Args`]: the command line.

use std::error::Error;
use std::time::Duration;

use clap::builder::RangedI64ValueParser;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use example_support::admin::AdminFlags;
use example_support::flags::{ListenFlags, RedisFlags, span};
use example_support::policies::PolicyFile;
use example_support::webhook::WebhookFlags;
use tower_sliding_window::{FailurePolicy, Quota};

use crate::alerts::Bound;
use crate::bucket::Bucket;
use crate::downstream::{Conduct, Targets};

/// The longest wait: as long as most callers and proxies wait for a response.
const LONGEST_HOLD: Duration = Duration::from_secs(60);

/// A gateway for text messages. Each message counts for its institution, its channel, its destination
/// and its receiver: for all of them or for none. A text of several parts counts once for each part.
/// What was handed to the downstream stays counted, also if that fails.
#[derive(Parser)]
#[command(
    name = "sms-gateway",
    mut_arg("listen", |listen| listen.default_value("127.0.0.1:3001")),
    mut_arg("redis", |redis| redis.env("SMS_GATEWAY_REDIS")),
    mut_arg("prefix", |prefix| prefix.default_value("sms")),
    mut_arg("admin_token", |token| token.env("SMS_GATEWAY_ADMIN_TOKEN")),
    mut_arg("alert_webhook", |url| url.env("SMS_GATEWAY_ALERT_WEBHOOK")),
    after_help = concat!("\
Try it:
  curl -i http://127.0.0.1:3001/sms \\
    -d '{\"institution\":\"bank\",\"channel\":\"otp\",\"to\":\"+491701234567\",\"text\":\"Hello\"}'

For the operator, with --admin 127.0.0.1:3002 and a token in SMS_GATEWAY_ADMIN_TOKEN:
  admin() { curl -i -H \"authorization: Bearer $SMS_GATEWAY_ADMIN_TOKEN\" \\
    \"http://127.0.0.1:3002$@\"; }
  admin /policies
  admin /state                                       # refusals, alerts, what waits, the downstream
  admin /policies/receiver -X PUT -d 5/60s
  admin /policies/institutions/post -X PUT -d 9/1s   # a new one, or another limit
  admin /policies/institutions/post -X DELETE
  admin '/policies?version=0' -X PUT -d @FILE        # all of it, if nobody was faster
  admin /downstream -X PUT -d '{\"latency\":\"800ms\",\"errors\":30}'

The policies without --policies FILE:
", include_str!("../policies.json"), "
The server believes the institution that a message names: authenticate institutions in front of it.

A change applies at once, and with --redis within about a second on every server of the same --prefix.
Redis keeps the policies then, and a server that starts uses them in place of its file, until 30 days
after the last server has stopped. Without --redis a change lasts as long as the server.

RUST_LOG sets what is logged, to stderr; `info` unless it is set.")
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) listen: ListenFlags,

    #[command(flatten)]
    pub(crate) admin: AdminFlags,

    #[command(flatten)]
    pub(crate) redis: RedisFlags,

    /// What decides while Redis does not answer: `local:N` (this process as one of N servers), `open`
    /// (admit all) or `closed` (503).
    #[arg(long, value_name = "POLICY", requires = "redis", default_value = "local")]
    pub(crate) on_failure: FailurePolicy,

    /// TOML or JSON file (by its extension) with the institutions, channels and destinations, the limit
    /// of each, and the limit of the receivers. Changes of the operator replace it.
    #[arg(long, value_name = "FILE")]
    pub(crate) policies: Option<PolicyFile>,

    /// Parts of messages that this server, not the fleet, hands on altogether, by a token bucket. An equal
    /// portion belongs to each institution. A message takes its tokens when the levels have admitted it;
    /// one that finds none gets a 503 and counts nowhere.
    #[arg(long, value_name = "LIMIT/WINDOW", default_value = "500/1s", value_parser = global)]
    pub(crate) global: Quota,

    #[command(flatten)]
    pub(crate) hold: Hold,

    #[command(flatten)]
    pub(crate) conduct: Conduct,

    #[command(flatten)]
    pub(crate) targets: Targets,

    #[command(flatten)]
    pub(crate) bound: Bound,

    #[command(flatten)]
    pub(crate) webhook: WebhookFlags,
}

/// How long messages may wait, and how many.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct Hold {
    /// Lets a message that a level refuses wait for up to this long, up to 60s, instead of refusing it
    /// at once. Those that wait for the same limit are sent in their order. With 0s none waits.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = hold)]
    pub(crate) hold: Duration,

    /// Messages that may wait at one time, each of up to 16 KiB and with its connection. Each
    /// institution has an equal share of these places.
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    pub(crate) hold_messages: u32,
}

impl Args {
    /// Reads the command line, or prints what is wrong with it and exits with 2.
    pub(crate) fn read() -> Self {
        let args = Self::parse();
        if args.hold.hold_messages >= args.listen.max_connections.get() {
            let message = "--hold-messages must be below --max-connections: each message that waits \
                           keeps its connection";
            Self::command().error(ErrorKind::ArgumentConflict, message).exit()
        }
        args
    }
}

/// Reads a share in percent.
pub(crate) fn percent() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(0..=100)
}

/// Reads how long a message may wait.
fn hold(text: &str) -> Result<Duration, Box<dyn Error + Send + Sync>> {
    let hold = span(text)?;
    if hold <= LONGEST_HOLD { Ok(hold) } else { Err("it is longer than 60s".into()) }
}

/// Reads a quota that a bucket can have.
fn global(text: &str) -> Result<Quota, Box<dyn Error + Send + Sync>> {
    let quota = text.parse()?;
    Bucket::new(quota)?;
    Ok(quota)
}
