use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use http::request::Parts;
use http::{Method, Response, StatusCode};
use tower_layer::Layer;

use super::config::{Config, MissingKey, OnBan};
use super::rejection::Rejection;
use super::rule::Rule;
use super::service::SlidingWindow;
use crate::failure::FailurePolicy;
use crate::key::KeyExtractor;
use crate::policy::PolicyHandle;
use crate::store::Store;
use crate::window::Decision;

/// Holds each user of a service to a policy, and answers 429 to whoever is above it.
///
/// Clones, and the services made by them, share one configuration and the store's windows.
///
/// ## Behavior
///
/// - A request is decided on before the inner service sees it. A denied request is answered with
///   429, `Retry-After`, `RateLimit`, `RateLimit-Policy` and a problem document; it leaves no
///   trace in any window.
/// - With several rules, either every window records the request or none does.
/// - The inner service's readiness is passed through; its errors are kept as they are.
/// - The inner service finds the [`Decision`](crate::Decision) in the request's extensions. It is
///   absent from requests that are [skipped](Self::skip) and from those that no rule applies to.
/// - In axum, `Router::layer` covers the router's fallback too, so requests for unknown paths are
///   decided on and count; `Router::route_layer` covers the routes only. Of several layers the one
///   that is added last runs first: add the layer that inserts a value for
///   [`key::extension`](crate::key::extension) after this one.
/// - Two layers that count a request under the same policy and key take two places. This is hardly
///   ever meant, so it is counted in `sliding_window_counted_twice_total` and warned of once. If it
///   is, as with a store in the process in front of one on Redis, give the policies two names.
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
    /// Creates a layer with one rule: `policy` for each key that `key` takes from a request.
    ///
    /// `policy` is a [`Quota`](crate::Quota), a [`Policy`](crate::Policy), or a [`PolicyHandle`]
    /// to change it while it is in use.
    ///
    /// # Panics
    ///
    /// If the policy has no quota; [`PolicyHandle::try_new`] gives an error instead.
    #[must_use]
    #[track_caller]
    pub fn new(policy: impl Into<PolicyHandle>, key: impl KeyExtractor, store: impl Store) -> Self {
        let config = Config {
            rules: Vec::with_capacity(1),
            store: Arc::new(store),
            on_failure: FailurePolicy::default(),
            on_ban: OnBan::Reject(StatusCode::FORBIDDEN),
            missing_key: MissingKey::Reject(StatusCode::UNAUTHORIZED),
            skip: Arc::new(Self::is_preflight),
            cost: None,
            headers_on_success: false,
            shadow: false,
            on_rejection: None,
            on_decision: None,
            cancel_if: None,
            cancel_unanswered: false,
            counts_twice: Arc::default(),
        };
        Self { config: Arc::new(config) }.rule(policy, key)
    }

    /// Adds a rule, which must hold beside those already there.
    ///
    /// Give its policy a name of its own: rules of one name share their windows.
    ///
    /// Rules whose policies have no name and equal quotas do not: the layer puts each rule's number
    /// in front of its keys, so that a user's id can't be taken for an address. No
    /// [`Limiter`](crate::Limiter) and no [`Bans`](crate::Bans) finds these keys, so name the
    /// policies if you want to look at them.
    ///
    /// # Panics
    ///
    /// If the policy has no quota.
    #[must_use]
    #[track_caller]
    pub fn rule(self, policy: impl Into<PolicyHandle>, key: impl KeyExtractor) -> Self {
        let rule = Rule::new(policy.into(), key);
        self.with(|config| config.add(rule))
    }

    /// Sets what becomes of a request that the store can't decide on.
    ///
    /// Defaults to [`FailurePolicy::Local`] with one instance. A refusal is a 503 with
    /// `Retry-After`, never a 429.
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

    /// Sets what becomes of a request whose key is banned by the [`Penalty`](crate::Penalty) of a
    /// policy.
    ///
    /// Defaults to `OnBan::Reject(StatusCode::FORBIDDEN)`. `Retry-After` says how long the ban goes
    /// on.
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

    /// Sets what becomes of a request that has no key for a rule.
    ///
    /// Applies to all rules; [`key::optional`](crate::key::optional) makes one rule skip. Defaults
    /// to `MissingKey::Reject(StatusCode::UNAUTHORIZED)`. A key that is there but malformed is
    /// answered with 400 in any case, and one that the server itself did not provide with 500, see
    /// [`KeyError::NotProvided`](crate::KeyError::NotProvided).
    #[must_use]
    pub fn on_missing_key(self, missing_key: MissingKey) -> Self {
        self.with(|config| config.missing_key = missing_key)
    }

    /// Sets which requests are neither counted nor limited.
    ///
    /// Replaces the default, which is [`SlidingWindowLayer::is_preflight`]; call that too to keep it.
    /// The [`Decision`](crate::Decision) is absent from the extensions of skipped requests.
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

    /// Tells whether a request is a CORS preflight: `OPTIONS` with both `Origin` and
    /// `Access-Control-Request-Method`.
    ///
    /// Browsers send these on their own, without credentials. Any client can send one too, so a
    /// route that does work for `OPTIONS`, such as one made with axum's `any`, needs
    /// [`skip`](Self::skip) without this.
    #[must_use]
    pub fn is_preflight(parts: &Parts) -> bool {
        parts.method == Method::OPTIONS
            && parts.headers.contains_key(ORIGIN)
            && parts.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
    }

    /// Sets how many places a request takes, all or none.
    ///
    /// Defaults to 1 for every request. A request that weighs more than a limit, or more than 1024,
    /// can never pass: it is answered with 429 without `Retry-After`.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> u32 + Send + Sync + 'static) -> Self {
        self.with(|config| config.cost = Some(Arc::new(cost)))
    }

    /// Sets whether responses of the inner service get `RateLimit` and `RateLimit-Policy` too.
    ///
    /// Defaults to `false`. On Redis it costs one more command in the script for each quota, and the
    /// longer of the two scripts.
    #[must_use]
    pub fn headers_on_success(self, headers_on_success: bool) -> Self {
        self.with(|config| config.headers_on_success = headers_on_success)
    }

    /// Sets the response to a request that is not let through.
    ///
    /// Defaults to [`Rejection::to_response`]. `Retry-After`, `RateLimit` and `RateLimit-Policy`
    /// are added where the response does not have them.
    ///
    /// ```
    /// use http::Response;
    /// use tower_sliding_window::{MemoryStore, Quota, Rejection, SlidingWindowLayer, key};
    ///
    /// SlidingWindowLayer::new(Quota::per_minute(5), key::header("x-user-id"), MemoryStore::new())
    ///     .on_rejection(|rejection: &Rejection| {
    ///         let mut response = Response::new("the queue is full");
    ///         *response.status_mut() = rejection.status();
    ///         response
    ///     });
    /// ```
    #[must_use]
    pub fn on_rejection<B: Into<Bytes>>(
        self,
        respond: impl Fn(&Rejection) -> Response<B> + Send + Sync + 'static,
    ) -> Self {
        let respond = move |rejection: &Rejection| respond(rejection).map(Into::into);
        self.with(|config| config.on_rejection = Some(Arc::new(respond)))
    }

    /// Sets which responses give the request's place back, as if it had never been asked for.
    ///
    /// To count only failures, cancel on success; not to charge for a sold-out answer, cancel on
    /// that. Defaults to none.
    ///
    /// The response waits for the cancellation, so that a client which comes again at once finds the
    /// place free.
    ///
    /// A request without a response keeps its place once the inner service was called: when that
    /// fails, and when the client hangs up. Otherwise a client could let the handler run as often as
    /// it likes by hanging up each time. See [`cancel_unanswered`](Self::cancel_unanswered).
    ///
    /// A client that hangs up while the decision is under way gets its place back, for the inner
    /// service is not called: the decision is awaited in the background and then cancelled. Without
    /// `cancel_if` such a request may have been counted.
    ///
    /// ```
    /// use http::StatusCode;
    /// use tower_sliding_window::{MemoryStore, Quota, SlidingWindowLayer, key};
    ///
    /// // Five failed logins an hour; successful ones are free.
    /// SlidingWindowLayer::new(Quota::per_hour(5), key::header("x-user-id"), MemoryStore::new())
    ///     .cancel_if(|response| response.status() != StatusCode::UNAUTHORIZED);
    /// ```
    #[must_use]
    pub fn cancel_if(
        self,
        cancels: impl Fn(&Response<()>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.with(|config| config.cancel_if = Some(Arc::new(cancels)))
    }

    /// Sets whether a request that gets no response gives its place back although the inner service
    /// was called: when that fails, and when the client hangs up first.
    ///
    /// Defaults to `false`. With `true` a client can let the handler run as often as it likes by
    /// hanging up each time, so it is only for clients that are trusted not to. The cancellation
    /// goes on in the background if the client is gone.
    ///
    /// ```
    /// use tower_sliding_window::{MemoryStore, Quota, SlidingWindowLayer, key};
    ///
    /// // Between our own services: what was not answered is not charged.
    /// SlidingWindowLayer::new(Quota::per_hour(100), key::header("x-service"), MemoryStore::new())
    ///     .cancel_unanswered(true);
    /// ```
    #[must_use]
    pub fn cancel_unanswered(self, cancel_unanswered: bool) -> Self {
        self.with(|config| config.cancel_unanswered = cancel_unanswered)
    }

    /// Sets whether the layer only decides, counts and reports, and refuses nothing.
    ///
    /// Requests that would have been denied leave no trace in the windows, as when they are; the
    /// inner service finds the denial in the request's extensions, `on_decision` and the metrics
    /// tell of it. Requests without a key pass uncounted. Defaults to `false`.
    #[must_use]
    pub fn shadow(self, shadow: bool) -> Self {
        self.with(|config| config.shadow = shadow)
    }

    /// Sets what is shown every decision, before it takes effect. Defaults to nothing.
    ///
    /// It runs on the request's own path: it must not block.
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
