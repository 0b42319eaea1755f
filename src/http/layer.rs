mod choose;
mod offenders;
mod reject;
mod settle;
mod wait;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use http::request::Parts;
use http::{Method, StatusCode};
use tower_layer::Layer;

use super::config::{Config, MissingKey, OnBan};
use super::headers::RateLimitHeaders;
use super::rule::Rule;
use super::service::SlidingWindow;
use crate::failure::FailurePolicy;
use crate::key::KeyExtractor;
use crate::policy::{Counts, PolicyHandle};
use crate::store::Store;
use crate::waiting::{DEFAULT_MAX_WAITERS, Waiting};
use crate::window::Decision;

/// A Tower layer that limits each key of a service to a policy and denies further requests with 429.
///
/// Clones, and the services that they make, share one configuration and one store.
///
/// ## Behavior
///
/// - The layer decides before it calls the inner service. A denied request gets a 429 with
///   `Retry-After`, `RateLimit`, `RateLimit-Policy` and a problem document, and leaves no trace in
///   any log.
/// - A gRPC request is denied with a status that gRPC clients read, see
///   [`Rejection::to_grpc_response`](crate::Rejection::to_grpc_response).
/// - With several rules, either every log records the request or none does.
/// - Under a policy that counts requests [in flight](crate::Policy::in_flight), a request holds its place until the
///   body of the response has ended or was dropped.
/// - The readiness and the errors of the inner service are passed through unchanged.
/// - The inner service finds the [`Decision`](crate::Decision) in the request's extensions, unless
///   the request is [skipped](Self::skip) or no rule applies to it.
/// - In axum, `Router::layer` also covers the fallback, so requests for unknown paths count.
///   `Router::route_layer` covers only the routes, but also their wrong methods (405).
///   `post(handler).route_layer(limit)` covers only what the handler gets. The layer that is added last runs first: add a
///   layer that inserts a value for [`key::extension`](crate::key::extension) after this one.
/// - Two layers on one route of axum: `get(handler).layer((outer, inner))`. With a second call of
///   `layer` the compiler can't infer a type (E0283).
/// - Two layers that count a request under the same policy and key take two places. This is rarely
///   intended, so the feature `metrics` counts it in `sliding_window_counted_twice_total`, and the
///   feature `tracing` warns once. If it is intended, as with an in-process store in front of Redis,
///   give the policies different names.
///
/// ```
/// use std::time::Duration;
/// use axum::{Router, routing::post};
/// use tower_sliding_window::{MemoryStore, Policy, Quota, SlidingWindowLayer, key};
///
/// let store = MemoryStore::new();
/// let user = Policy::new("user").quota(Quota::per_second(2)).quota(Quota::per_minute(5));
///
/// let app: Router = Router::new()
///     .route("/orders", post(|| async { "ordered" }))
///     .layer(
///         SlidingWindowLayer::new(user, key::header("x-user-id"), store)
///             .rule(Policy::new("ip").quota(Quota::per_minute(100)), key::peer_ip()),
///     );
/// ```
#[derive(Clone)]
pub struct SlidingWindowLayer {
    config: Arc<Config>,
}

impl SlidingWindowLayer {
    /// Creates a layer with one rule, which applies `policy` to each key that `key` extracts.
    ///
    /// `policy` is a [`Quota`](crate::Quota), a [`Policy`](crate::Policy), or a [`PolicyHandle`],
    /// which can change while it is in use. [`key`](crate::key) lists the extractors and the
    /// features that they need.
    ///
    /// # Panics
    ///
    /// If the policy has no quota; [`PolicyHandle::try_new`] returns an error instead.
    #[must_use]
    #[track_caller]
    pub fn new(policy: impl Into<PolicyHandle>, key: impl KeyExtractor, store: impl Store) -> Self {
        Self::without_rules(store).rule(policy, key)
    }

    fn without_rules(store: impl Store) -> Self {
        let config = Config {
            rules: Vec::with_capacity(1),
            store: Arc::new(store),
            on_failure: FailurePolicy::default(),
            on_ban: OnBan::Reject(StatusCode::FORBIDDEN),
            missing_key: MissingKey::Reject(StatusCode::UNAUTHORIZED),
            skip: Arc::new(Self::is_preflight),
            cost: None,
            headers: RateLimitHeaders::default(),
            headers_on_success: false,
            shadow: false,
            on_rejection: None,
            on_decision: None,
            offenders: None,
            cancel_if: None,
            cancel_unanswered: false,
            head_cost: None,
            body_cost: None,
            max_wait: Duration::ZERO,
            max_waiters: DEFAULT_MAX_WAITERS,
            jitter: Duration::ZERO,
            waiting: Arc::new(Waiting::new()),
            double_count_reported: Arc::default(),
            cost_reported: Arc::default(),
        };
        Self { config: Arc::new(config) }
    }

    /// Adds a rule. A request is admitted only if all rules admit it.
    ///
    /// Give each policy a name of its own: rules whose policies have the same name share their logs. That
    /// is meant for two extractors of one kind of key, such as a user id that is in a header or in a
    /// cookie. An id and an address that are the same text would be one key: a client could choose the
    /// id `203.0.113.7` to use up the quota of that address.
    ///
    /// Rules whose policies have no name and equal quotas do not share logs. The layer puts the
    /// rule's number in front of their keys, so that a user's id can't collide with an address. A
    /// [`Limiter`](crate::Limiter) or [`Bans`](crate::Bans) can't find these keys, so name the
    /// policies to inspect them.
    ///
    /// # Panics
    ///
    /// If the policy has no quota, or counts [distinct](crate::Policy::distinct) values.
    #[must_use]
    #[track_caller]
    pub fn rule(self, policy: impl Into<PolicyHandle>, key: impl KeyExtractor) -> Self {
        let policy = policy.into();
        assert!(
            policy.get().counts() != Counts::Distinct,
            "the policy {:?} counts distinct values: add it with `rule_distinct`, which says what the \
             values are",
            policy.get().name()
        );
        let rule = Rule::new(policy, key);
        self.with(|config| config.add(rule))
    }

    /// Adds a rule that limits how many different values a key has, such as the accounts behind an address.
    ///
    /// The first extractor finds the key, and the second one the value. The policy counts
    /// [distinct](crate::Policy::distinct) values. A request without a key or value is treated as
    /// [`on_missing_key`](Self::on_missing_key) says; [`key::optional`](crate::key::optional), around either
    /// extractor, skips the rule.
    ///
    /// Give each such rule a policy of its own name. Two with one name and one key share a log, and the value of the
    /// second one is ignored. A policy that [`by`](Self::by) or [`rule_by`](Self::rule_by) chooses has no value, so it
    /// must not count distinct values: its requests get a 500.
    ///
    /// The guide has a [recipe](crate::docs::recipes::accounts_per_address).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sliding_window::{MemoryStore, Policy, Quota, SlidingWindowLayer, key};
    ///
    /// // Five requests a minute for each user, and five users in ten minutes for each address: one machine with a
    /// // hundred accounts gets as far as with five.
    /// let accounts = Policy::new("accounts").quota(Quota::new(5, Duration::from_secs(600))).distinct();
    /// SlidingWindowLayer::new(Quota::per_minute(5), key::header("x-user-id"), MemoryStore::new())
    ///     .rule_distinct(accounts, key::peer_ip(), key::header("x-user-id"));
    /// ```
    ///
    /// # Panics
    ///
    /// If the policy has no quota, or counts something else.
    #[must_use]
    #[track_caller]
    pub fn rule_distinct(
        self,
        policy: impl Into<PolicyHandle>,
        key: impl KeyExtractor,
        value: impl KeyExtractor,
    ) -> Self {
        let rule = Rule::distinct(policy.into(), key, value);
        self.with(|config| config.add(rule))
    }

    /// Sets what happens to a request if the store can't decide.
    ///
    /// Defaults to [`FailurePolicy::Local`] with one instance. [`FailurePolicy::Closed`] responds
    /// with a 503 and `Retry-After`, never with a 429.
    ///
    /// ```
    /// use tower_sliding_window::{FailurePolicy, MemoryStore, Quota, SlidingWindowLayer, key};
    ///
    /// SlidingWindowLayer::new(Quota::per_minute(5), key::header("x-user-id"), MemoryStore::new())
    ///     .failure_policy(FailurePolicy::local(3)); // three servers share the quota in an outage
    /// ```
    #[must_use]
    pub fn failure_policy(self, on_failure: FailurePolicy) -> Self {
        self.with(|config| config.on_failure = on_failure)
    }

    /// Sets what happens to a request whose key is banned by the [`Penalty`](crate::Penalty) of a
    /// policy.
    ///
    /// Defaults to `OnBan::Reject(StatusCode::FORBIDDEN)`, with the rest of the ban in
    /// `Retry-After`.
    ///
    /// ```
    /// use tower_sliding_window::{MemoryStore, OnBan, Policy, Quota, SlidingWindowLayer, key};
    ///
    /// let user = Policy::new("user").quota(Quota::per_minute(5)).penalty("3/10m:1m,1h".parse()?);
    /// SlidingWindowLayer::new(user, key::header("x-user-id"), MemoryStore::new()).on_ban(OnBan::Mute);
    /// # Ok::<(), tower_sliding_window::ParsePenaltyError>(())
    /// ```
    #[must_use]
    pub fn on_ban(self, on_ban: OnBan) -> Self {
        self.with(|config| config.on_ban = on_ban)
    }

    /// Sets what happens to a request that has no key for a rule.
    ///
    /// Applies to all rules; [`key::optional`](crate::key::optional) skips a single rule. Defaults
    /// to `MissingKey::Reject(StatusCode::UNAUTHORIZED)`. The response to a malformed key is always
    /// a 400. If the server itself did not provide the key, it is always a 500, see
    /// [`KeyError::NotProvided`](crate::KeyError::NotProvided). With the feature `tracing` each request
    /// without a key is an event at `DEBUG`, with the policy and the reason.
    #[must_use]
    pub fn on_missing_key(self, missing_key: MissingKey) -> Self {
        self.with(|config| config.missing_key = missing_key)
    }

    /// Sets which requests are neither counted nor limited.
    ///
    /// Defaults to [`SlidingWindowLayer::is_preflight`]. A closure replaces the default; call
    /// `is_preflight` in it to keep that. Skipped requests have no
    /// [`Decision`](crate::Decision) in their extensions.
    ///
    /// ```
    /// use tower_sliding_window::{MemoryStore, Quota, SlidingWindowLayer, key};
    ///
    /// SlidingWindowLayer::new(Quota::per_minute(5), key::header("x-user-id"), MemoryStore::new())
    ///     .skip(|parts| parts.uri.path() == "/health" || SlidingWindowLayer::is_preflight(parts));
    /// ```
    #[must_use]
    pub fn skip(self, skip: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|config| config.skip = Arc::new(skip))
    }

    /// Returns whether a request is a CORS preflight: `OPTIONS` with both `Origin` and
    /// `Access-Control-Request-Method`.
    ///
    /// Browsers send preflights without credentials. Any other client can send one too: on a route
    /// that does work for `OPTIONS`, such as one made with axum's `any`, use [`skip`](Self::skip)
    /// without this function.
    #[must_use]
    pub fn is_preflight(parts: &Parts) -> bool {
        parts.method == Method::OPTIONS
            && parts.headers.contains_key(ORIGIN)
            && parts.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
    }

    /// Sets the cost of a request: what it takes of the rules whose policies are [budgets](crate::Policy::budget).
    ///
    /// Defaults to 1 for every request. Other rules count one request, whatever it costs. A request that costs more
    /// than the limit of a budget can never be admitted: the response is a 429 without `Retry-After`. If it costs
    /// more than 1 and no rule is a budget, the response is a 500. With the feature `tracing` the first one is
    /// warned of.
    ///
    /// ```
    /// use tower_sliding_window::{MemoryStore, Policy, Quota, SlidingWindowLayer, key};
    ///
    /// // Twenty requests a minute for each user, and a hundred megabytes of uploads in an hour.
    /// let upload = Policy::new("upload").quota(Quota::per_hour(100_000_000)).budget();
    /// SlidingWindowLayer::new(Quota::per_minute(20), key::header("x-user-id"), MemoryStore::new())
    ///     .rule(upload, key::header("x-user-id"))
    ///     .cost(|parts| {
    ///         let length = parts.headers.get("content-length").and_then(|it| it.to_str().ok());
    ///         length.and_then(|it| it.parse().ok()).unwrap_or(1)
    ///     });
    /// ```
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> u32 + Send + Sync + 'static) -> Self {
        self.with(|config| config.cost = Some(Arc::new(cost)))
    }

    /// Sets which fields show a client its quotas.
    ///
    /// Defaults to [`RateLimitHeaders::Draft11`]: `RateLimit` and `RateLimit-Policy`.
    ///
    /// ```
    /// use tower_sliding_window::{
    ///     MemoryStore, Quota, RateLimitHeaders, SlidingWindowLayer, key,
    /// };
    ///
    /// SlidingWindowLayer::new(Quota::per_minute(5), key::header("x-user-id"), MemoryStore::new())
    ///     .headers(RateLimitHeaders::Both) // `X-RateLimit-Limit` and so on, too
    ///     .headers_on_success(true);
    /// ```
    #[must_use]
    pub fn headers(self, headers: RateLimitHeaders) -> Self {
        self.with(|config| config.headers = headers)
    }

    /// Sets whether responses of the inner service also get the fields of
    /// [`headers`](Self::headers).
    ///
    /// Defaults to `false`. On Redis this takes one more command of the script for each quota.
    #[must_use]
    pub fn headers_on_success(self, headers_on_success: bool) -> Self {
        self.with(|config| config.headers_on_success = headers_on_success)
    }

    /// Sets whether the layer only decides, counts and reports, and forwards every request.
    ///
    /// Defaults to `false`. A request that would be denied leaves no trace in the logs, as without
    /// shadow mode. The denial is in the request's extensions, goes to `on_decision` and is counted
    /// in the metrics. Requests without a key are forwarded and not counted.
    ///
    /// A [`Penalty`](crate::Penalty) has no effect: a denial is no strike and imposes no ban, because
    /// another limiter of the policy's name would enforce it. A ban that stands is not reported either.
    ///
    /// The logs are real: another layer or limiter with the same store and policy name finds them. To try
    /// a quota beside the one that is enforced, give its policy another name, see the
    /// [guide](crate::docs::why_denied#try-a-quota-before-you-enforce-it).
    #[must_use]
    pub fn shadow(self, shadow: bool) -> Self {
        self.with(|config| config.shadow = shadow)
    }

    /// Sets a function to call with every decision, before it takes effect. Defaults to none.
    ///
    /// It runs in the request's task and must not block. The keys are in
    /// [`Usage::logs`](crate::Usage::logs): `decision.usage().logs()` has each log with its policy and
    /// its key. A key may be personal data, so keep it out of logs and metrics.
    #[must_use]
    pub fn on_decision(self, observe: impl Fn(&Decision) + Send + Sync + 'static) -> Self {
        self.with(|config| config.on_decision = Some(Arc::new(observe)))
    }

    fn with(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(Arc::make_mut(&mut self.config));
        self
    }
}

impl<S> Layer<S> for SlidingWindowLayer {
    type Service = SlidingWindow<S>;

    fn layer(&self, inner: S) -> Self::Service {
        SlidingWindow::new(inner, self.config.clone())
    }
}

impl fmt::Debug for SlidingWindowLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlidingWindowLayer").field("config", &self.config).finish()
    }
}
