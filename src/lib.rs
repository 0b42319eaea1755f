//! Exact sliding-window rate limiting for Tower and axum, shared by a fleet through Redis or kept
//! in process.
//!
//! At most `limit` requests in any `window`, to the microsecond: not about, and not twice as many
//! across a boundary. A request that is denied leaves no trace, is told truthfully when to come
//! back, and costs next to nothing.
//!
//! # In front of a service
//!
//! ```
//! use std::time::Duration;
//! use axum::{Router, routing::post};
//! use tower_sliding_window::{MemoryStore, Quota, SlidingWindowLayer, key};
//!
//! let store = MemoryStore::new(); // or RedisStore::connect("redis://127.0.0.1:6379").await?
//!
//! let app: Router = Router::new()
//!     .route("/seckill/{sku}/orders", post(|| async { "ordered" }))
//!     .layer(SlidingWindowLayer::new(
//!         Quota::new(5, Duration::from_secs(60)),
//!         key::header("x-user-id"),
//!         store,
//!     ));
//! ```
//!
//! # Anywhere else
//!
//! ```
//! use std::time::Duration;
//! use tower_sliding_window::{Decision, Limiter, MemoryStore, Quota};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_sliding_window::StoreError> {
//! let limiter = Limiter::new(Quota::new(2, Duration::from_secs(600)), MemoryStore::new());
//! match limiter.check("receiver-17").await? {
//!     Decision::Admitted(admitted) => println!("sent, {} left", admitted.remaining()),
//!     Decision::Denied(denied) => println!("held, again in {:?}", denied.retry_after()),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Without refusing anything
//!
//! [`storm`] records every message of a group and tells, once in the fleet, when there are too many.
//!
//! # Features
//!
//! | feature | default | gives |
//! |---|---|---|
//! | `memory` | yes | [`MemoryStore`] |
//! | `redis` | yes | [`RedisStore`] on one server; brings `memory` |
//! | `sentinel` | no | [`RedisStore`] on the master that Sentinels name |
//! | `cluster` | no | [`RedisStore`] on a Redis Cluster |
//! | `tls` | no | `rediss://`, by rustls |
//! | `axum` | no | `key::path_param`, and axum's `ConnectInfo` in `key::peer_ip` |
//! | `moderation` | no | `moderation::SpeechMonitor`, which mutes who repeats or spreads messages |
//! | `metrics` | no | counters of decisions and store errors, through the `metrics` crate |
//! | `tracing` | no | events about denials and failures, without keys |
//! | `full` | no | all of them |
//! | `contract` | no | `store::contract`, the test that a store of one's own must pass; not in `full` |
//!
//! # Metrics
//!
//! | metric | labels | counts |
//! |---|---|---|
//! | `sliding_window_decisions_total` | `policy`, `outcome`: `admitted`, `denied`, `shadow_denied` | decisions; a denial, of each policy it violates |
//! | `sliding_window_candidate_denials_total` | `policy`, `quota` | requests that a candidate quota would have denied |
//! | `sliding_window_strikes_total` | `policy` | strikes |
//! | `sliding_window_bans_total` | `policy` | bans that strikes have brought |
//! | `sliding_window_missing_keys_total` | `policy`; `reason`: `missing` (the client did not send it), `invalid`, `not_provided` (the server did not provide it), `not_applicable` ([`key::optional`]) | requests without the key of a rule |
//! | `sliding_window_counted_twice_total` | `policy` | requests that two layers counted in the same log |
//! | `sliding_window_strikes_lost_total` | | strikes that were not counted, for the in-process table of ban records is full |
//! | `sliding_window_store_errors_total` | `kind` | questions that the store did not answer |
//! | `sliding_window_impossible_requests_total` | `kind`: `cost_above_limit`, `cost_too_high`, `unsupported` | requests that no store could admit |
//! | `sliding_window_fallback_decisions_total` | `failure_policy`: `local`, `open`, `closed`; `outcome`: `admitted`, `denied`, `refused` | decisions made without the store |
//! | `sliding_window_store_available` | | 1 while there is a connection to Redis, 0 while there is none (a gauge) |
//! | `sliding_window_memory_nearly_full` | | in-process stores that hold 80 % of the logs they may, until they hold less than 70 % (a gauge) |
//! | `sliding_window_memory_full_total` | | requests that an in-process store had no room for |
//! | `sliding_window_written_back_total` | | requests that Redis was told of later |
//! | `sliding_window_write_back_lost_total` | | requests that Redis could not be told of |
//! | `sliding_window_storms_total` | `name`; `event`: `start`, `end` | storms that have started and ended, each in one process of the fleet |
//! | `sliding_window_storm_alerts_shed_total` | | starts and ends of storms that the hook was not told of, for too many waited |
//! | `sliding_window_storm_alert_panics_total` | | panics of the hook that is told of storms |
//! | `sliding_window_mutes_total` | `rule` | mutes, and mutes that became longer |
//! | `sliding_window_mute_hook_panics_total` | | panics of the hook that is told of mutes |
//! | `sliding_window_mute_events_lost_total` | | lost replies that may have told of a mute, and that the store is not asked about: there were too many, or no runtime |
//! | `sliding_window_messages_shed_total` | | messages that the speech monitor did not judge, for too many waited |
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]
#![cfg_attr(
    not(all(feature = "memory", feature = "redis")),
    allow(dead_code, reason = "only the stores together use all of the core")
)]

mod bans;
#[cfg(all(test, feature = "redis"))]
mod contract_tests;
#[cfg(doc)]
pub mod docs;
mod error;
mod failure;
#[cfg(any(feature = "storm", feature = "moderation"))]
mod hook;
mod http;
pub mod key;
mod limiter;
#[cfg(feature = "moderation")]
pub mod moderation;
mod policy;
mod quota;
#[cfg(feature = "redis")]
mod redis;
pub mod store;
#[cfg(feature = "storm")]
pub mod storm;
mod telemetry;
mod time;
mod window;

pub use self::bans::{BanEvent, Bans};
pub use self::error::StoreError;
pub use self::failure::{FailurePolicy, ParseFailurePolicyError};
pub use self::http::{
    MissingKey, Muted, OnBan, Rejection, ResponseBody, ResponseFuture, SlidingWindow,
    SlidingWindowLayer,
};
pub use self::key::{Key, KeyError, KeyExtractor};
pub use self::limiter::Limiter;
pub use self::policy::{ParsePenaltyError, Penalty, Policy, PolicyError, PolicyHandle};
pub use self::quota::{ParseQuotaError, Quota, QuotaError};
#[cfg(feature = "memory")]
pub use self::store::MemoryStore;
#[cfg(feature = "redis")]
pub use self::store::RedisStore;
pub use self::store::{Ban, BanCursor, BanPage, ParseBanCursorError};
#[cfg(feature = "storm")]
pub use self::storm::{StormDetector, StormEvent, StormRule};
pub use self::window::{Admitted, DecidedBy, Decision, Denied, Usage};
