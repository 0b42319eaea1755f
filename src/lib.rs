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
//! # Features
//!
//! | feature | default | gives |
//! |---|---|---|
//! | `memory` | yes | [`MemoryStore`] |
//! | `redis` | yes | [`RedisStore`] on one server |
//! | `axum` | no | `key::path_param`, and axum's `ConnectInfo` in `key::peer_ip` |
//! | `moderation` | no | `moderation::SpeechMonitor`, which mutes who repeats or spreads messages |
//! | `metrics` | no | counters of decisions and store errors, through the `metrics` crate |
//! | `tracing` | no | events about denials and failures, without keys |
//! | `full` | no | all of them |
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]
#![cfg_attr(
    not(all(feature = "memory", feature = "redis")),
    allow(dead_code, reason = "only the stores together use all of the core")
)]

#[cfg(feature = "redis")]
mod backoff;
mod decision;
mod error;
mod failure;
mod http;
pub mod key;
mod limiter;
#[cfg(feature = "moderation")]
pub mod moderation;
mod policy;
mod quota;
mod report;
pub mod store;
mod window;

pub use decision::{Admitted, Decision, Denied, Usage};
pub use error::StoreError;
pub use failure::{FailurePolicy, ParseFailurePolicyError};
pub use http::{
    MissingKey, Rejection, ResponseBody, ResponseFuture, SlidingWindow, SlidingWindowLayer,
};
pub use key::{Key, KeyError, KeyExtractor};
pub use limiter::Limiter;
pub use policy::{Policy, PolicyError, PolicyHandle};
pub use quota::{ParseQuotaError, Quota, QuotaError};
pub use store::DecidedBy;
#[cfg(feature = "memory")]
pub use store::MemoryStore;
#[cfg(feature = "redis")]
pub use store::RedisStore;
