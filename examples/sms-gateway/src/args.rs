//! [`Args`]: the command line.

use std::collections::BTreeSet;
use std::error::Error;
use std::num::NonZeroU32;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use tower_sliding_window::{FailurePolicy, Policy, Quota};

use crate::alerts::Bound;
use crate::bucket::Bucket;
use crate::controller::Targets;
use crate::document::member;
use crate::downstream::Conduct;
use crate::hold::HoldFlags;
use crate::name::Name;
use crate::share::Share;
use crate::sum::Global;
use crate::thresholds::{Level, List, Thresholds};
use example_support::admin::AdminFlags;
use example_support::flags::{ListenFlags, RedisFlags};
use example_support::policies::PolicyFile;
use example_support::webhook::WebhookFlags;

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
    after_help = "\
Try it:
  curl -i http://127.0.0.1:3001/sms \\
    -d '{\"institution\":\"bank\",\"channel\":\"otp\",\"to\":\"+491701234567\",\"text\":\"Hello\"}'

For the operator, with --admin 127.0.0.1:3002 and a token in SMS_GATEWAY_ADMIN_TOKEN:
  admin() { curl -i -H \"authorization: Bearer $SMS_GATEWAY_ADMIN_TOKEN\" \\
    \"http://127.0.0.1:3002$@\"; }
  admin /policies
  admin /refusals                                    # of each institution, by level
  admin /policies/receiver -X PUT -d '5/60s'
  admin /policies/institution/bank -X PUT -d '200/1s'
  admin /policies/institution/bank -X DELETE         # follows its level again
  admin /institutions/post -X PUT                    # a new one; -d '9/1s' gives it a limit
  admin /institutions/post -X DELETE
  admin /channels/news -X PUT -d '20/1s'
  admin /destinations/+44 -X PUT                     # numbers that messages may go to
  admin /downstream -X PUT -d '{\"latency\":\"800ms\",\"errors\":\"30%\"}'

A file for --policies, of which each part must be there:
  institutions = [\"bank=400/1s\", \"shop\"]    # as --institution
  channels = [\"otp=50/1s\", \"marketing\"]     # as --channel
  destinations = [\"+1\", \"+49\", \"+4915=9/1s\"] # as --destination
  [policies]
  institution = \"100/1s\"
  channel = \"200/1s\"
  destination = \"200/1s\"
  receiver = \"4/60s,20/1h\"
kill -HUP PID has the server read it again. Replace the file whole, with mv.

The server believes the institution that a message names: authenticate institutions in front of it.

A change applies at once, and with --redis within a second on every server of the same --prefix. A
server that starts again uses it in place of the flags or the file, until 30 days after the last
server has stopped. Without --redis it lasts as long as the server.

RUST_LOG sets what is logged, to stderr; `info` unless it is set."
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) listen: ListenFlags,

    #[command(flatten)]
    pub(crate) admin: AdminFlags,

    #[command(flatten)]
    pub(crate) redis: RedisFlags,

    /// What decides while Redis does not answer: `local:N` (this process as one of N servers), `open`
    /// (admit all) or `closed` (503). Unless it is set, `local:N` with the N of --servers.
    #[arg(long, value_name = "POLICY", requires = "redis")]
    on_failure: Option<FailurePolicy>,

    /// Parts of messages that this server, not the fleet, hands on altogether, by a token bucket. A
    /// message takes its tokens when the levels have admitted it. The rates of all servers together
    /// must not be below the sum of the institutions' rates. A server that gets more than its share of
    /// the messages refuses the rest with 503, and they count nowhere.
    #[arg(long, value_name = "LIMIT/WINDOW", default_value = "500/1s", value_parser = global)]
    global: Quota,

    /// How many servers share the messages, each with its own --global. Several need --redis: without it
    /// each would admit the whole quota of every institution.
    #[arg(long, value_name = "COUNT", default_value = "1")]
    servers: NonZeroU32,

    /// TOML or JSON file (by its extension) with the institutions, channels, destinations and the limits of
    /// all levels. It takes the place of the seven flags that set these. SIGHUP has the server read it again:
    /// all of it changes at once and earlier messages count, or, if something is wrong, nothing changes
    /// and the log says what. A change by the admin listener wins over the file, as it does over the
    /// flags. Other servers of the fleet have to read theirs too. The flags decide if left out.
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "institution", "institution_limit", "channel", "channel_limit", "destination",
        "destination_limit", "receiver_limit",
    ])]
    pub(crate) policies: Option<PolicyFile>,

    /// An institution that may send, and its limit if that is not --institution-limit; repeat it for
    /// more institutions.
    #[arg(
        long,
        value_name = "NAME[=LIMIT/WINDOW]",
        default_values = ["bank", "shop"],
        value_parser = |text: &str| member(List::Institutions, text)
    )]
    institution: Vec<(Name, Option<Policy>)>,

    /// Parts of messages an institution may send in any window; several quotas as 2/1s,5/60s. A text
    /// of more parts than a limit of its institution, channel or receiver is always refused.
    #[arg(long, value_name = "LIMIT/WINDOW", default_value = "100/1s")]
    institution_limit: Policy,

    /// A channel that messages may take, and its limit if that is not --channel-limit; repeat it for
    /// more channels.
    #[arg(
        long,
        value_name = "NAME[=LIMIT/WINDOW]",
        default_values = ["otp", "marketing"],
        value_parser = |text: &str| member(List::Channels, text)
    )]
    channel: Vec<(Name, Option<Policy>)>,

    /// Parts of messages that all institutions together may send by one channel in any window.
    #[arg(long, value_name = "LIMIT/WINDOW", default_value = "200/1s")]
    channel_limit: Policy,

    /// A prefix of the numbers that messages may go to, and its limit if that is not
    /// --destination-limit; repeat it for more prefixes. The longest that fits a number decides. No
    /// message goes to any other number; `+` stands for all.
    #[arg(
        long,
        value_name = "PREFIX[=LIMIT/WINDOW]",
        default_values = ["+1", "+49"],
        value_parser = |text: &str| member(List::Destinations, text)
    )]
    destination: Vec<(Name, Option<Policy>)>,

    /// Parts of messages that all institutions together may send to the numbers of one prefix in any
    /// window.
    #[arg(long, value_name = "LIMIT/WINDOW", default_value = "200/1s")]
    destination_limit: Policy,

    /// Parts of messages that one receiver may get in any window, from all institutions together. A
    /// number counts as one however it is written: +491701234567, 0049 170 1234567, +49 (0)170/1234567.
    #[arg(long, value_name = "LIMIT/WINDOW", default_value = "4/60s,20/1h")]
    receiver_limit: Policy,

    /// What one institution may take of each limit of a channel, a destination and a receiver, at least
    /// 1 part. So none can use them up: with 50% a flood of one leaves half to the others. With 100%
    /// who comes first may take all.
    #[arg(long, value_name = "PERCENT", default_value = "50%")]
    pub(crate) institution_share: Share,

    #[command(flatten)]
    pub(crate) hold: HoldFlags,

    #[command(flatten)]
    pub(crate) conduct: Conduct,

    /// A level whose thresholds are lowered while the downstream suffers, and raised again after;
    /// repeat it for more levels. Each server adapts its own, by what it sees of the downstream: the
    /// servers of a fleet may hold messages to different thresholds.
    #[arg(long, value_name = "LEVEL", default_value = "institution")]
    pub(crate) adapt: Vec<Level>,

    #[command(flatten)]
    pub(crate) targets: Targets,

    #[command(flatten)]
    pub(crate) bound: Bound,

    #[command(flatten)]
    pub(crate) webhook: WebhookFlags,
}

impl Args {
    /// Reads the command line, or prints what is wrong with it and exits with 2.
    pub(crate) fn read() -> Self {
        let args = Self::parse();
        for (flag, members) in [
            ("institution", &args.institution),
            ("channel", &args.channel),
            ("destination", &args.destination),
        ] {
            let mut names = BTreeSet::new();
            if let Some((twice, _)) = members.iter().find(|(name, _)| !names.insert(name)) {
                conflict(format!("--{flag} names {twice} twice"));
            }
        }
        if args.servers.get() > 1 && args.redis.redis.is_empty() {
            conflict(
                "--servers above 1 needs --redis: without it each server would admit the whole quota of \
                 every institution"
                    .to_owned(),
            );
        }
        if args.hold.hold_messages >= args.listen.max_connections.get() {
            conflict(
                "--hold-messages must be below --max-connections: each message that waits keeps its \
                 connection"
                    .to_owned(),
            );
        }
        args
    }

    pub(crate) fn thresholds(&self) -> Thresholds {
        let limits = [
            &self.institution_limit,
            &self.channel_limit,
            &self.destination_limit,
            &self.receiver_limit,
        ];
        let lists = [&self.institution, &self.channel, &self.destination];
        Thresholds {
            levels: limits.map(Policy::clone),
            lists: lists.map(|members| members.iter().cloned().collect()),
        }
    }

    pub(crate) fn global(&self) -> Global {
        Global { each: self.global, servers: self.servers }
    }

    pub(crate) fn on_failure(&self) -> FailurePolicy {
        self.on_failure.unwrap_or(FailurePolicy::local(self.servers.get()))
    }
}

/// Prints what is wrong with the flags, and exits with 2.
fn conflict(message: String) -> ! {
    Args::command().error(ErrorKind::ArgumentConflict, message).exit()
}

/// Reads a quota that a bucket can have.
fn global(text: &str) -> Result<Quota, Box<dyn Error + Send + Sync>> {
    let quota = text.parse()?;
    Bucket::new(quota)?;
    Ok(quota)
}
