//! [`Args`]: the command line.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use tower_sliding_window::{ParseQuotaError, Policy, PolicyError, Quota};

use crate::alerts::Bound;
use crate::bucket::{Bucket, TooFast};
use crate::controller::Targets;
use crate::downstream::Conduct;
use crate::name::{Name, NameError};
use crate::share::Share;
use crate::thresholds::{Level, Thresholds};
use example_support::flags::{FailureFlags, ListenFlags, RedisFlags};
use example_support::prefix::Prefix;
use example_support::span::{Span, SpanError};

/// The shortest window over which shares are taken.
const SHORTEST_WINDOW: Duration = Duration::from_millis(100);

/// A gateway for text messages. Each message counts for its institution, its channel and its receiver:
/// for all three or for none.
#[derive(Parser)]
#[command(
    name = "sms-gateway",
    mut_arg("listen", |listen| listen.default_value("127.0.0.1:3001")),
    mut_arg("redis", |redis| redis.env("SMS_GATEWAY_REDIS")),
    after_help = "\
Try it:
  curl -i http://127.0.0.1:3001/sms \\
    -d '{\"institution\":\"bank\",\"channel\":\"otp\",\"to\":\"+491701234567\",\"text\":\"Hello\"}'
  curl http://127.0.0.1:3001/policies
  curl -X PUT http://127.0.0.1:3001/policies/receiver -d '\"5/60s\"'
  curl -X PUT http://127.0.0.1:3001/policies/institution/bank -d '\"200/1s\"'
  curl -X PUT http://127.0.0.1:3001/downstream -d '{\"latency\":\"800ms\",\"errors\":\"30%\"}'

The server believes the institution that a message names: authenticate institutions in front of it.
/policies and /downstream serve requests from this machine only.

A changed policy applies at once, and with --redis within a second on every server of the same
--prefix. A server that starts again uses it in place of the flags, until 30 days after the last
server has stopped. Without --redis it lasts as long as the server.

RUST_LOG sets what is logged, to stderr; `info` unless it is set."
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) listen: ListenFlags,

    #[command(flatten)]
    pub(crate) redis: RedisFlags,

    #[command(flatten)]
    pub(crate) failure: FailureFlags,

    /// What the Redis keys begin with; servers with the same prefix are one gateway.
    #[arg(long, value_name = "NAME", default_value = "sms")]
    pub(crate) prefix: Prefix,

    /// Messages that this server takes altogether, by a token bucket. Its rate must not be below the
    /// sum of the institutions' rates.
    #[arg(long, value_name = "LIMIT/WINDOW", default_value = "500/1s")]
    pub(crate) global: Global,

    /// An institution that may send, and its limit if that is not --institution-limit; repeat it for
    /// more institutions.
    #[arg(long, value_name = "NAME[=LIMIT/WINDOW]", default_values = ["bank", "shop"])]
    institution: Vec<InstitutionArg>,

    /// Messages an institution may send in any window; several quotas as 2/1s,5/60s.
    #[arg(long, value_name = "LIMIT/WINDOW", default_value = "100/1s")]
    institution_limit: Policy,

    /// Messages that all institutions together may send by one channel in any window.
    #[arg(long, value_name = "LIMIT/WINDOW", default_value = "150/1s")]
    channel_limit: Policy,

    /// Messages that one receiver may get in any window, from all institutions together.
    #[arg(long, value_name = "LIMIT/WINDOW", default_value = "2/60s,10/1h")]
    receiver_limit: Policy,

    /// How long the simulated downstream takes over a message.
    #[arg(long, value_name = "DURATION", default_value = "20ms")]
    downstream_latency: Span,

    /// What share of the messages the simulated downstream fails to take.
    #[arg(long, value_name = "PERCENT", default_value = "0%")]
    downstream_errors: Share,

    /// A level whose thresholds are lowered while the downstream suffers, and raised again after;
    /// repeat it for more levels. Each server adapts its own.
    #[arg(long, value_name = "LEVEL", default_value = "institution")]
    pub(crate) adapt: Vec<Level>,

    /// The share of a configured threshold below which it is not lowered; 100% never lowers any.
    #[arg(long, value_name = "PERCENT", default_value = "10%")]
    adapt_floor: Share,

    /// How far back the downstream's results count.
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    adapt_window: Window,

    /// The downstream suffers if more than 5% of its results take longer than this.
    #[arg(long, value_name = "DURATION", default_value = "500ms")]
    target_latency: Span,

    /// The downstream suffers if more than this share of messages fail.
    #[arg(long, value_name = "PERCENT", default_value = "5%")]
    target_errors: Share,

    /// Logs an alert when a level refuses more than this share of its messages, and again when it
    /// refuses no more than half of it.
    #[arg(long, value_name = "PERCENT", default_value = "20%")]
    alert_above: Share,

    /// How far back refusals count.
    #[arg(long, value_name = "DURATION", default_value = "60s")]
    alert_window: Window,

    /// How many messages there must be for an alert.
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    alert_least: u64,
}

impl Args {
    /// Reads the command line, or prints what is wrong with it and exits with 2.
    pub(crate) fn read() -> Self {
        let args = Self::parse();
        let mut names = BTreeSet::new();
        if let Some(twice) = args.institution.iter().find(|it| !names.insert(&it.name)) {
            let message = format!("--institution names {} twice", twice.name);
            Self::command().error(ErrorKind::ArgumentConflict, message).exit();
        }
        args
    }

    pub(crate) fn thresholds(&self) -> Thresholds {
        let institutions: BTreeMap<Name, Option<Policy>> =
            self.institution.iter().map(|it| (it.name.clone(), it.policy.clone())).collect();
        let (channel, receiver) = (self.channel_limit.clone(), self.receiver_limit.clone());
        Thresholds::new(self.institution_limit.clone(), institutions, channel, receiver)
    }

    pub(crate) fn conduct(&self) -> Conduct {
        Conduct { latency: self.downstream_latency.0, errors: self.downstream_errors }
    }

    pub(crate) fn targets(&self) -> Targets {
        Targets {
            latency: self.target_latency.0,
            errors: self.target_errors,
            window: self.adapt_window.0,
            floor: self.adapt_floor,
        }
    }

    pub(crate) fn bound(&self) -> Bound {
        Bound { above: self.alert_above, window: self.alert_window.0, least: self.alert_least }
    }
}

/// An institution, written `NAME` or `NAME=LIMIT/WINDOW`.
#[derive(Clone, Debug)]
struct InstitutionArg {
    name: Name,
    policy: Option<Policy>,
}

impl FromStr for InstitutionArg {
    type Err = InstitutionArgError;

    fn from_str(text: &str) -> Result<Self, InstitutionArgError> {
        let (name, policy) = match text.split_once('=') {
            Some((name, policy)) => (name, Some(policy.parse()?)),
            None => (text, None),
        };
        Ok(Self { name: name.parse()?, policy })
    }
}

/// What is wrong with the text of an [`InstitutionArg`].
#[derive(Clone, Debug, thiserror::Error)]
enum InstitutionArgError {
    #[error(transparent)]
    Name(#[from] NameError),
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

/// A quota that a bucket can have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Global(pub(crate) Quota);

impl FromStr for Global {
    type Err = GlobalError;

    fn from_str(text: &str) -> Result<Self, GlobalError> {
        let quota = text.parse()?;
        Bucket::new(quota)?;
        Ok(Self(quota))
    }
}

/// What is wrong with the text of a [`Global`].
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum GlobalError {
    #[error(transparent)]
    Quota(#[from] ParseQuotaError),
    #[error(transparent)]
    TooFast(#[from] TooFast),
}

/// A window over which shares are taken.
#[derive(Clone, Copy, Debug)]
struct Window(Duration);

impl FromStr for Window {
    type Err = WindowError;

    fn from_str(text: &str) -> Result<Self, WindowError> {
        let Span(window) = text.parse()?;
        if window < SHORTEST_WINDOW { Err(WindowError::TooShort) } else { Ok(Self(window)) }
    }
}

/// What is wrong with the text of a [`Window`].
#[derive(Clone, Debug, thiserror::Error)]
enum WindowError {
    #[error(transparent)]
    Span(#[from] SpanError),
    #[error("it is shorter than 100ms")]
    TooShort,
}
