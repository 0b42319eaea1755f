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
//! | problem | use | feature | example |
//! |---|---|---|---|
//! | flash sale, API rate limit: a quota for each user of an HTTP route | [`SlidingWindowLayer`] | | [`examples/seckill`] |
//! | message storm: an alert if a group gets too many messages | `StormDetector` of the crate `message-storm` | | [`crates/message-storm`] |
//! | chat spam: silent mutes for repeated messages and messages to many strangers | `SpeechMonitor` of the crate `speech-monitor` | | [`examples/chat-guard`] |
//! | per-receiver quota: not too many messages to one receiver | [`Limiter`] | | [`examples/message_quota.rs`] |
//! | one machine with many accounts: at most so many different users behind an address | [`Policy::distinct`] | | [`examples/accounts_per_address.rs`] |
//! | concurrent requests: at most so many exports, downloads or jobs at a time | [`Policy::in_flight`] | | [`examples/in_flight.rs`] |
//! | budget of tokens or bytes: a cost that is known only afterwards | [`Limiter::settle`] | | [`examples/token_budget.rs`] |
//! | SMS gateway: quotas of institution, channel and receiver in one decision | [`Limiter::check_all`] | | [`examples/sms-gateway`] |
//! | temporary bans for clients that exceed a quota again and again | [`Penalty`], [`Bans`] | | [`examples/seckill`] |
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
//! | feature | default | adds |
//! |---|---|---|
//! | `memory` | yes | [`MemoryStore`] |
//! | `redis` | yes | [`RedisStore`] on one server, with Sentinels or on a Cluster; enables `memory` |
//! | `redis-commands` | no | `RedisStore::commands`: the application's own commands, in types of the crate `redis` |
//! | `tls` | no | `rediss://` URLs, with rustls |
//! | `axum` | no | `key::path_param`, and axum's `ConnectInfo` in [`key::peer_ip`] |
//! | `tonic` | no | tonic's `TcpConnectInfo` in [`key::peer_ip`] |
//! | `metrics` | no | the metrics below, through the `metrics` crate |
//! | `tracing` | yes | warnings of mistakes, events about denials and failures, and the fields of spans below, without keys, through the `tracing` crate |
//! | `serde` | no | `Serialize` and `Deserialize` for [`Policies`], [`Policy`] and everything else that has a text form |
//! | `full` | no | all of the above |
//! | `contract` | no | `store::contract`, the contract test for custom stores; not in `full` |
//!
//! # Metrics
//!
//! | metric | labels | what |
//! |---|---|---|
//! | `sliding_window_decisions_total` | `policy`, `outcome`: `admitted`, `denied`, `shadow_denied` | decisions, once for each log: an admission in all of its logs, a denial in those that deny it |
//! | `sliding_window_strikes_total` | `policy` | strikes |
//! | `sliding_window_bans_total` | `policy` | bans imposed because of strikes |
//! | `sliding_window_missing_keys_total` | `policy`; `reason`: `missing` (not sent by the client), `invalid`, `not_provided` (not provided by the server), `not_applicable` ([`key::optional`]) | requests without the key of a rule; `policy` is `chosen` for a rule that chooses its policy |
//! | `sliding_window_counted_twice_total` | `policy` | requests that two layers counted in the same log |
//! | `sliding_window_strikes_lost_total` | | strikes that were not counted because the in-process table of ban records was full |
//! | `sliding_window_store_errors_total` | `kind` | checks that the store did not decide |
//! | `sliding_window_impossible_requests_total` | `kind`: `cost_above_limit`, `no_budget`, `unsupported`, `no_value`, see [`StoreError`] | requests that no store could admit |
//! | `sliding_window_fallback_decisions_total` | `failure_policy`: `local`, `open`, `closed`; `outcome`: `admitted`, `denied`, `shadow_denied`, `refused` | decisions made without the store |
//! | `sliding_window_store_available` | | gauge: 1 while connected to Redis, 0 during an outage, also of one node of a Cluster |
//! | `sliding_window_store_call_duration_seconds` | `script`: the name of a file in `lua/`, or `custom`; `outcome`: `ok`, or the kind of an error as in `sliding_window_store_errors_total` | histogram: time from a script call to Redis until its reply |
//! | `sliding_window_batch_size` | `script` | histogram: requests that share a script call to Redis |
//! | `sliding_window_wait_duration_seconds` | `policy`; `outcome`: `admitted`, `denied`, `too_many_waiters`, `error`, `stopped` (no rule applies any more) | histogram: time that a caller of [`Limiter::until_admitted`] and its kin or a request of a layer with [`max_wait`](SlidingWindowLayer::max_wait) has waited, zero included |
//! | `sliding_window_memory_logs` | | gauge: logs that the in-process stores hold, expired ones included |
//! | `sliding_window_memory_nearly_full` | | gauge: in-process stores that have reached 80 % of their capacity and not fallen below 70 % since |
//! | `sliding_window_memory_full_total` | | requests that did not fit into an in-process store |
//! | `sliding_window_journal_changes` | | gauge: decisions of an outage that are not yet written back to Redis, once for each log |
//! | `sliding_window_journal_nearly_full` | | gauge: journals that have reached 80 % of their capacity and not fallen below 70 % since |
//! | `sliding_window_written_back_total` | | requests that were written back to Redis after an outage |
//! | `sliding_window_write_back_lost_total` | | requests of an outage that have expired before they could be written back to Redis |
//!
//! Where nothing else is said, a metric is a counter. The label `policy` tells the rules of a layer apart,
//! so give each policy a name. Names, units and texts of help follow the conventions of Prometheus and
//! OpenTelemetry: seconds, bytes, and `_total` for counters.
//!
//! A recorder can be installed before or after a layer is built. The first report to it also describes all
//! metrics. Handles of metrics are kept for at most a second, so a recorder may drop metrics that have been
//! idle for longer, and they return with the next report.
//!
//! The gauges are sums over all stores of the process, and no task runs for them. Each is set when what it
//! shows has changed, and the numbers of logs and of changes when they have changed by a 64th. A [`RedisStore`] has an
//! in-process store for outages, whose logs count too.
//!
//! `metrics-exporter-prometheus` makes a summary of a histogram unless it is given buckets:
//!
//! ```
//! # #[cfg(feature = "metrics")] {
//! use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
//!
//! // From a call to a Redis nearby to the longest wait.
//! let seconds = [
//!     0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0,
//! ];
//! // A call has at most 32 requests.
//! let requests = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0];
//! let name = |name: &str| Matcher::Full(name.to_owned());
//! let recorder = PrometheusBuilder::new()
//!     .set_buckets_for_metric(name("sliding_window_store_call_duration_seconds"), &seconds)?
//!     .set_buckets_for_metric(name("sliding_window_wait_duration_seconds"), &seconds)?
//!     .set_buckets_for_metric(name("sliding_window_batch_size"), &requests)?
//!     .install_recorder()?;
//! assert_eq!(recorder.render(), ""); // what Prometheus reads
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Tracing
//!
//! The targets of all events begin with `tower_sliding_window`, as in `RUST_LOG=tower_sliding_window=warn`.
//!
//! The layer records its decision on the current span, in those of these fields that the span has declared:
//!
//! | field | value |
//! |---|---|
//! | `rate_limit.decision` | `admitted`, `denied`, or `shadow_denied` in shadow mode |
//! | `rate_limit.policy` | the names of the policies that deny the request, or of all that admit it, with commas |
//! | `rate_limit.remaining` | [`Usage::remaining`] |
//! | `rate_limit.retry_after_ms` | after a denial: the milliseconds to wait, rounded up |
//! | `rate_limit.decided_by` | `store`, `local_log` or `failure_policy`, see [`DecidedBy`] |
//!
//! No field contains a key. A request without a decision, such as one without a key, has none of them. The
//! span must have been entered around the layer, as that of `tower_http::trace` is if its layer is added
//! after this one. With `tracing-opentelemetry` the fields are attributes of the span.
//!
//! ```
//! # #[cfg(feature = "tracing")] {
//! use axum::{Router, extract::Request, routing::post};
//! use tower_http::trace::TraceLayer;
//! use tower_sliding_window::{MemoryStore, Quota, SlidingWindowLayer, key};
//! use tracing::{field::Empty, info_span};
//!
//! let user = key::header("x-user-id");
//! let app: Router = Router::new()
//!     .route("/orders", post(|| async { "ordered" }))
//!     .layer(SlidingWindowLayer::new(Quota::per_minute(5), user, MemoryStore::new()))
//!     .layer(TraceLayer::new_for_http().make_span_with(|request: &Request| {
//!         info_span!(
//!             "request",
//!             method = %request.method(),
//!             rate_limit.decision = Empty,
//!             rate_limit.policy = Empty,
//!             rate_limit.remaining = Empty,
//!             rate_limit.retry_after_ms = Empty,
//!             rate_limit.decided_by = Empty,
//!         )
//!     }));
//! # }
//! ```
//!
//! [`crates/message-storm`]: https://github.com/tower-sliding-window/tower-sliding-window/tree/main/crates/message-storm
//! [`examples/seckill`]: https://github.com/tower-sliding-window/tower-sliding-window/tree/main/examples/seckill
//! [`examples/chat-guard`]: https://github.com/tower-sliding-window/tower-sliding-window/tree/main/examples/chat-guard
//! [`examples/message_quota.rs`]: https://github.com/tower-sliding-window/tower-sliding-window/blob/main/examples/message_quota.rs
//! [`examples/accounts_per_address.rs`]: https://github.com/tower-sliding-window/tower-sliding-window/blob/main/examples/accounts_per_address.rs
//! [`examples/in_flight.rs`]: https://github.com/tower-sliding-window/tower-sliding-window/blob/main/examples/in_flight.rs
//! [`examples/token_budget.rs`]: https://github.com/tower-sliding-window/tower-sliding-window/blob/main/examples/token_budget.rs
//! [`examples/sms-gateway`]: https://github.com/tower-sliding-window/tower-sliding-window/tree/main/examples/sms-gateway
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]
#![cfg_attr(
    not(feature = "full"),
    allow(dead_code, reason = "only all features together use all of the core")
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
pub use self::store::Permit;
pub use self::store::bans::{Ban, BanCursor, BanPage, ParseBanCursorError};
#[cfg(feature = "memory")]
pub use self::store::memory::MemoryStore;
#[cfg(feature = "redis")]
pub use self::store::redis::RedisStore;
pub use self::waiting::WaitError;
pub use self::window::{
    Admitted, BanExplanation, DecidedBy, Decision, Denied, Explanation, LogCost, LoggedAdmission,
    QuotaExplanation, Usage,
};
