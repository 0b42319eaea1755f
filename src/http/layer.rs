//! [`SlidingWindowLayer`]: the layer and its settings.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use http::request::Parts;
use http::{Method, Response, StatusCode};
use http_body::Body;
use tower_layer::Layer;

use super::after_response::{BodyCost, ResponseEnd};
use super::body::{BoxError, OwnBody, RejectionBody};
use super::config::{Config, MissingKey, OnBan};
use super::headers::RateLimitHeaders;
use super::rejection::Rejection;
use super::rule::Rule;
use super::service::SlidingWindow;
use crate::failure::FailurePolicy;
use crate::key::{Key, KeyExtractor};
use crate::offenders::TopOffenders;
use crate::policy::{Counts, Policy, PolicyHandle};
use crate::quota::Quota;
use crate::store::Store;
use crate::waiting::DEFAULT_MAX_WAITERS;
use crate::window::Decision;

/// A Tower layer that limits each key of a service to a policy and denies further requests with 429.
///
/// Clones share the store and start with the same settings. A setter on a clone changes that clone only:
/// `limit.clone().failure_policy(FailurePolicy::Closed)` is the same rules for a stricter route.
///
/// ## Behavior
///
/// - The layer decides before it calls the inner service. A denied request gets a 429 with
///   `Retry-After`, `RateLimit`, `RateLimit-Policy` and a problem document, and leaves no trace in
///   any log.
/// - A gRPC request is denied with a status that gRPC clients read, see
///   [`Rejection::to_grpc_response`](crate::Rejection::to_grpc_response).
/// - With several rules, either every log records the request or none does. On a Cluster, rules whose keys differ are
///   checked in turn and rolled back, see [`RedisStore`](crate::RedisStore).
/// - Under a policy that counts requests [in flight](crate::Policy::in_flight), a request holds its place until the
///   body of the response has ended or was dropped.
/// - The readiness and the errors of the inner service are passed through unchanged.
/// - The inner service finds the [`Decision`](crate::Decision) in the request's extensions, unless
///   the request is [skipped](Self::skip) or no rule applies to it.
/// - In axum, `Router::layer` also covers the fallback, so requests for unknown paths count. A router that is nested
///   afterwards loses its default fallback, and its unknown paths do not count. `Router::merge` takes the default fallback
///   of the other router, with its layers, for the whole application.
///   `Router::route_layer` covers only the routes, but also their wrong methods (405).
///   `post(handler).route_layer(limit)` covers only what the handler gets. The layer that is added last runs first: add a
///   layer that inserts a value for [`key::extension`](crate::key::extension) after this one.
/// - Two layers on one route of axum: `get(handler).layer((outer, inner))`. With a second call of
///   `layer` the compiler can't infer a type (E0283).
/// - Two layers that count a request under the same policy and key take two places of one store.
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
#[derive(Clone, Debug)]
#[must_use]
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
    /// If the policy has no quota or too many, for which [`PolicyHandle::try_new`] returns an error instead, or counts
    /// distinct values, see [`rule_distinct`](Self::rule_distinct).
    #[track_caller]
    pub fn new(policy: impl Into<PolicyHandle>, key: impl KeyExtractor, store: impl Store) -> Self {
        Self::without_rules(store).rule(policy, key)
    }

    /// Creates a layer with one rule, whose policy a closure chooses for each request.
    ///
    /// The closure sees the head of the request and the key that `key` has extracted. With `None` the
    /// rule does not apply: the request is exempt from it. The closure is called for every request,
    /// so it should clone handles that exist, and create none.
    ///
    /// Give the policies of all plans the same name, and the same [`Policy::keep_for`](crate::Policy::keep_for) if their
    /// longest windows differ. Then a user has one log, and keeps it when the plan changes. The guide has a
    /// [recipe](crate::docs::recipes::plans). [`Overrides`](crate::Overrides) chooses by key, from a configuration.
    ///
    /// The metric `sliding_window_missing_keys_total` counts the requests without a key under the
    /// policy name `chosen`.
    pub fn choosing(
        choose: impl Fn(&Parts, &Key) -> Option<PolicyHandle> + Send + Sync + 'static,
        key: impl KeyExtractor,
        store: impl Store,
    ) -> Self {
        Self::without_rules(store).rule_choosing(choose, key)
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
            head_cost: None,
            body_cost: None,
            max_wait: Duration::ZERO,
            max_waiters: DEFAULT_MAX_WAITERS,
            jitter: Duration::ZERO,
            waiting: Arc::default(),
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
    /// Rules whose policies have no name do not share logs. If several rules may have such a policy, the layer puts the
    /// number of the rule in front of their keys, so that a user's id can't collide with an address: who adds a second such
    /// rule begins new logs for the first one, beside those of the servers that lack it. A closure may
    /// [choose](Self::rule_choosing) any policy. A [`Limiter`](crate::Limiter) or [`Bans`](crate::Bans) can't find these
    /// keys, so name the policies to inspect them.
    ///
    /// # Panics
    ///
    /// If the policy has no quota or too many, or counts [distinct](crate::Policy::distinct) values.
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
    /// extractor, skips the rule. The guide has a [recipe](crate::docs::recipes::accounts_per_address).
    ///
    /// Give each such rule a policy of its own name. Two with one name and one key share a log, and the value of the
    /// second one is ignored. A policy that [`choosing`](Self::choosing) or
    /// [`rule_choosing`](Self::rule_choosing) chooses has no value, so it
    /// must not count distinct values: its requests get a 500.
    ///
    /// # Panics
    ///
    /// If the policy has no quota or too many, or counts something else.
    #[track_caller]
    pub fn rule_distinct(
        self,
        policy: impl Into<PolicyHandle>,
        key: impl KeyExtractor,
        value: impl KeyExtractor,
    ) -> Self {
        let policy = policy.into();
        assert!(
            policy.get().counts() == Counts::Distinct,
            "the policy {:?} counts no distinct values: make it with `Policy::distinct`",
            policy.get().name()
        );
        let mut rule = Rule::new(policy, key);
        rule.value = Some(Arc::new(value));
        self.with(|config| config.add(rule))
    }

    /// Adds a rule whose policy a closure chooses for each request, see
    /// [`SlidingWindowLayer::choosing`].
    pub fn rule_choosing(
        self,
        choose: impl Fn(&Parts, &Key) -> Option<PolicyHandle> + Send + Sync + 'static,
        key: impl KeyExtractor,
    ) -> Self {
        let policy = Policy::new("chosen").quota(Quota::per_second(1));
        let mut rule = Rule::new(policy.into(), key);
        rule.choose = Some(Arc::new(choose));
        self.with(|config| config.add(rule))
    }

    /// Sets what happens to a request if the store can't decide.
    ///
    /// Defaults to [`FailurePolicy::Local`] with one instance, so that each of several servers has the whole quotas in an
    /// outage; with [`FailurePolicy::local(3)`](FailurePolicy::local) three servers share them.
    /// [`FailurePolicy::Closed`] responds with a 503 and `Retry-After`, never with a 429.
    pub fn failure_policy(self, on_failure: FailurePolicy) -> Self {
        self.with(|config| config.on_failure = on_failure)
    }

    /// Sets what happens to a request whose key is banned by the [`Penalty`](crate::Penalty) of a
    /// policy.
    ///
    /// Defaults to `OnBan::Reject(StatusCode::FORBIDDEN)`, with the rest of the ban in
    /// `Retry-After` unless a policy in flight denies the request too.
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
    ///
    /// A 401 should have the challenge of the application's authentication, in `WWW-Authenticate`
    /// ([RFC 9110, section 15.5.2](https://www.rfc-editor.org/rfc/rfc9110#section-15.5.2)): add it in
    /// [`on_rejection`](Self::on_rejection).
    pub fn on_missing_key(self, missing_key: MissingKey) -> Self {
        self.with(|config| config.missing_key = missing_key)
    }

    /// Sets which requests are neither counted nor limited.
    ///
    /// Defaults to [`SlidingWindowLayer::is_preflight`]. A closure replaces the default; call
    /// `is_preflight` in it to keep that. Skipped requests have no
    /// [`Decision`](crate::Decision) in their extensions. Inside of a nested router of axum, the path is what follows the
    /// prefix; axum's `OriginalUri` has all of it.
    ///
    /// ```
    /// use tower_sliding_window::{MemoryStore, Quota, SlidingWindowLayer, key};
    ///
    /// SlidingWindowLayer::new(Quota::per_minute(5), key::header("x-user-id"), MemoryStore::new())
    ///     .skip(|parts| parts.uri.path() == "/health" || SlidingWindowLayer::is_preflight(parts));
    /// ```
    pub fn skip(self, skip: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|config| config.skip = Arc::new(skip))
    }

    /// Returns whether a request is a CORS preflight: `OPTIONS` with both `Origin` and
    /// `Access-Control-Request-Method`.
    ///
    /// Browsers send preflights without credentials. Any other client can send one too: on a route
    /// that does work for `OPTIONS`, such as one made with axum's `any`, use [`skip`](Self::skip)
    /// without this function.
    pub fn is_preflight(parts: &Parts) -> bool {
        parts.method == Method::OPTIONS
            && parts.headers.contains_key(ORIGIN)
            && parts.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
    }

    /// Sets the cost of a request: what it takes of the rules whose policies are [budgets](crate::Policy::budget).
    ///
    /// Defaults to 1 for every request. Other rules count one request, whatever it costs. A request that costs more
    /// than the limit of a budget can never be admitted: the response is a 429 without `Retry-After`, whose `detail` says why.
    /// If it costs more than 1 and no rule is a budget, the response is a 500. With the feature `tracing` the first one is
    /// warned of. A request that costs 0 takes nothing of a budget, but in a layer with
    /// [`settle_from_head`](Self::settle_from_head) or [`settle_from_body`](Self::settle_from_body) it reserves 1, which
    /// stays if nothing settles it.
    ///
    /// A client that sends its body without reading meanwhile may find the connection closed in place of the 429. One that
    /// sends `Expect: 100-continue` reads first. The guide has an [example](crate::docs::token_budgets#the-layer-settles).
    pub fn cost(self, cost: impl Fn(&Parts) -> u32 + Send + Sync + 'static) -> Self {
        self.with(|config| config.cost = Some(Arc::new(cost)))
    }

    /// Settles the [budgets](crate::Policy::budget) of a request at what the head of its response tells.
    ///
    /// The request reserves what [`cost`](Self::cost) says, and takes what the closure returns from then on, more or
    /// less, as [`Limiter::settle`](crate::Limiter::settle) describes. With `None` the reservation stays. Other rules
    /// count one request in any case. Defaults to no closure.
    ///
    /// The layer settles before it responds, and [`headers_on_success`](Self::headers_on_success) shows what is left
    /// afterwards. A request that is cancelled by [`cancel_if`](Self::cancel_if) is not settled. One without a response
    /// keeps its reservation.
    ///
    /// ```
    /// use tower_sliding_window::{MemoryStore, Policy, Quota, SlidingWindowLayer, key};
    ///
    /// // The model behind the service says in a header how many tokens the answer took.
    /// let tokens = Policy::new("tokens").quota(Quota::per_minute(50_000)).budget();
    /// SlidingWindowLayer::new(tokens, key::header("x-user-id"), MemoryStore::new())
    ///     .cost(|_| 8_000)
    ///     .settle_from_head(|response| response.headers().get("x-tokens")?.to_str().ok()?.parse().ok());
    /// ```
    pub fn settle_from_head(
        self,
        cost: impl Fn(&Response<()>) -> Option<u32> + Send + Sync + 'static,
    ) -> Self {
        self.with(|config| config.head_cost = Some(Arc::new(cost)))
    }

    /// Settles the [budgets](crate::Policy::budget) of a request at what the end of its response body tells.
    ///
    /// The closure is called once the body has ended, has failed, or was dropped because the client hung up, with the
    /// number of bytes that were sent until then and the last of them, at most `tail`. It returns what the request
    /// takes from then on. With `None` it takes what it has reserved, or what the head said. Defaults to no closure.
    ///
    /// The last frame of the body waits until the store has settled the request, so the next request of a client that
    /// has the whole response finds what is left.
    ///
    /// - To count what was used when a client hangs up, the closure needs a cost for an incomplete body as well.
    ///   With `None` such a client pays the whole reservation.
    /// - A body that ends after the window of the budget counts what was reserved: its entry has left. A client may read as
    ///   slowly as it likes, so bound the time of a response, or how many are [in flight](crate::Policy::in_flight).
    /// - The response to a `HEAD` request, and a body that nobody has asked for a frame, end after 0 bytes.
    /// - With [`settle_from_head`](Self::settle_from_head) too, the end of the body has the last word. A head that says
    ///   0 leaves the reservation until then.
    /// - A layer outside of this one that changes the body, such as compression, changes the number of bytes that the
    ///   client gets. Inside of this one it changes what the closure sees: then the tail is compressed.
    /// - A closure that panics while a panic unwinds the body leaves the reservation as it was.
    ///
    /// The guide reads the [tokens of a stream, and counts bytes](crate::docs::token_budgets#the-layer-settles).
    pub fn settle_from_body(
        self,
        tail: usize,
        cost: impl Fn(ResponseEnd<'_>) -> Option<u32> + Send + Sync + 'static,
    ) -> Self {
        self.with(|config| {
            config.body_cost = Some(BodyCost { tail_length: tail, cost: Arc::new(cost) })
        })
    }

    /// Sets the responses after which the request is cancelled, so that it does not count.
    ///
    /// For example, cancel on success to count only [failures](crate::docs::recipes::failed_logins), or cancel on "sold out" to
    /// make such requests free. Defaults to no responses. The layer cancels before it responds, so a client that retries at
    /// once finds the place free.
    ///
    /// A request without a response still counts once the inner service was called: if the service
    /// fails, and if the client hangs up. Otherwise a client could run the handler any number of
    /// times by hanging up each time.
    ///
    /// The layer sees the responses from inside of it. A timeout or a catcher of panics that lies outside
    /// makes its response without this layer, and such a request counts: put both inside.
    ///
    /// If the client hangs up before the decision, the inner service is not called and the request
    /// does not count: a background task waits for the decision and cancels it. Without `cancel_if`
    /// such a request may count.
    ///
    /// The closure sees the head of the response. The status of a gRPC call is in it, as `grpc-status`, only if the response
    /// has no message ("Trailers-Only"), as that of a tonic handler that returns an error at once. So a response without
    /// `grpc-status` may still fail, in its trailers. What a layer within this one has rejected has its
    /// HTTP status here, also if the client says that it speaks gRPC and gets a 200.
    pub fn cancel_if(
        self,
        cancels: impl Fn(&Response<()>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.with(|config| config.cancel_if = Some(Arc::new(cancels)))
    }

    /// Sets how long a request waits for room before it is denied. The guide has an
    /// [example](crate::docs::responses#waiting-instead-of-a-429).
    ///
    /// Defaults to zero: no request waits. A wait may be a twentieth longer, because each request of a queue is
    /// admitted a little after its place is free.
    ///
    /// - **Order.** The requests that wait for the same key of a rule are admitted in the order of their
    ///   arrival, in this process, as by
    ///   [`Limiter::until_admitted_all`](crate::Limiter::until_admitted_all).
    /// - **Denials.** A request is denied at once, with an honest `Retry-After`, if its place comes free after the
    ///   bound, counting those that wait before it, or if [`max_waiters`](Self::max_waiters) wait already. Behind
    ///   others that time may be up to a window too long: how the places of a full log are spread is not known.
    ///   A banned key and a cost that can never pass are denied at once, too. For a request that
    ///   [`OnBan::Mute`] lets through, the other rules decide without a wait.
    /// - **Requests in flight.** Nobody knows when one is [over](crate::Policy::in_flight). So the first request that
    ///   waits for such a place looks for it 20 times a second, and a denial has no `Retry-After`.
    /// - **Hanging up.** If the client hangs up, the request leaves its queue, the next one goes on, and no log
    ///   has recorded it.
    /// - **Cost.** The first request of a queue sends checks as
    ///   [`Limiter::until_admitted`](crate::Limiter::until_admitted) does, with keys, costs and policies anew from the request.
    ///   One with several rules looks at its logs once when it comes, which costs about as much, also
    ///   if it is denied at once because of those that wait: such a denial is not one from memory.
    /// - **Decisions.** [`on_decision`](Self::on_decision) is called with the last decision only. In
    ///   [shadow mode](Self::shadow) no request waits.
    /// - **Resources.** A waiting request holds its connection, its body and the inner service that was ready
    ///   for it. With a limit of concurrent requests, such as tower's `ConcurrencyLimit`, it holds a place
    ///   there too, whether that limit is inside or outside of this layer.
    ///
    /// It needs a tokio runtime with its timer.
    pub fn max_wait(self, max_wait: Duration) -> Self {
        self.with(|config| config.max_wait = max_wait)
    }

    /// Sets how many requests may wait at once, for all keys together. Defaults to 10,000.
    ///
    /// A further request that would have to wait is denied at once. Its `Retry-After` counts those that wait
    /// before it. Without [`max_wait`](Self::max_wait) no request waits.
    pub fn max_waiters(self, most: usize) -> Self {
        self.with(|config| config.max_waiters = most)
    }

    /// Sets which fields show a client its quotas.
    ///
    /// Defaults to [`RateLimitHeaders::Draft11`]: `RateLimit` and `RateLimit-Policy`.
    pub fn headers(self, headers: RateLimitHeaders) -> Self {
        self.with(|config| config.headers = headers)
    }

    /// Sets whether responses of the inner service also get the fields of
    /// [`headers`](Self::headers).
    ///
    /// Defaults to `false`. On Redis this takes one more command of the script for each quota.
    pub fn headers_on_success(self, headers_on_success: bool) -> Self {
        self.with(|config| config.headers_on_success = headers_on_success)
    }

    /// Sets the response to a rejected request. The guide has an
    /// [example](crate::docs::responses#a-429-of-ones-own).
    ///
    /// Defaults to [`Rejection::to_response`], and to [`Rejection::to_grpc_response`] for a gRPC
    /// request. The closure gets the head of the request. It returns any `IntoResponse` with the
    /// feature `axum`, otherwise an [`http::Response`] with any body whose data is
    /// [`Bytes`](bytes::Bytes), such as a `String`. If the body fails, it ends there. If the compiler
    /// expects a `Response` and finds the `IntoResponse` of a closure (E0308), enable the feature `axum`.
    ///
    /// The layer adds `Retry-After`, `Cache-Control: no-store` and the fields of [`headers`](Self::headers) unless the
    /// response has them, or is a redirection. To a gRPC request it sends the response of the closure only if the content type of
    /// that begins with `application/grpc`, because a gRPC client can read no other. Otherwise it
    /// sends the default one.
    #[cfg(feature = "axum")]
    pub fn on_rejection<R: axum::response::IntoResponse>(
        self,
        respond: impl Fn(&Parts, &Rejection) -> R + Send + Sync + 'static,
    ) -> Self {
        self.respond_by(move |head, rejection| respond(head, rejection).into_response())
    }

    /// Sets the response to a rejected request. With the feature `axum` the closure may return any
    /// `IntoResponse`, of which these responses are some, so that the feature breaks no caller that names no type.
    ///
    /// Without it the compiler reports any other `IntoResponse`, such as a tuple, as E0308.
    ///
    /// The rest is as with that feature: it defaults to [`Rejection::to_response`], and to
    /// [`Rejection::to_grpc_response`] for a gRPC request.
    #[cfg(not(feature = "axum"))]
    pub fn on_rejection<B>(
        self,
        respond: impl Fn(&Parts, &Rejection) -> Response<B> + Send + Sync + 'static,
    ) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        self.respond_by(respond)
    }

    fn respond_by<B>(
        self,
        respond: impl Fn(&Parts, &Rejection) -> Response<B> + Send + Sync + 'static,
    ) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let respond = move |head: &Parts, rejection: &Rejection| {
            let own = respond(head, rejection);
            own.map(|body| RejectionBody::Right(OwnBody::new(body)))
        };
        self.with(|config| config.on_rejection = Some(Arc::new(respond)))
    }

    /// Adds a random time of up to `longest` to the wait that a denied client is told, so that those of a sale do not
    /// all come back in the same second. Defaults to zero.
    ///
    /// It is the same in `Retry-After`, `RateLimit` and the gRPC details, and never makes the wait shorter. Decisions in
    /// [`on_decision`](Self::on_decision) have the exact wait. No other rejection has it. The
    /// [draft](https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-ratelimit-headers-11#section-8.5) advises it.
    pub fn retry_jitter(self, longest: Duration) -> Self {
        self.with(|config| config.jitter = longest)
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
    pub fn shadow(self, shadow: bool) -> Self {
        self.with(|config| config.shadow = shadow)
    }

    /// Sets where the keys of denied requests are counted. Defaults to nowhere.
    pub fn top_offenders(self, offenders: &TopOffenders) -> Self {
        self.with(|config| config.offenders = Some(offenders.clone()))
    }

    /// Sets a function to call with every decision, before it takes effect. Defaults to none.
    ///
    /// It runs in the request's task and must not block. The keys are in
    /// [`Usage::logs`](crate::Usage::logs): `decision.usage().logs()` has each log with its policy and
    /// its key. A key may be personal data, so keep it out of logs and metrics.
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
