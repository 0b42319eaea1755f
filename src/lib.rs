//! Exact sliding-window rate limiting for Tower and axum, shared by a fleet through Redis or kept in
//! process.
//!
//! A quota is a `limit` and a `window`: at most `limit` requests are admitted in **any** period of
//! that length, exact to the microsecond. A fixed window, in contrast, can admit twice the limit
//! around its boundary. A denied request leaves no entry in a log, gets an exact `Retry-After`, and costs very
//! little: it is denied again from memory, for at most a second at a time. For that second, what another process has
//! cancelled, reset or lifted goes unnoticed.
//!
//! Nothing is published on crates.io yet: the README shows the git dependency.
//!
//! # Which part to use
//!
//! | problem | use | example |
//! |---|---|---|
//! | flash sale, API rate limit: a quota for each user of an HTTP route | [`SlidingWindowLayer`] | [`examples/seckill`] |
//! | message storm: an alert if a group gets too many messages | `StormDetector` of the crate `message-storm` | [`crates/message-storm`] |
//! | chat spam: silent mutes for repeated messages and messages to many strangers | `SpeechMonitor` of the crate `speech-monitor` | [`examples/chat-guard`] |
//! | per-receiver quota: not too many messages to one receiver | [`Limiter`] | [`examples/message_quota.rs`] |
//! | one machine with many accounts: at most so many different users behind an address | [`Policy::distinct`] | [a recipe](docs::recipes::accounts_per_address) |
//! | concurrent requests: at most so many exports, downloads or jobs at a time | [`Policy::in_flight`] | [`examples/in_flight.rs`] |
//! | budget of tokens or bytes: a cost that is known only afterwards | [`Limiter::settle`] | [`examples/token_budget.rs`] |
//! | SMS gateway: quotas of institution, channel and receiver in one decision | [`Limiter::check_all`] | [`examples/sms-gateway`] |
//! | temporary bans for clients that exceed a quota again and again | [`Penalty`], [`Bans`] | [`examples/seckill`] |
//!
//! The [guide](docs) compares these tools and their costs. It has [recipes](docs::recipes) for common tasks,
//! and pages for [migrating](docs::migrating) from another rate limiter.
//!
//! # HTTP requests
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
//! Switch on the feature `metrics` in every server, and install a subscriber for `tracing`: warnings say what is wrong
//! with a setup. A
//! client chooses its own `x-user-id`: use the header only behind a gateway that sets it, else
//! [`key::extension`] after your authentication.
//!
//! The module [`key`] has extractors for headers, cookies, bearer tokens, query parameters, request
//! extensions and IP addresses. `key::path_param` needs the feature `axum`, and so does
//! [`key::peer_ip`] if the server provides the address as axum's `ConnectInfo`. With tonic it needs the
//! feature `tonic`.
//!
//! `RedisStore::connect` fails if Redis does not reply when the server starts. With `connect_lazy` the
//! server starts, and the failure policy decides until Redis replies.
//!
//! # Without HTTP
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
//!     Decision::Denied(denied) => println!("held, retry after {:?}", denied.retry_after()),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`Limiter::until_admitted`] waits until there is room. [`Limiter::acquire`] holds a place while a job runs.
//!
//! # Features
//!
//! `memory`, `redis` and `tracing` are on by default. What needs another feature says so here, and `Cargo.toml` says what
//! each adds. `full` has all of them except `contract`, the test for a store of one's own.
//!
//! | for | features |
//! |---|---|
//! | `rediss://` URLs | `tls` |
//! | the application's own commands to Redis | `redis-commands` |
//! | path parameters and addresses of peers as keys | `axum`, `tonic` |
//! | policies in a configuration | `serde` |
//! | [metrics, and the fields of spans](docs::watching) | `metrics`, `tracing` |
//!
//! [`crates/message-storm`]: https://github.com/tower-sliding-window/tower-sliding-window/tree/main/crates/message-storm
//! [`examples/seckill`]: https://github.com/tower-sliding-window/tower-sliding-window/tree/main/examples/seckill
//! [`examples/chat-guard`]: https://github.com/tower-sliding-window/tower-sliding-window/tree/main/examples/chat-guard
//! [`examples/message_quota.rs`]: https://github.com/tower-sliding-window/tower-sliding-window/blob/main/examples/message_quota.rs
//! [`examples/in_flight.rs`]: https://github.com/tower-sliding-window/tower-sliding-window/blob/main/examples/in_flight.rs
//! [`examples/token_budget.rs`]: https://github.com/tower-sliding-window/tower-sliding-window/blob/main/examples/token_budget.rs
//! [`examples/sms-gateway`]: https://github.com/tower-sliding-window/tower-sliding-window/tree/main/examples/sms-gateway
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]
#![cfg_attr(
    not(feature = "full"),
    allow(dead_code, unused_imports, reason = "only all features together use all of the core")
)]

mod bans;
#[cfg(doc)]
pub mod docs;
mod error;
mod failure;
mod http;
pub mod key;
mod limiter;
mod offenders;
mod overrides;
mod policy;
mod quota;
#[cfg(feature = "redis")]
mod redis;
pub mod store;
mod telemetry;
#[cfg(feature = "serde")]
mod text_form;
mod time;
mod waiting;
mod window;

pub use self::bans::{BanEvent, Bans};
pub use self::error::StoreError;
pub use self::failure::{FailurePolicy, ParseFailurePolicyError};
pub use self::http::{
    MissingKey, Muted, OnBan, RateLimitHeaders, Rejection, ResponseBody, ResponseEnd,
    ResponseFuture, SlidingWindow, SlidingWindowLayer,
};
pub use self::key::extractor::{KeyError, KeyExtractor};
pub use self::key::value::Key;
pub use self::limiter::Limiter;
pub use self::offenders::{Offender, TopOffenders};
pub use self::overrides::{Override, Overrides};
pub use self::policy::{
    Counts, ParsePenaltyError, Penalty, Policies, Policy, PolicyChange, PolicyError, PolicyHandle,
};
pub use self::quota::{ParseQuotaError, Quota, QuotaError};
#[cfg(feature = "redis")]
pub use self::redis::RedisServers;
#[cfg(feature = "redis-commands")]
pub use self::redis::{RedisCommands, RedisScript};
pub use self::store::bans::{Ban, BanPage};
#[cfg(feature = "memory")]
pub use self::store::memory::MemoryStore;
pub use self::store::permit::Permit;
#[cfg(feature = "redis")]
pub use self::store::redis::{RedisStore, RedisStoreBuilder};
pub use self::waiting::WaitError;
pub use self::window::{
    Admitted, BanExplanation, DecidedBy, Decision, Denied, Explanation, LogCost, LoggedAdmission,
    QuotaExplanation, Usage,
};
