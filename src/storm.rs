//! Message storms: every message of a group is recorded, none is refused, and an alert says when a
//! group has too many.
//!
//! ```
//! use std::time::Duration;
//! use tower_sliding_window::{MemoryStore, Quota, StormDetector, StormEvent, StormRule};
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
//! A message is added first and counted then. `examples/message_storm.rs` reads messages from stdin and
//! prints the alerts.
//!
//! # What is counted
//!
//! - At the instant `t` the window holds the messages that came in `(t - window, t]`, to the
//!   microsecond.
//! - A message has an identity of its own. One that is delivered again while it is in the window counts
//!   once, with the timestamp of the first delivery.
//! - **Of each group only the newest [`cap`](StormRule::cap) messages are kept.** The count stops there,
//!   and [`Reading::is_saturated`] says so. A message that was dropped for newer ones counts again if
//!   it is delivered again, which does not change a count that is at the cap.
//!
//! # When a storm starts and ends
//!
//! - It starts with the message that makes the count exceed the threshold, and ends at the instant at
//!   which the count is below [`ends_below`](StormRule::ends_below). Between the two counts nothing
//!   starts and nothing ends.
//! - Nothing but time ends a storm, so the end has no message to come with. Each process that has
//!   recorded a message in a storm looks at the group again when the storm could be over if no more
//!   messages come; the first that looks ends it. If these processes are all gone, the next message of
//!   the group does, for up to a day. However late it is noticed, the end is when the count fell.
//! - In the [`cool_down`](StormRule::cool_down), which counts from that end, no storm starts. What has
//!   come meanwhile is counted: if the count is above the threshold when the cool-down is over, a storm
//!   starts then. If it is not, there was none.
//!
//! # Who is told
//!
//! Start and end are decided by the store, in the same step as the message is recorded. **Each is told to
//! the call that decides it, and to no other in the whole fleet**, as [`Reading::events`] and to
//! [`StormDetector::on_event`].
//!
//! - If the answer to that call is lost, the call is made again under the same identity and told again.
//!   If that fails too, or nobody waits for the answer any more, the detector asks in the background
//!   until it is answered.
//! - A message that is delivered again comes with another call, and is told of nothing.
//! - If the process ends between the decision and the alert, nobody is told. The other of the two, start
//!   or end, is told all the same.
//! - The hook has a thread of its own, so that it may block. If 1,024 events wait for it, the one that
//!   comes is shed and counted.
//!
//! # Without an answer
//!
//! A detector refuses nothing, so there is no failure policy: [`StormDetector::record`] returns an error,
//! after twice the response timeout at the most, and at once while Redis is known to be down. What Redis
//! has missed is not counted: a storm may be told late, or not, and its end early. There is no count
//! beside Redis as for a limiter, for that of one process says nothing about a threshold of the fleet.
//! If Redis loses its memory, a storm that goes on is told of as a new one, and one that does not has
//! no end.
//!
//! If Redis's clock steps back, messages keep their age, and the window goes on from the newest.
//!
//! # Cost
//!
//! | | for each message | kept of each group |
//! |---|---|---|
//! | in process | a mutex that all groups share | a timestamp and twice the id of each message of the last window |
//! | on Redis | one script call, dearer than that of an admission, and in a storm dearer still | a ZSET of the messages of the last window, and in a storm a HASH: `PREFIX:{=GROUP}:NAME:storm:log` and `:state` |
//!
//! With ids of 36 bytes a group with one message takes 170 bytes in Redis 7.0, one with 100 takes 5.2 kB,
//! and one with 1,000 takes 134 kB; the state of a storm 220 bytes. A rule without a name stands in the
//! names of the keys as `default:THRESHOLD`.
//!
//! The log has a TTL of the window; the state of a storm that goes on one of a day after the last
//! message has left, and of one that is over an hour after the cool-down. In process the number of
//! groups is capped by the store's capacity; one more is a [`StoreError::Full`](crate::StoreError::Full).
//! Their bytes are capped too, as `MemoryStore::storm_bytes` has it; a message that finds no room is a
//! [`StoreError::TooManyBytes`](crate::StoreError::TooManyBytes), and is not counted.
//! A process keeps up to 10,000 looks in mind; storms above that end when another process looks, or
//! with the next message. To look takes a tokio runtime: without one, only messages end storms.

mod alerts;
#[cfg(all(test, feature = "redis"))]
mod contract;
mod detector;
#[cfg(feature = "memory")]
mod memory;
mod reading;
#[cfg(feature = "redis")]
mod redis;
mod rule;
mod shared;
pub mod store;
mod watch;

pub use self::detector::StormDetector;
pub use self::reading::{Profile, ProfileError, Reading, Storm, StormEvent};
pub use self::rule::{StormRule, StormRuleError};
