//! [`Policy`]: a name and quotas, all of which must hold.

#[cfg(feature = "serde")]
mod document;
mod error;
mod handle;
mod penalty;
mod policies;

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::error::or_panic;
use crate::quota::{LONGEST_WINDOW_US, Quota, Span};
use crate::telemetry::{self, PolicyLabel};
use crate::time::micros;

#[cfg(feature = "serde")]
pub(crate) use self::document::TextOrTable;
pub use self::error::{ParsePenaltyError, PolicyError};
pub use self::handle::PolicyHandle;
pub(crate) use self::penalty::LONGEST_BAN;
pub use self::penalty::Penalty;
pub use self::policies::{Policies, PolicyChange};

const LONGEST_NAME: usize = 64;
const MOST_QUOTAS: usize = 16;
/// The name of a policy without one, as in the examples of the IETF draft.
const DEFAULT_NAME: &str = "default";

pub(crate) fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    (1..=LONGEST_NAME).contains(&text.len()) && text.bytes().all(allowed)
}

/// A name and one or more quotas, all of which must hold.
///
/// The name also occurs in `RateLimit-Policy`, in the problem details and in Redis keys. It has 1 to 64
/// characters of `A-Z a-z 0-9 _ . -`. A policy made from a [`Quota`] or parsed from text is named
/// `default`.
///
/// ## Logs
///
/// A key has one log for all quotas of a policy. It keeps the entries for one length of time, the
/// retention: the longest window, unless [`Policy::keep_for`] sets a longer time. The name, the
/// retention and what the policy counts identify the logs. Policies of one store that agree in all three share
/// them, also with different quotas, such as those of plans: each counts what the others have admitted.
/// Policies of one name whose longest windows differ have separate logs, unless `keep_for` gives them the
/// same retention. Policies without a name share logs if they were made with the same quotas.
///
/// A policy that is replaced in a [`PolicyHandle`] keeps its logs as long as no new window is longer than
/// the retention.
///
/// A policy counts requests, unless [`Policy::budget`], [`Policy::byte_budget`], [`Policy::distinct`] or
/// [`Policy::in_flight`] makes it count something else.
///
/// With the feature `serde`, a configuration has a policy as a text or as a table of `name`, `quotas`,
/// `keep_for`, `counts` and `penalty`, of which only `quotas` must be there. The format must
/// describe itself, as JSON and TOML do. In [`Policies`] the name is the key of the policy. The
/// [guide](crate::docs::configuration) shows the forms.
///
/// ```
/// use tower_sliding_window::{Policy, Quota};
///
/// let policy = Policy::new("user").quota(Quota::per_second(2)).quota(Quota::per_minute(5));
/// assert_eq!(policy.to_string(), "2/1s,5/60s");
///
/// let same: Policy = "2/1s,5/60s".parse()?;
/// assert_eq!(same.name(), "default");
/// assert_eq!(same.named("user"), policy);
/// # Ok::<(), tower_sliding_window::PolicyError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
#[must_use]
pub struct Policy {
    name: PolicyLabel,
    /// The name under which ban records are kept, and the first part of the name of the logs.
    base_name: Arc<str>,
    logs: Arc<Logs>,
    /// Sorted by window and then by limit, so that equal sets are equal policies.
    quotas: SmallVec<[Quota; 2]>,
    /// What [`Policy::keep_for`] has set, or 0.
    kept_us: u64,
    penalty: Option<Arc<Penalty>>,
    counts: Counts,
}

/// What the policies that share their logs have in common.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Logs {
    name: String,
    /// How long a log keeps its entries: at least as long as the longest window. Part of the name.
    pub(crate) retention_us: u64,
}

/// What the logs of a policy count.
///
/// The method that is called last sets it, such as [`Policy::distinct`] after [`Policy::budget`]. A policy that replaces another one in a [`PolicyHandle`] or in [`Policies`]
/// counts what the first one did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Counts {
    /// Requests. Each takes its places until it has left the window. The default.
    #[default]
    Requests,
    /// Different values, such as the accounts behind an address, see [`Policy::distinct`].
    Distinct,
    /// Requests that are not over yet, see [`Policy::in_flight`].
    InFlight,
    /// The costs of requests, see [`Policy::budget`].
    Budget,
    /// The costs of requests in bytes, see [`Policy::byte_budget`].
    ByteBudget,
}

impl Counts {
    pub(crate) const fn is_budget(self) -> bool {
        matches!(self, Self::Budget | Self::ByteBudget)
    }
}

impl Policy {
    /// Creates a policy without quotas. Add them with [`Policy::quota`].
    ///
    /// # Panics
    ///
    /// If `name` is not a policy name, see [`Policy::try_new`].
    #[track_caller]
    pub fn new(name: impl AsRef<str>) -> Self {
        or_panic(Self::try_new(name))
    }

    /// Creates a policy without quotas, or returns an error if the name is not valid.
    ///
    /// # Errors
    ///
    /// [`PolicyError::Name`] unless `name` is 1 to 64 characters of `A-Z a-z 0-9 _ . -`.
    pub fn try_new(name: impl AsRef<str>) -> Result<Self, PolicyError> {
        let name = name.as_ref();
        if !is_name(name) {
            return Err(PolicyError::Name { name: name.to_owned() });
        }
        Ok(Self::with(name, name))
    }

    fn unnamed() -> Self {
        Self::with(DEFAULT_NAME, "")
    }

    fn with(name: &str, base_name: &str) -> Self {
        Self {
            name: name.into(),
            base_name: base_name.into(),
            logs: Arc::new(Logs { name: base_name.to_owned(), retention_us: 0 }),
            quotas: SmallVec::new(),
            kept_us: 0,
            penalty: None,
            counts: Counts::Requests,
        }
    }

    pub(crate) fn is_named(&self) -> bool {
        *self.name() == *self.base_name
    }

    /// Adds a quota, which must hold in addition to the others. A policy in use has at most 16.
    pub fn quota(mut self, quota: Quota) -> Self {
        let at = self.quotas.partition_point(|other| order(other) <= order(&quota));
        self.quotas.insert(at, quota);
        if !self.is_named() {
            // The colon is not valid in a name, so no named policy has this one.
            self.base_name = format!("{DEFAULT_NAME}:{self}").into();
        }
        self.lengthen_retention();
        self
    }

    /// Sets how long a log keeps its entries, if that is longer than the longest window. Defaults to the
    /// longest window, and is at most a hundred years.
    ///
    /// Policies of one name share their logs if this time is the same. So [plans](crate::docs::recipes::plans) whose windows
    /// differ count each other's requests if each keeps its log for the longest window of all plans. It also leaves
    /// room for a longer window that [`PolicyHandle::set`] may set later: the window then begins with the
    /// entries of the past. An entry takes memory for this long.
    pub fn keep_for(mut self, time: Duration) -> Self {
        self.kept_us = micros(time).min(LONGEST_WINDOW_US);
        self.lengthen_retention();
        self
    }

    /// Makes the retention as long as the policy needs, and the name of the logs that of the retention.
    fn lengthen_retention(&mut self) {
        let retention_us = self.retention_us().max(self.kept_us).max(self.longest_window_us());
        let counts = match self.counts {
            Counts::Requests => "",
            // The unit is shown to clients only.
            Counts::Budget | Counts::ByteBudget => ":budget",
            Counts::Distinct => ":distinct",
            Counts::InFlight => ":in_flight",
        };
        let name = format!("{}:{}{counts}", self.base_name, Span(retention_us));
        let logs = Logs { name, retention_us };
        if *self.logs != logs {
            self.logs = Arc::new(logs);
        }
    }

    /// Sets the penalty for keys that are denied repeatedly. Defaults to none.
    ///
    /// The store checks the ban and records strikes in the same atomic step as it decides. Like logs,
    /// bans are kept under the policy's name. [`Bans`](crate::Bans) lists them.
    pub fn penalty(mut self, penalty: Penalty) -> Self {
        self.penalty = Some(Arc::new(penalty));
        self
    }

    /// Returns the penalty for keys that are denied repeatedly.
    pub fn get_penalty(&self) -> Option<&Penalty> {
        self.penalty.as_deref()
    }

    pub(crate) fn remove_penalty(&mut self) {
        self.penalty = None;
    }

    /// Makes the policy a budget, of which a request takes as much as it costs: tokens, bytes, parts of a message. The
    /// [guide](crate::docs::token_budgets) has examples.
    ///
    /// Every other policy counts requests, whatever they cost. So a budget of tokens can stand beside a quota of
    /// requests. The cost is up to [`u32::MAX`], is one entry whatever it is, and can be settled later:
    /// [`Limiter::settle`](crate::Limiter::settle). A cost above 1 without a budget is an error.
    ///
    /// A [`RedisStore`](crate::RedisStore) asks Redis about each request of a cost other than 1, also while it denies. A quota
    /// of requests beside the budget does not bound that, for a denied request counts in neither: a layer of its own does that
    /// is added in front, such as one by address on a [`MemoryStore`](crate::MemoryStore).
    pub fn budget(self) -> Self {
        self.counting(Counts::Budget)
    }

    /// Makes the policy a [budget](Self::budget) of bytes.
    ///
    /// It decides as any budget does, and shares the logs of one of its name. `RateLimit-Policy` shows its quotas with
    /// the unit `content-bytes` of
    /// [draft 11](https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-ratelimit-headers-11).
    /// [`SlidingWindowLayer::settle_from_body`](crate::SlidingWindowLayer::settle_from_body) counts the bytes that
    /// were sent.
    pub fn byte_budget(self) -> Self {
        self.counting(Counts::ByteBudget)
    }

    /// Makes the policy count different values instead of requests, such as the accounts behind an address.
    ///
    /// A request has a value beside its key, from
    /// [`SlidingWindowLayer::rule_distinct`](crate::SlidingWindowLayer::rule_distinct),
    /// [`Limiter::check_value`](crate::Limiter::check_value) or [`LogCost::value`](crate::LogCost::value). A check
    /// without one is [`StoreError::NoValue`](crate::StoreError::NoValue).
    ///
    /// A new value takes a place, if one of the `limit` places is free. A value that is in the window takes none,
    /// however often it comes, and each admission keeps it for another window. So with `5/10m` five accounts may use an
    /// address. A sixth may once one of them has sent nothing for ten minutes.
    ///
    /// - A value takes one place whatever the cost of its request.
    ///   [`Limiter::check_cost`](crate::Limiter::check_cost) with 0 takes none.
    /// - A denied request leaves no value. One that is cancelled or settled afterwards does: it was seen. So may one
    ///   whose reply from Redis was lost and that was decided without Redis.
    /// - A value is kept as a hash.
    /// - Denials are not repeated from memory, because a value that is in the window passes. On Redis each costs a
    ///   call, however often a client invents a value: a layer by address on a [`MemoryStore`](crate::MemoryStore) in front
    ///   bounds that.
    /// - In process a log is searched for the value, so keep limits below some ten thousand.
    ///
    /// The guide has a [recipe](crate::docs::recipes::accounts_per_address), and compares the
    /// [kinds of policies](crate::docs::what_a_policy_counts).
    pub fn distinct(self) -> Self {
        self.counting(Counts::Distinct)
    }

    /// Makes the policy count requests that are not over yet: at most `limit` of a key at the same time. The guide has a
    /// [recipe](crate::docs::recipes::concurrent_requests).
    ///
    /// A [`SlidingWindowLayer`](crate::SlidingWindowLayer) gives the place of a request back when the body of the
    /// response has ended or was dropped. Jobs have a [`Permit`](crate::Permit) from
    /// [`Limiter::acquire`](crate::Limiter::acquire), and so have
    /// [WebSockets](crate::docs::recipes::concurrent_requests#websockets): the response that opens one has no body.
    ///
    /// The window of the quota is a [lease](crate::docs::recipes::concurrent_requests#the-lease), which is renewed three times
    /// within its length while the request runs. A process that dies renews nothing, and its places are free a lease later.
    ///
    /// - Nobody knows when a place comes free. A response has no `Retry-After`, and
    ///   [`Denied::has_known_wait`](crate::Denied::has_known_wait) is `false`.
    /// - A request takes one place whatever its cost. [`Limiter::check_cost`](crate::Limiter::check_cost) with 0
    ///   takes none.
    /// - Denials are not repeated from memory. On Redis each costs a call. In process a check takes time proportional to
    ///   how many run.
    /// - A lease of a few milliseconds is over before it is renewed.
    /// - [`Limiter::check`](crate::Limiter::check) alone takes a place for one lease. To keep it for longer, or to give it
    ///   back, [hold](crate::Limiter::hold) or [cancel](crate::Limiter::cancel) the admission.
    /// - If the renewals fail for a whole lease, the place is free while its request still runs.
    /// - Give the policy one quota, and policies that share a log the same window: each window is a lease of its own.
    /// - A lease never becomes shorter, because requests that run renew theirs as before: [`PolicyHandle::set`] keeps the
    ///   old one. [`Overrides`](crate::Overrides) change the limit only. A policy of another name begins anew.
    pub fn in_flight(self) -> Self {
        self.counting(Counts::InFlight)
    }

    fn counting(mut self, counts: Counts) -> Self {
        self.counts = counts;
        self.lengthen_retention();
        self
    }

    /// Returns what the policy counts.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns whether an entry that is there takes no place again and gets a new timestamp.
    pub(crate) fn refreshes(&self) -> bool {
        matches!(self.counts, Counts::Distinct | Counts::InFlight)
    }

    /// Returns the same policy under another name.
    ///
    /// # Panics
    ///
    /// If `name` is not a policy name, see [`Policy::try_new`].
    #[track_caller]
    pub fn named(self, name: impl AsRef<str>) -> Self {
        let Self { name, base_name, .. } = Self::new(name);
        let mut named = Self { name, base_name, ..self };
        named.lengthen_retention();
        named
    }

    /// Returns the policy's name.
    pub fn name(&self) -> &str {
        self.name.name()
    }

    pub(crate) fn label(&self) -> &PolicyLabel {
        &self.name
    }

    /// Returns the name under which a store keeps the policy's logs: the policy's name, its retention and what it
    /// counts, unless that is requests, such as `user:60s` and `tokens:60s:budget`.
    ///
    /// In place of a name that was not given it has the first quotas of the policy. For authors of a
    /// [`Store`](crate::store::Store).
    pub fn log_name(&self) -> &str {
        &self.logs.name
    }

    /// Returns the name under which a store keeps the policy's ban records. Policies of one name share
    /// them, whatever their retentions.
    pub(crate) fn base_name(&self) -> &str {
        &self.base_name
    }

    /// Returns how long a log keeps its entries: the longest window, or longer by [`Policy::keep_for`].
    pub fn retention(&self) -> Duration {
        Duration::from_micros(self.retention_us())
    }

    pub(crate) fn retention_us(&self) -> u64 {
        self.logs.retention_us
    }

    pub(crate) fn logs(&self) -> &Arc<Logs> {
        &self.logs
    }

    /// Returns the quotas, shortest window first.
    pub fn quotas(&self) -> &[Quota] {
        &self.quotas
    }

    /// Returns the policy that holds if and only if both policies hold. They share their logs.
    ///
    /// If both have a penalty, that of fewer strikes applies, then that of the longer bans.
    pub(crate) fn merged(self: &Arc<Self>, other: &Arc<Self>) -> Arc<Self> {
        if self == other {
            return self.clone();
        }
        let mut merged = Self::clone(self);
        for quota in other.quotas.iter().filter(|quota| !self.quotas.contains(quota)) {
            merged = merged.quota(*quota);
        }
        let penalties = self.penalty.iter().chain(&other.penalty);
        merged.penalty = penalties.min_by_key(|penalty| penalty.severity()).cloned();
        (merged.base_name, merged.logs) = (self.base_name.clone(), self.logs.clone());
        Arc::new(merged)
    }

    /// Returns the policy after [`PolicyHandle::set`].
    pub(crate) fn replaced_by(&self, mut new: Self) -> Result<Self, PolicyError> {
        if !new.is_named() {
            new.name = self.name.clone();
            new.penalty = new.penalty.or_else(|| self.penalty.clone());
        }
        if self.name != new.name {
            let (from, to) = (self.name().to_owned(), new.name().to_owned());
            return Err(PolicyError::Renamed { from, to });
        }
        Ok(self.next_version(new))
    }

    /// Returns the policy of a key with an override.
    pub(crate) fn overridden_by(&self, mut new: Self) -> Result<Self, PolicyError> {
        if let (Counts::InFlight, Some(lease)) = (self.counts, self.quotas.first()) {
            // A request that began under the override renews its lease as others count it afterwards.
            new.change_quotas(|limit, _| (limit, lease.window()));
        }
        self.replaced_by(new)
    }

    /// Returns `new` as the next version of this policy: it keeps the logs unless it needs longer ones.
    fn next_version(&self, new: Self) -> Self {
        let mut next = Self { base_name: self.base_name.clone(), counts: self.counts, ..new };
        if next.kept_us == 0 {
            next.logs = self.logs.clone();
        }
        if self.counts == Counts::InFlight {
            // Under a shorter lease a request would not be counted between two of its renewals.
            let lease = self.quotas.first().map_or(Duration::ZERO, |quota| quota.window());
            next.change_quotas(|limit, window| (limit, window.max(lease)));
        }
        next.lengthen_retention();
        next
    }

    /// Returns the policy for one of several `instances` that decide independently: each limit is
    /// divided by their number, but is at least 1.
    pub(crate) fn shared_among(&self, instances: NonZeroU32) -> Arc<Self> {
        let mut share = self.clone();
        share.change_quotas(|limit, window| ((limit / instances).max(1), window));
        // Whom the share denies may be within the quota.
        share.penalty = share.penalty.map(|penalty| Arc::new(penalty.without_strikes()));
        Arc::new(share)
    }

    /// Returns the policy for a request in flight, which runs whatever the limits and the bans have become.
    pub(crate) fn without_limits(&self) -> Arc<Self> {
        let mut policy = Self { penalty: None, ..self.clone() };
        policy.change_quotas(|_, window| (u32::MAX, window));
        Arc::new(policy)
    }

    /// Changes the limit and the window of each quota.
    fn change_quotas(&mut self, change: impl Fn(u32, Duration) -> (u32, Duration)) {
        for quota in &mut self.quotas {
            let (limit, window) = change(quota.limit(), quota.window());
            *quota = Quota::new(limit, window);
        }
        self.quotas.sort_unstable_by_key(order);
    }

    pub(crate) fn longest_window_us(&self) -> u64 {
        self.quotas.last().map_or(0, Quota::window_us)
    }

    /// Refuses a policy that limits nothing or has too many quotas. Returns the quota of the longest window.
    fn ensure_limits(&self) -> Result<Quota, PolicyError> {
        let no_quota = || PolicyError::NoQuota { name: self.name().to_owned() };
        let longest = self.quotas.last().copied().ok_or_else(no_quota)?;
        ensure_few(self.quotas.len()).map(|()| longest)
    }

    /// Refuses a policy that limits nothing or has too many quotas, and warns of a ban that nobody would notice, or that never
    /// comes.
    fn ensure_quotas(self) -> Result<Self, PolicyError> {
        let longest = self.ensure_limits()?;
        let first = self.get_penalty().and_then(|penalty| penalty.levels().first());
        if let Some(first) = first.filter(|first| **first < longest.window()) {
            telemetry::ban_too_short(self.name(), *first, longest);
        }
        let shortest_us = self.quotas.first().map_or(0, Quota::window_us);
        // An episode is at least as long as the shortest window.
        let never_come = |strikes: &Quota| {
            u64::from(strikes.limit() - 1).saturating_mul(shortest_us) >= strikes.window_us()
        };
        if let Some(strikes) = self.get_penalty().and_then(Penalty::strikes).filter(never_come) {
            telemetry::ban_impossible(self.name(), strikes, &self);
        }
        Ok(self)
    }
}

impl From<Quota> for Policy {
    fn from(quota: Quota) -> Self {
        Self::unnamed().quota(quota)
    }
}

impl fmt::Display for Policy {
    /// Writes the quotas without the name, in the form that [`Policy::from_str`] parses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, quota) in self.quotas.iter().enumerate() {
            write!(f, "{}{quota}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Policy({:?}: {self})", self.name())
    }
}

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        Ok(parse_quotas(text)?.into_iter().fold(Self::unnamed(), Self::quota))
    }
}

/// The order of the quotas of a policy.
fn order(quota: &Quota) -> impl Ord + use<> {
    (quota.window(), quota.limit())
}

fn ensure_few(quotas: usize) -> Result<(), PolicyError> {
    if quotas > MOST_QUOTAS { Err(PolicyError::TooManyQuotas { quotas }) } else { Ok(()) }
}

/// Parses quotas that are separated by commas.
fn parse_quotas(text: &str) -> Result<Vec<Quota>, PolicyError> {
    ensure_few(text.split(',').count())?;
    let quota = |(index, part): (usize, &str)| {
        let wrong = |error| PolicyError::Quota { position: index + 1, error };
        part.trim().parse().map_err(wrong)
    };
    text.split(',').enumerate().map(quota).collect()
}
