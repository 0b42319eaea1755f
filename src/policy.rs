//! [`Policy`]: a name and quotas, all of which must hold.

#[cfg(feature = "serde")]
mod document;
mod error;
mod handle;
mod interned;
mod kept_texts;
mod log_name;
mod penalty;
mod policies;
#[cfg(test)]
mod tests;

use std::fmt;
#[cfg(feature = "redis")]
use std::num::NonZeroU32;
use std::str::FromStr;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::quota::Quota;
use crate::telemetry::PolicyLabel;

pub use self::error::{ParsePenaltyError, PolicyError};
pub(crate) use self::handle::HandleId;
pub use self::handle::PolicyHandle;
use self::kept_texts::KeptTexts;
pub(crate) use self::kept_texts::{FieldTexts, QuotaTexts, VISIBLE, field};
use self::log_name::LogName;
pub(crate) use self::penalty::LONGEST_BAN;
pub use self::penalty::Penalty;
pub use self::policies::{Policies, PolicyChange};

const LONGEST_NAME: usize = 64;
/// The name of a policy without one, as in the examples of the IETF draft.
const DEFAULT_NAME: &str = "default";

pub(crate) fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    (1..=LONGEST_NAME).contains(&text.len()) && text.bytes().all(allowed)
}

/// A name and one or more quotas, all of which must hold.
///
/// The name identifies the logs: two limiters with the same store and the same policy name share
/// them. So do policies of one name with different quotas, such as those of plans: each counts what the
/// others have admitted, and a log is kept for the longest of their windows that was in use. The name
/// also occurs in `RateLimit-Policy`, in the problem details and in Redis keys. It has 1 to 64
/// characters of `A-Z a-z 0-9 _ . -`.
///
/// A policy made from a [`Quota`] or parsed from text is named `default`. Two such policies share logs
/// if they were made with the same quotas, and also after their quotas were replaced.
///
/// A key has one log for all quotas of a policy, which covers the longest window.
///
/// With the feature `serde`, a configuration has a policy as a text or as a table of `name`, `quotas`,
/// `candidates` and `penalty`, of which only `quotas` must be there. The format must describe itself, as
/// JSON and TOML do. In [`Policies`], which shows the forms, the name is the key of the policy.
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
pub struct Policy {
    name: Arc<PolicyLabel>,
    log_name: LogName,
    /// Sorted by window and then by limit, so that equal sets are equal policies.
    quotas: SmallVec<[Quota; 2]>,
    candidates: SmallVec<[Quota; 0]>,
    penalty: Option<Arc<Penalty>>,
    handle: HandleId,
    texts: KeptTexts,
}

impl Policy {
    /// Creates a policy without quotas. Add them with [`Policy::quota`].
    ///
    /// # Panics
    ///
    /// If `name` is not a policy name, see [`Policy::try_new`].
    #[must_use]
    #[track_caller]
    pub fn new(name: impl AsRef<str>) -> Self {
        match Self::try_new(name) {
            Ok(policy) => policy,
            Err(error) => panic!("{error}"),
        }
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

    fn with(name: &str, log_name: &str) -> Self {
        Self {
            name: Arc::new(name.into()),
            log_name: log_name.into(),
            quotas: SmallVec::new(),
            candidates: SmallVec::new(),
            penalty: None,
            handle: HandleId::default(),
            texts: KeptTexts::default(),
        }
    }

    pub(crate) fn is_named(&self) -> bool {
        **self.name == *self.log_name
    }

    /// Adds a quota, which must hold in addition to the others.
    #[must_use]
    pub fn quota(mut self, quota: Quota) -> Self {
        let order = |quota: &Quota| (quota.window(), quota.limit());
        let at = self.quotas.partition_point(|other| order(other) <= order(&quota));
        self.quotas.insert(at, quota);
        self.texts = KeptTexts::default();
        if !self.is_named() {
            // The colon is not valid in a name, so no named policy has this log name.
            self.log_name = format!("{DEFAULT_NAME}:{self}").into();
        }
        self
    }

    /// Adds a candidate: a quota that is reported but not enforced.
    ///
    /// The candidate is evaluated on the log, which has the requests that the enforced quotas admit.
    /// [`Usage::candidates`](crate::Usage::candidates) returns for each request whether the candidate
    /// would have denied it.
    ///
    /// If clients send more than the candidate allows all the time, these denials are an upper bound:
    /// the log also has the requests that an enforced candidate would have kept out. The
    /// [guide](crate::docs::why_denied#try-a-quota-before-you-enforce-it) shows how to get the exact number.
    ///
    /// ```
    /// use tower_sliding_window::{Limiter, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_sliding_window::StoreError> {
    /// let policy = Policy::new("user").quota(Quota::per_minute(100)).candidate(Quota::per_minute(1));
    /// let limiter = Limiter::new(policy, MemoryStore::new());
    /// let _ = limiter.check("alice").await?;
    /// let second = limiter.check("alice").await?;
    /// assert!(second.is_admitted());
    /// assert!(second.usage().candidates().all(|(_, _, state)| state.is_full()));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn candidate(mut self, quota: Quota) -> Self {
        self.candidates.push(quota);
        self
    }

    /// Sets the penalty for keys that are denied repeatedly. Defaults to none.
    ///
    /// The store checks the ban and records strikes in the same atomic step as it decides. Like logs,
    /// bans are kept under the policy's name. [`Bans`](crate::Bans) lists them.
    #[must_use]
    pub fn penalty(mut self, penalty: Penalty) -> Self {
        self.penalty = Some(Arc::new(penalty));
        self
    }

    /// Returns the penalty for keys that are denied repeatedly.
    #[must_use]
    pub fn get_penalty(&self) -> Option<&Penalty> {
        self.penalty.as_deref()
    }

    pub(crate) fn remove_penalty(&mut self) {
        self.penalty = None;
    }

    /// Returns the same policy under another name.
    ///
    /// # Panics
    ///
    /// If `name` is not a policy name, see [`Policy::try_new`].
    #[must_use]
    #[track_caller]
    pub fn named(self, name: impl AsRef<str>) -> Self {
        let Self { name, log_name, texts, .. } = Self::new(name);
        Self { name, log_name, texts, ..self }
    }

    /// Returns the policy's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn texts(&self) -> &KeptTexts {
        &self.texts
    }

    pub(crate) fn label(&self) -> &PolicyLabel {
        &self.name
    }

    /// Returns the name under which a store keeps the policy's logs and ban records.
    ///
    /// It is [`Policy::name`] if the policy was given one. Otherwise it is made from the first quotas
    /// of the policy, and stays the same when they are replaced. For authors of a
    /// [`Store`](crate::store::Store).
    #[must_use]
    pub fn log_name(&self) -> &str {
        &self.log_name
    }

    /// Returns the hash of the log name.
    pub(crate) fn log_name_hash(&self) -> u64 {
        self.log_name.known_hash()
    }

    pub(crate) fn shares_logs_with(self: &Arc<Self>, other: &Arc<Self>) -> bool {
        Arc::ptr_eq(self, other) || self.log_name == other.log_name
    }

    /// Returns the quotas, shortest window first.
    #[must_use]
    pub fn quotas(&self) -> &[Quota] {
        &self.quotas
    }

    /// Returns the candidates, in the order in which they were added. They are reported but not
    /// enforced.
    #[must_use]
    pub fn candidates(&self) -> &[Quota] {
        &self.candidates
    }

    pub(crate) fn quotas_and_candidates(&self) -> impl ExactSizeIterator<Item = Quota> {
        let (quotas, candidates) = (&self.quotas, &self.candidates);
        let quota = move |at| quotas.get(at).unwrap_or_else(|| &candidates[at - quotas.len()]);
        (0..quotas.len() + candidates.len()).map(move |at| *quota(at))
    }

    /// Returns the policy that holds if and only if both policies hold. They have the same log name.
    pub(crate) fn merged(self: &Arc<Self>, other: &Arc<Self>) -> Arc<Self> {
        if self == other {
            return self.clone();
        }
        let mut merged = Self::clone(self);
        for quota in other.quotas.iter().filter(|quota| !self.quotas.contains(quota)) {
            merged = merged.quota(*quota);
        }
        merged.candidates.extend(other.candidates.iter().copied());
        merged.penalty = self.penalty.clone().or_else(|| other.penalty.clone());
        merged.log_name = self.log_name.clone();
        Arc::new(merged)
    }

    /// Returns the policy for one of several `instances` that decide independently: each limit is
    /// divided by their number, but is at least 1.
    #[cfg(feature = "redis")]
    pub(crate) fn shared_among(&self, instances: NonZeroU32) -> Arc<Self> {
        let mut share = self.clone();
        for quota in &mut share.quotas {
            let limit = (quota.limit() / instances).max(1);
            *quota = Quota::new(limit, quota.window());
        }
        Arc::new(share)
    }

    #[cfg(feature = "memory")]
    pub(crate) fn handle(&self) -> HandleId {
        self.handle
    }

    pub(crate) fn longest_window_us(&self) -> u64 {
        let candidates = self.candidates.iter().map(Quota::window_us).max().unwrap_or(0);
        self.quotas.last().map_or(0, Quota::window_us).max(candidates)
    }

    fn ensure_quota(self) -> Result<Self, PolicyError> {
        if self.quotas.is_empty() {
            return Err(PolicyError::NoQuota { name: self.name().to_owned() });
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
    /// Writes the enforced quotas without the name, in the form that [`Policy::from_str`] parses.
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

/// Parses quotas that are separated by commas.
fn parse_quotas(text: &str) -> Result<Vec<Quota>, PolicyError> {
    let quota = |(index, part): (usize, &str)| {
        let wrong = |source| PolicyError::Quota { position: index + 1, source };
        part.trim().parse().map_err(wrong)
    };
    text.split(',').enumerate().map(quota).collect()
}
