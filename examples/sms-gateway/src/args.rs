//! [`Args`]: the command line.

use std::collections::BTreeSet;
use std::error::Error;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use tower_sliding_window::{FailurePolicy, Policy, Quota};

use crate::alerts::Bound;
use crate::bucket::Bucket;
use crate::controller::Targets;
use crate::downstream::Conduct;
use crate::name::Name;
use crate::thresholds::{Level, Thresholds};
use example_support::flags::{ListenFlags, RedisFlags};

/// A gateway for text messages. Each message counts for its institution, its channel and its receiver:
/// for all three or for none.
#[derive(Parser)]
#[command(
    name = "sms-gateway",
    mut_arg("listen", |listen| listen.default_value("127.0.0.1:3001")),
    mut_arg("redis", |redis| redis.env("SMS_GATEWAY_REDIS")),
    mut_arg("prefix", |prefix| prefix.default_value("sms")),
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

    /// What decides while Redis does not answer: `local` (this process alone), `local:N` (this
    /// process as one of N servers), `open` (admit all) or `closed` (503).
    #[arg(long, value_name = "POLICY", default_value = "local")]
    pub(crate) on_failure: FailurePolicy,

    /// Messages that this server takes altogether, by a token bucket. Its rate must not be below the
    /// sum of the institutions' rates.
    #[arg(long, value_name = "LIMIT/WINDOW", default_value = "500/1s", value_parser = global)]
    pub(crate) global: Quota,

    /// An institution that may send, and its limit if that is not --institution-limit; repeat it for
    /// more institutions.
    #[arg(
        long,
        value_name = "NAME[=LIMIT/WINDOW]",
        default_values = ["bank", "shop"],
        value_parser = institution
    )]
    institution: Vec<(Name, Option<Policy>)>,

    /// Messages an institution may send in any window; several quotas as 2/1s,5/60s.
    #[arg(long, value_name = "LIMIT/WINDOW", default_value = "100/1s")]
    institution_limit: Policy,

    /// Messages that all institutions together may send by one channel in any window.
    #[arg(long, value_name = "LIMIT/WINDOW", default_value = "150/1s")]
    channel_limit: Policy,

    /// Messages that one receiver may get in any window, from all institutions together.
    #[arg(long, value_name = "LIMIT/WINDOW", default_value = "2/60s,10/1h")]
    receiver_limit: Policy,

    #[command(flatten)]
    pub(crate) conduct: Conduct,

    /// A level whose thresholds are lowered while the downstream suffers, and raised again after;
    /// repeat it for more levels. Each server adapts its own.
    #[arg(long, value_name = "LEVEL", default_value = "institution")]
    pub(crate) adapt: Vec<Level>,

    #[command(flatten)]
    pub(crate) targets: Targets,

    #[command(flatten)]
    pub(crate) bound: Bound,
}

impl Args {
    /// Reads the command line, or prints what is wrong with it and exits with 2.
    pub(crate) fn read() -> Self {
        let args = Self::parse();
        let mut names = BTreeSet::new();
        if let Some((twice, _)) = args.institution.iter().find(|(name, _)| !names.insert(name)) {
            let message = format!("--institution names {twice} twice");
            Self::command().error(ErrorKind::ArgumentConflict, message).exit();
        }
        args
    }

    pub(crate) fn thresholds(&self) -> Thresholds {
        let limits = [&self.institution_limit, &self.channel_limit, &self.receiver_limit];
        let institutions = self.institution.iter().cloned().collect();
        Thresholds { levels: limits.map(Policy::clone), institutions }
    }
}

/// Reads an institution, written `NAME` or `NAME=LIMIT/WINDOW`.
fn institution(text: &str) -> Result<(Name, Option<Policy>), Box<dyn Error + Send + Sync>> {
    let (name, policy) = match text.split_once('=') {
        Some((name, policy)) => (name, Some(policy.parse()?)),
        None => (text, None),
    };
    Ok((name.parse()?, policy))
}

/// Reads a quota that a bucket can have.
fn global(text: &str) -> Result<Quota, Box<dyn Error + Send + Sync>> {
    let quota = text.parse()?;
    Bucket::new(quota)?;
    Ok(quota)
}
