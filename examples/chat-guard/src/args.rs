//! [`Args`]: the command line.

use clap::Parser;
use example_support::admin::AdminFlags;
use example_support::flags::{ListenFlags, RedisFlags};
use example_support::webhook::WebhookFlags;
use speech_monitor::Rule;
use tower_sliding_window::Policy;

use crate::routes::name;

/// A chat that mutes spammers silently: they see a success, and no other user sees their messages.
#[derive(Parser)]
#[command(
    name = "chat-guard",
    mut_arg("redis", |redis| redis.env("CHAT_GUARD_REDIS")),
    mut_arg("sentinel_master", |master| master.env("CHAT_GUARD_SENTINEL_MASTER")),
    mut_arg("prefix", |prefix| prefix.default_value("chat")),
    // A message had better wait than pass without a check.
    mut_arg("response_timeout", |timeout| timeout.default_value("1s")),
    mut_arg("admin_token", |token| token.env("CHAT_GUARD_ADMIN_TOKEN")),
    mut_arg("alert_webhook", |url| url.env("CHAT_GUARD_ALERT_WEBHOOK")),
    after_help = "\
Try it. The third message within a minute gets the same response, but bob does not see it:
  for i in 1 2 3; do curl -i -H 'x-user-id: mallory' -d '{\"text\": \"cheap gold!\"}' \\
    http://127.0.0.1:3000/rooms/lobby/messages; done
  curl -H 'x-user-id: bob' http://127.0.0.1:3000/rooms/lobby/messages

examples/chat-guard/README.md has the other routes, and those of an operator.

This server checks no identity: put your authentication in front of it.
RUST_LOG sets what is logged, to stderr; `info` unless it is set. User ids appear from `debug` on."
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) listen: ListenFlags,

    #[command(flatten)]
    pub(crate) redis: RedisFlags,

    /// A rule that mutes; repeat it for more. The first one replaces the recommended rules: repeat those that should stay. One of
    /// `similar COUNT/WINDOW PERCENT% [min LENGTH] mute DURATION` (messages that are alike, of at least 9 letters and digits),
    /// `peers COUNT/WINDOW mute DURATION` (private-chat peers) and
    /// `events COUNT/WINDOW mute DURATION` (messages).
    #[arg(long, value_name = "RULE", default_values_t = Rule::recommended())]
    pub(crate) rule: Vec<Rule>,

    /// A user that no rule mutes, such as support staff; repeat it for more. A manual mute holds.
    #[arg(long, value_name = "USER", value_parser = name)]
    pub(crate) exempt: Vec<String>,

    /// How many messages a user may post; one more is a 429 with Retry-After, muted or not. Several
    /// quotas as `30/10s,300/10m`.
    #[arg(long, value_name = "LIMIT/WINDOW", default_value = "30/10s,300/10m")]
    pub(crate) quota: Policy,

    #[command(flatten)]
    pub(crate) admin: AdminFlags,

    #[command(flatten)]
    pub(crate) webhook: WebhookFlags,
}
