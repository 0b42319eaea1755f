//! [`Args`]: the command line.

use std::num::NonZeroUsize;

use clap::Parser;
use tower_sliding_window::moderation::Rule;

use example_support::flags::{ListenFlags, RedisFlags};

/// A chat that mutes spammers silently: they see a success, and no other user sees their messages.
#[derive(Parser)]
#[command(
    name = "chat-guard",
    mut_arg("redis", |redis| redis.env("CHAT_GUARD_REDIS")),
    mut_arg("prefix", |prefix| prefix.default_value("chat")),
    // A message had better wait than pass without a check.
    mut_arg("response_timeout", |timeout| timeout.default_value("1s")),
    after_help = "\
Try it. The third message within a minute gets the same response, but is not delivered:
  for i in 1 2 3; do curl -i -H 'x-user-id: mallory' -d '{\"text\": \"cheap gold!\"}' \\
    http://127.0.0.1:3000/rooms/lobby/messages; done
  curl http://127.0.0.1:3000/rooms/lobby/messages
  curl http://127.0.0.1:3000/admin/mutes/mallory
  curl -X DELETE http://127.0.0.1:3000/admin/mutes/mallory

Routes:
  POST   /rooms/{room}/messages, /private/{peer}   {\"text\": \"...\"} from the user in x-user-id
  GET    /rooms/{room}/messages, /private/{peer}   what was delivered; to the user in x-user-id
                                                   their own messages too
  GET    /admin/mutes/{user}                       the user's mute, or 404
  DELETE /admin/mutes/{user}                       lifts it

This server checks no identity: put your authentication in front of it.
RUST_LOG sets what is logged, to stderr; `info` unless it is set. User ids appear from `debug` on."
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) listen: ListenFlags,

    #[command(flatten)]
    pub(crate) redis: RedisFlags,

    /// A rule that mutes; repeat it for more. One of
    /// `similar COUNT/WINDOW PERCENT% mute DURATION` (messages that are alike),
    /// `peers COUNT/WINDOW mute DURATION` (private-chat peers) and
    /// `events COUNT/WINDOW mute DURATION` (messages).
    #[arg(
        long,
        value_name = "RULE",
        default_values = [
            "similar 5/5m 90% mute 12h",
            "similar 3/1m 90% mute 6h",
            "peers 5/3m mute 24h",
            "peers 9/5m mute 48h",
        ]
    )]
    pub(crate) rule: Vec<Rule>,

    /// Checks messages after their delivery, from a queue of this capacity. A message that finds the
    /// queue full is not checked. If left out, each message is checked before its delivery, and the
    /// one that completes a rule is not delivered either.
    #[arg(long, value_name = "CAPACITY")]
    pub(crate) queue: Option<NonZeroUsize>,
}
