//! Rules whose policy depends on the request.

use std::sync::Arc;

use http::request::Parts;

use super::SlidingWindowLayer;
use crate::http::rule::Rule;
use crate::key::{Key, KeyExtractor};
use crate::policy::PolicyHandle;
use crate::store::Store;

impl SlidingWindowLayer {
    /// Creates a layer with one rule, whose policy a closure chooses for each request.
    ///
    /// The closure sees the head of the request and the key that `key` has extracted. With `None` the
    /// rule does not apply: the request is exempt from it. The closure is called for every request,
    /// so it should clone handles that exist, and create none.
    ///
    /// Give the policies of all plans the same name. Then a user has one log, and keeps it when the plan
    /// changes: the new quotas count the requests that were admitted under the old ones. Plans whose
    /// longest windows differ need [`Policy::keep_for`](crate::Policy::keep_for) as well, with one time for all
    /// of them. Policies of different names have separate logs.
    ///
    /// The metric `sliding_window_missing_keys_total` counts the requests without a key under the
    /// policy name `chosen`. [`Overrides`](crate::Overrides) chooses by key, from a configuration.
    ///
    /// ```
    /// use tower_sliding_window::{MemoryStore, Policy, PolicyHandle, Quota, SlidingWindowLayer, key};
    ///
    /// #[derive(Clone, Copy)]
    /// enum Plan {
    ///     Free,
    ///     Paid,
    ///     Internal,
    /// }
    ///
    /// let plan = |quota| PolicyHandle::new(Policy::new("user").quota(quota));
    /// let (free, paid) = (plan(Quota::per_minute(5)), plan(Quota::per_minute(100)));
    ///
    /// // An earlier layer puts the plan into the request.
    /// let layer = SlidingWindowLayer::by(
    ///     move |parts, _key| match parts.extensions.get::<Plan>() {
    ///         Some(Plan::Internal) => None,
    ///         Some(Plan::Paid) => Some(paid.clone()),
    ///         Some(Plan::Free) | None => Some(free.clone()),
    ///     },
    ///     key::header("x-user-id"),
    ///     MemoryStore::new(),
    /// );
    /// ```
    #[must_use]
    pub fn by(
        choose: impl Fn(&Parts, &Key) -> Option<PolicyHandle> + Send + Sync + 'static,
        key: impl KeyExtractor,
        store: impl Store,
    ) -> Self {
        Self::without_rules(store).rule_by(choose, key)
    }

    /// Adds a rule whose policy a closure chooses for each request, see
    /// [`SlidingWindowLayer::by`].
    ///
    /// ```
    /// use tower_sliding_window::{
    ///     MemoryStore, Overrides, Policy, Quota, SlidingWindowLayer, key,
    /// };
    ///
    /// let ip = Overrides::new(Policy::new("ip").quota(Quota::per_minute(100)));
    /// ip.set("192.0.2.7", "exempt".parse()?)?; // the monitoring
    ///
    /// let user = Policy::new("user").quota(Quota::per_minute(5));
    /// SlidingWindowLayer::new(user, key::header("x-user-id"), MemoryStore::new())
    ///     .rule_by(move |_, address| ip.get(address), key::peer_ip());
    /// # Ok::<(), tower_sliding_window::PolicyError>(())
    /// ```
    #[must_use]
    pub fn rule_by(
        self,
        choose: impl Fn(&Parts, &Key) -> Option<PolicyHandle> + Send + Sync + 'static,
        key: impl KeyExtractor,
    ) -> Self {
        let rule = Rule::by(Arc::new(choose), key);
        self.with(|config| config.add(rule))
    }
}
