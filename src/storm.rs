//! Message storms: records every message of a group, denies none, and reports when a group has too
//! many.
//!
//! Needs the feature `storm`.
//!
//! ```
//! use std::time::Duration;
//! use tower_sliding_window::{MemoryStore, Quota};
//! use tower_sliding_window::storm::{StormDetector, StormEvent, StormRule};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = MemoryStore::new(); // or RedisStore::connect("redis://127.0.0.1:6379").await?
//! let rule = StormRule::new(Quota::per_minute(100)).ends_below(20);
//! let detector = StormDetector::new(rule, store).on_event(|event| match event {
//!     StormEvent::Started { count, .. } => println!("a storm: {count} messages"),
//!     StormEvent::Ended { peak, lasted, .. } => println!("over after {lasted:?}, peak {peak}"),
//!     _ => {}
//! });
//!
//! for number in 0..150 {
//!     let reading = detector.record("group-7", format!("message-{number}")).await?;
//!     assert_eq!(reading.storm().is_some(), number >= 100);
//! }
//! let profile = detector.profile("group-7", Duration::from_secs(1)).await?;
//! assert_eq!(profile.counts().len(), 60);
//! # Ok(())
//! # }
//! ```
//!
//! [`examples/message_storm.rs`] reads messages from stdin and prints the alerts.
//!
//! # Counting
//!
//! - The store adds a message first and counts then. At the instant `t` it counts the messages of
//!   `(t - window, t]`, to the microsecond.
//! - Each message has an id. A message that is delivered again while it is in the window counts once,
//!   with the timestamp of its first delivery.
//! - **Only the newest [`cap`](StormRule::cap) messages of a group are kept.** The count stops there,
//!   and [`Reading::is_saturated`] returns true. A message that was dropped to keep newer ones counts
//!   again if it is delivered again; the count is at the cap then and does not change.
//!
//! # Start and end of a storm
//!
//! - A storm starts with the message that raises the count above the threshold. It ends at the instant
//!   when the count falls below [`ends_below`](StormRule::ends_below). No storm starts or ends while
//!   the count is between the two.
//! - A storm ends because time passes, so no message reports its end. Each process that has recorded a
//!   message of the storm checks the group again at the time when the storm would be over without
//!   further messages. The first of these checks ends the storm. If all these processes are gone, the
//!   next message of the group ends it, for up to a day. The reported end is always the instant when
//!   the count fell, even if it is detected later.
//! - No storm starts during the [`cool_down`](StormRule::cool_down), which begins at that end. Messages
//!   still count. If the count is above the threshold when the cool-down is over, a storm starts then.
//!
//! # Reminders
//!
//! A storm that lasts is reported again if [`StormDetector::remind_every`] is set: at each multiple of
//! that time since its start, until it ends, by a [`StormEvent::Ongoing`]. The store decides which call
//! gets it, so one process of the fleet reports it. Of several reminders that were missed, the latest is
//! reported.
//!
//! # Delivery of events
//!
//! The store decides on start, end and reminder in the same atomic step that records a message. **Exactly one
//! call in the whole fleet gets each event**: the call that caused it, as [`Reading::events`] and
//! through [`StormDetector::on_event`].
//!
//! - If the reply to that call is lost, the call is repeated with the same id and gets the event again.
//!   If that fails too, or the caller drops the future, the detector queries the store for the event in
//!   the background until the store replies.
//! - If a message is delivered again, that is another call. It gets no event.
//! - If the process ends between decision and alert, that event is lost. The other event of the storm,
//!   its start or its end, is still delivered, and so is the next reminder.
//! - The hook has its own thread, so it may block. Up to 100,000 events wait for it; a further event is
//!   dropped and counted.
//!
//! # If the store fails
//!
//! A detector denies nothing, so it has no failure policy. [`StormDetector::record`] returns an error:
//! after at most twice the response timeout, and at once during a known outage of Redis. Messages that
//! Redis does not get are not counted, so a storm may be detected late or not at all, and may end early.
//! There is no local count as for a limiter: the count of one process means nothing for a threshold of
//! the fleet. If Redis loses its data, a storm that continues is reported as a new one, and a storm that
//! is over has no end event.
//!
//! If the clock of Redis steps back, messages keep their age, and the window continues from the newest.
//!
//! # Cost
//!
//! | | for each message | stored for each group |
//! |---|---|---|
//! | in process | a lock that a 64th of the groups share | a timestamp and two copies of the id for each message of the last window |
//! | on Redis | one script call, more expensive than an admission, and more so in a storm | a ZSET of the messages of the last window, and in a storm a HASH: `PREFIX:{=GROUP}:NAME:storm:log` and `:state` |
//!
//! With ids of 36 bytes a group takes 170 bytes in Redis 7.0 with one message, 5.2 kB with 100, and
//! 134 kB with 1,000. The state of a storm takes 220 bytes. In the names of Redis keys, a rule without a
//! name is `default:THRESHOLD`.
//!
//! The TTL of the log is the window and a second. The TTL of a storm's state ends a day after the last message has
//! left the window, or, if the storm is over, an hour after the cool-down.
//!
//! In process, the store's capacity limits the number of groups; one more is a
//! [`StoreError::Full`](crate::StoreError::Full). `MemoryStore::storm_bytes` limits their bytes; a message
//! that does not fit is a [`StoreError::TooManyBytes`](crate::StoreError::TooManyBytes) and is not
//! counted.
//!
//! A process schedules at most 100,000 checks. Storms beyond that end by a check of another process, or
//! by the next message. The checks need a tokio runtime: without one, only messages end storms.
//!
//! [`examples/message_storm.rs`]: https://github.com/tower-sliding-window/tower-sliding-window/blob/main/examples/message_storm.rs

mod alerts;
#[cfg(all(test, feature = "redis"))]
mod contract;
mod detector;
#[cfg(feature = "serde")]
mod document;
#[cfg(feature = "memory")]
mod log;
#[cfg(feature = "memory")]
mod memory;
mod reading;
mod rechecks;
#[cfg(feature = "redis")]
mod redis;
mod rule;
mod shared;
pub mod store;

pub use self::detector::StormDetector;
pub use self::reading::{Profile, ProfileError, Reading, Storm, StormEvent};
pub use self::rule::{StormRule, StormRuleError};
