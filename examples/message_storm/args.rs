//! [`Args`]: the command line.

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use tower_sliding_window::{Quota, StormRule};

use crate::common::flags::RedisFlags;
use crate::common::prefix::Prefix;
use crate::common::span::Span;

/// Counts the messages of groups, refuses none, and tells when a storm starts and when it ends.
///
/// Reads lines GROUP<TAB>MESSAGE-ID from stdin, and prints alerts to stdout. A message that comes
/// twice counts once.
#[derive(Parser)]
#[command(
    name = "message_storm",
    mut_arg("redis", |redis| redis.env("MESSAGE_STORM_REDIS")),
    mut_arg("response_timeout", |timeout| timeout.default_value("1s")),
    after_help = "\
What is printed:
  storm start group=G count=101 threshold=100/60s
                     G has had more than 100 messages within 60 seconds
  storm end group=G peak=150 threshold=100/60s lasted=60.5s
                     G has fewer than half as many, see --ends-below; 150 was the highest count
  profile group=G step=1s counts=0,...,50,51
                     with --profile, after each start: messages in each step, the oldest first
A count that has reached --cap is followed by cap=N: there may have been more. A group with a space
or a control character stands in quotes. A line without a tab, or with no group or no message id, is
skipped and its number told on stderr.

Of several processes with one Redis and one prefix each storm is told by one, whichever finds it.
When the input ends the program does, and leaves storms that go on to the others; with --wait-end,
and with --simulate, it waits until those it knows of are over: a window after the last messages.

Exits with 1 if a message could not be counted, and with 2 if the command line is wrong.

Try it:
  message_storm --simulate
  message_storm --simulate --threshold 100/5s --profile 500ms
  printf 'lobby\\t1\\nlobby\\t2\\nlobby\\t3\\n' | message_storm --threshold 2/3s --wait-end

RUST_LOG sets what is logged, to stderr; `warn` unless it is set."
)]
pub(crate) struct Args {
    /// Above how many messages in how long a group is in a storm.
    #[arg(long, value_name = "LIMIT/WINDOW", default_value = "100/60s")]
    pub(crate) threshold: Quota,

    /// Below how many messages in the window a storm is over. Half of the threshold if left out.
    #[arg(long, value_name = "COUNT")]
    ends_below: Option<u32>,

    /// How long after the end of a storm none starts in the same group.
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    cool_down: Span,

    /// How many messages of a group are counted at the most. Ten times the threshold if left out,
    /// and at least 1000.
    #[arg(long, value_name = "COUNT")]
    cap: Option<u32>,

    #[command(flatten)]
    pub(crate) redis: RedisFlags,

    /// What the Redis keys begin with; processes with the same prefix share one view, and are to have
    /// the same --threshold.
    #[arg(long, value_name = "NAME", default_value = "message_storm")]
    pub(crate) prefix: Prefix,

    /// Needs no input: the group `calm` gets 50 messages, 100 ms apart, and the group `stormy` 150,
    /// 10 ms apart. Waits for the end of the storm.
    #[arg(long)]
    pub(crate) simulate: bool,

    /// When the input has ended, waits for the end of all storms that this process knows of.
    #[arg(long)]
    pub(crate) wait_end: bool,

    /// Prints how many messages came in each step of the window when a storm starts.
    #[arg(long, value_name = "DURATION")]
    pub(crate) profile: Option<Span>,
}

impl Args {
    /// Reads the command line, or prints what is wrong with it and exits with 2.
    pub(crate) fn read() -> Self {
        let args = Self::parse();
        if let Err(error) = args.rule().validate() {
            Self::command().error(ErrorKind::ValueValidation, error).exit();
        }
        args
    }

    pub(crate) fn rule(&self) -> StormRule {
        let mut rule = StormRule::new(self.threshold).named("group").cool_down(self.cool_down.0);
        if let Some(count) = self.ends_below {
            rule = rule.ends_below(count);
        }
        if let Some(count) = self.cap {
            rule = rule.cap(count);
        }
        rule
    }
}
