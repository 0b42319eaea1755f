//! Message storms: records every message of a group, denies none, and reports when a group has too
//! many.
//!
//! ```
//! use message_storm::{StormDetector, StormEvent, StormRule};
//! use tower_sliding_window::Quota;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let rule = StormRule::new(Quota::per_minute(100)).ends_below(20);
//! // or `StormDetector::on_redis(rule, &RedisStore::connect("redis://127.0.0.1:6379").await?)?`
//! let detector = StormDetector::in_process(rule)?.on_event(|event| match event {
//!     StormEvent::Started { count, .. } => println!("a storm: {count} messages"),
//!     StormEvent::Ended { peak, lasted, .. } => println!("over after {lasted:?}, peak {peak}"),
//!     _ => {}
//! });
//!
//! for number in 0..150 {
//!     let reading = detector.record("group-7", format!("message-{number}")).await?;
//!     assert_eq!(reading.storm.is_some(), number >= 100);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`examples/message_storm.rs`] reads messages from stdin and prints the alerts.
//!
//! # Counting
//!
//! - A message is added first, and counted then. At the instant `t` the messages of `(t - window, t]`
//!   count, to the microsecond.
//! - Each message has an id. A message that is delivered again while it is in the window counts once,
//!   with the timestamp of its first delivery.
//! - **Only the newest [`cap`](StormRule::cap) messages of a group are kept.** The count stops there,
//!   and [`Reading::is_saturated`] is true. A message that was dropped to keep newer ones counts
//!   again if it is delivered again; the count is at the cap then and does not change.
//!
//! # Start and end of a storm
//!
//! - A storm starts with the message that raises the count above the threshold. It ends at the instant
//!   when the count falls below [`ends_below`](StormRule::ends_below). No storm starts or ends while
//!   the count is between the two.
//! - A storm ends because time passes, so no message reports its end. Each process that has recorded a
//!   message of the storm checks the group again when the storm would be over without further messages.
//!   The first of these checks ends the storm. If all these processes are gone, the next message of the
//!   group ends it, for up to a day. The reported end is always the instant when the count fell, even if
//!   it is detected later.
//!
//! # Delivery of events
//!
//! Start and end are decided in the same atomic step that records a message. **Exactly one
//! call in the whole fleet gets each event**: the call that caused it, as [`Reading::events`] and
//! through [`StormDetector::on_event`].
//!
//! - If the caller drops the future, the call goes on, and its events go to the hook alone.
//! - If the reply to that call is lost, the call is repeated with the same id and gets the event again.
//!   If that fails too, the detector asks Redis for the event in the background until it answers, and
//!   once more ten seconds later, because the call may arrive late.
//! - If a message is delivered again, that is another call. It gets no event.
//! - An event is lost if the process ends between decision and alert. It is lost too if the process is
//!   cut off from Redis until the group has another event of this kind, or until Redis has forgotten the
//!   storm: a window after it is over, or an hour if that is longer.
//!
//! A process watches at most 100,000 groups. Beyond that, a storm ends by a
//! check of another process or by the next message. While 100,000 calls are under way or asked about
//! later, the event of another call whose reply is lost is lost. The tasks need a tokio runtime: without
//! one, only messages end storms.
//!
//! # If Redis fails
//!
//! A detector denies nothing, so it has no failure policy. [`StormDetector::record`] returns an error:
//! after at most a second and twice the response timeout, and at once during a known outage of Redis.
//! Messages that Redis does not get are not counted, also not in this process: the count of one process
//! means nothing for a threshold of the fleet. So a storm may be detected late or not at all, and may end
//! early. If Redis loses its data, a storm that continues is reported as a new one, and a storm that is
//! over has no end event. If it loses its last writes only, a start or an end that it does not know any
//! more is reported again.
//!
//! If the clock of Redis steps back, messages keep their age, and the window continues from the newest.
//!
//! # Cost
//!
//! In process, a message takes one lock that all groups share; [`StormDetector::capacity`] limits the
//! memory. On Redis, it is one script call. A group is a ZSET of the messages of the last window, and in
//! a storm also a HASH: `PREFIX:{=GROUP}:NAME:storm:log` and `:state`, with the prefix of the store. A rule
//! without a name has `default:THRESHOLD` there. With ids of 36 bytes, a group takes in Redis 7.0:
//!
//! | | bytes |
//! |---|---:|
//! | 1 message | 168 |
//! | 100 messages | 5,224 |
//! | 1,000 messages, the default cap of `100/60s` | 134,000 |
//! | the state of a storm | 220 |
//!
//! The TTL of the log is the window and a second, and a day more while a storm is not known to be over. So is that of
//! the state, and afterwards at least an hour.
//!
//! # Metrics
//!
//! Through the crate `metrics`. Events go to `tracing`. None of them contains a group or a message.
//!
//! | counter | labels | counts |
//! |---|---|---|
//! | `sliding_window_storms_total` | `name`; `event`: `start`, `end` | starts and ends of storms, each counted in one process of the fleet |
//! | `sliding_window_store_errors_total` | `kind` | calls that failed, as for the limiter |
//!
//! [`examples/message_storm.rs`]: https://github.com/tower-sliding-window/tower-sliding-window/blob/main/crates/message-storm/examples/message_storm.rs

mod check;
mod detector;
mod in_process;
mod on_redis;
mod rule;
#[cfg(test)]
mod tests;

pub use self::check::{Reading, Storm, StormEvent};
pub use self::detector::StormDetector;
pub use self::rule::{StormRule, StormRuleError};
