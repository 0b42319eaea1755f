//! [`Args`]: the command line.

use clap::Parser;
use tower_sliding_window::{FailurePolicy, Policy};

use crate::common::flags::RedisFlags;
use crate::common::prefix::Prefix;

/// Sends each receiver at most so many messages in any window, and holds back what is too much.
///
/// Reads lines RECEIVER<TAB>TEXT from stdin, and prints to stdout what becomes of each.
#[derive(Parser)]
#[command(
    name = "message_quota",
    mut_arg("redis", |redis| redis.env("MESSAGE_QUOTA_REDIS")),
    // Nobody stands and waits for a message to be sent.
    mut_arg("response_timeout", |timeout| timeout.default_value("1s")),
    after_help = "\
What is printed:
  sent receiver=R                     it may go out, and is counted
  held receiver=R retry_after=17s     R has had enough for so long: whole seconds, rounded up, at
                                      least 1. With --wait it is sent later, and then printed as
                                      sent; what is held behind others of R goes after them
  dropped receiver=R reason=...       only with --wait: too_many_waiting, or stopped by a signal
  failed receiver=R retry_after=1s reason=...
                                      nobody could decide, see --on-failure. With --wait such a
                                      message is held, with the reason
A value with a space or a control character stands in quotes. A line without a tab, or with no
receiver before it, is skipped and its number told on stderr.

Exits with 1 if a message was dropped or failed, and with 2 if the command line is wrong.

Try it:
  printf 'bob\\tone\\nbob\\ttwo\\nbob\\tthree\\n' | message_quota --quota 2/10m
  printf 'bob\\tone\\nbob\\ttwo\\nbob\\tthree\\n' | message_quota --quota 2/5s --wait

RUST_LOG sets what is logged, to stderr; `warn` unless it is set."
)]
pub(crate) struct Args {
    /// Messages a receiver may have in any window; several quotas as 2/10m,20/1d.
    #[arg(long, value_name = "LIMIT/WINDOW", default_value = "2/10m")]
    pub(crate) quota: Policy,

    #[command(flatten)]
    pub(crate) redis: RedisFlags,

    /// What the Redis keys begin with; senders with the same prefix share the windows.
    #[arg(long, value_name = "NAME", default_value = "message_quota")]
    pub(crate) prefix: Prefix,

    /// Who decides when Redis does not answer: a window in this process (local, or local:N for one
    /// of N processes), nobody so that messages are sent (open) or fail (closed).
    #[arg(long, value_name = "local[:N]|open|closed", default_value_t)]
    pub(crate) on_failure: FailurePolicy,

    /// Holds a message until it may be sent, in order for each receiver, and ends when all are.
    #[arg(long)]
    pub(crate) wait: bool,

    /// How many messages may wait, over all receivers. What would be more is dropped.
    #[arg(long, value_name = "N", default_value = "10000", requires = "wait",
        value_parser = clap::value_parser!(u32).range(1..))]
    waiting_at_most: u32,

    /// Adds text=TEXT to every line that is printed.
    #[arg(long)]
    pub(crate) show_text: bool,
}

impl Args {
    /// Returns how many messages may wait, if any may.
    pub(crate) fn waiting_at_most(&self) -> Option<usize> {
        self.wait.then_some(self.waiting_at_most as usize)
    }
}
