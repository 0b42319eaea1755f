//! [`Args`]: the command line.

use std::num::NonZeroUsize;

use clap::Parser;
use tower_sliding_window::moderation::Rule;

use crate::common::flags::{ListenFlags, RedisFlags};
use crate::common::prefix::Prefix;

/// A chat that mutes spammers in silence: they see no difference, and nobody else sees them.
#[derive(Parser)]
#[command(
    name = "chat_guard",
    mut_arg("redis", |redis| redis.env("CHAT_GUARD_REDIS")),
    // A message would rather wait than pass unjudged.
    mut_arg("response_timeout", |timeout| timeout.default_value("1s")),
    after_help = "\
Try it: the third message within a minute is answered like the first two, and not delivered.
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

Nothing here asks who may call a route: that belongs in front of it.
RUST_LOG sets what is logged, to stderr; `info` unless it is set. User ids appear from `debug` on."
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) listen: ListenFlags,

    #[command(flatten)]
    pub(crate) redis: RedisFlags,

    /// What the Redis keys begin with; servers with the same prefix are one chat.
    #[arg(long, value_name = "NAME", default_value = "chat")]
    pub(crate) prefix: Prefix,

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

    /// Judges messages after they are delivered, from a queue of so many; what finds it full is not
    /// judged. If left out, a message is judged first, and the one that completes a rule is not
    /// delivered either.
    #[arg(long, value_name = "CAPACITY")]
    pub(crate) queue: Option<NonZeroUsize>,
}
