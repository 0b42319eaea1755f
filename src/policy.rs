//! [`Policy`]: a name and the quotas that must all hold.

mod handle;
mod penalty;

use std::fmt;
#[cfg(feature = "redis")]
use std::num::NonZeroU32;
use std::str::FromStr;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::quota::{ParseQuotaError, Quota};

pub use self::handle::PolicyHandle;
#[cfg(feature = "memory")]
pub(crate) use self::penalty::LONGEST_BAN;
pub use self::penalty::{ParsePenaltyError, Penalty};

/// The longest policy name, in bytes.
const LONGEST_NAME: usize = 64;
/// The name of a policy that was given none, as in the examples of the IETF draft.
const DEFAULT_NAME: &str = "default";

/// Tells whether a text may name a policy, or whatever else is kept by name.
pub(crate) fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    (1..=LONGEST_NAME).contains(&text.len()) && text.bytes().all(allowed)
}

/// A named set of quotas, all of which must hold.
///
/// The name tells one policy's windows from another's: two limiters with the same store and the
/// same policy name share their windows. Use a name for one policy only, for the log of a key is
/// kept for as long as the policy that was used last needs it. The name also stands in
/// `RateLimit-Policy`, in the problem details and in the Redis keys, so it is 1 to 64 characters of
/// `A-Z a-z 0-9 _ . -`.
///
/// A policy made from a [`Quota`] or parsed from text is named `default`. Two of those share
/// windows only if they had the same quotas when they were made.
///
/// All quotas of a policy are answered from one log, that of the longest window.
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
    name: Arc<str>,
    /// What the windows are known by: the name, or for want of one the quotas.
    log_name: Arc<str>,
    /// Shortest window first, then lowest limit, so that equal sets are equal policies.
    quotas: SmallVec<[Quota; 2]>,
    candidates: SmallVec<[Quota; 0]>,
    penalty: Option<Arc<Penalty>>,
}

impl Policy {
    /// Creates a policy without quotas yet; add them with [`Policy::quota`].
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

    /// Creates a policy without quotas yet, or says what is wrong with its name.
    ///
    /// # Errors
    ///
    /// [`PolicyError::Name`] unless `name` is 1 to 64 characters of `A-Z a-z 0-9 _ . -`.
    pub fn try_new(name: impl AsRef<str>) -> Result<Self, PolicyError> {
        let name = name.as_ref();
        if !is_name(name) {
            return Err(PolicyError::Name { name: name.to_owned() });
        }
        let name: Arc<str> = name.into();
        let (quotas, candidates) = (SmallVec::new(), SmallVec::new());
        Ok(Self { log_name: name.clone(), name, quotas, candidates, penalty: None })
    }

    fn unnamed() -> Self {
        let (quotas, candidates) = (SmallVec::new(), SmallVec::new());
        let (name, log_name) = (DEFAULT_NAME.into(), Arc::default());
        Self { name, log_name, quotas, candidates, penalty: None }
    }

    /// Tells whether the policy was given a name.
    pub(crate) fn is_named(&self) -> bool {
        self.name == self.log_name
    }

    /// Adds a quota, which must hold beside those already there.
    #[must_use]
    pub fn quota(mut self, quota: Quota) -> Self {
        let order = |quota: &Quota| (quota.window(), quota.limit());
        let at = self.quotas.partition_point(|other| order(other) <= order(&quota));
        self.quotas.insert(at, quota);
        if !self.is_named() {
            // No name that is given can have these characters.
            self.log_name = format!("{DEFAULT_NAME}:{self}").into();
        }
        self
    }

    /// Adds a quota that is reported on and not enforced.
    ///
    /// It is judged on the log of what the policy's own quotas admit:
    /// [`Usage::candidates`](crate::Usage::candidates) says of each request whether the candidate
    /// would have refused it.
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
    /// assert!(second.usage().candidates().all(|(_, _, state)| state.wait_us > 0));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn candidate(mut self, quota: Quota) -> Self {
        self.candidates.push(quota);
        self
    }

    /// Sets what becomes of keys that keep running into the quotas. Defaults to nothing.
    ///
    /// The ban is checked, and strike and ban are written, in the same step as the window. They are
    /// kept by the policy's name, as its windows are; see [`Bans`](crate::Bans) to look at them.
    #[must_use]
    pub fn penalty(mut self, penalty: Penalty) -> Self {
        self.penalty = Some(Arc::new(penalty));
        self
    }

    /// Returns what becomes of keys that keep running into the quotas.
    #[must_use]
    pub fn get_penalty(&self) -> Option<&Penalty> {
        self.penalty.as_deref()
    }

    /// Returns the same quotas under another name.
    ///
    /// # Panics
    ///
    /// If `name` is not a policy name, see [`Policy::try_new`].
    #[must_use]
    #[track_caller]
    pub fn named(self, name: impl AsRef<str>) -> Self {
        {
            let Self { name, log_name, .. } = Self::new(name);
            Self { name, log_name, ..self }
        }
    }

    /// Returns the policy's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name that a store keeps the policy's logs and ban records under.
    ///
    /// It is [`Policy::name`] if the policy was given one. A policy without a name has one here that
    /// is made from its first quotas and stays when they are replaced. For authors of a
    /// [`Store`](crate::store::Store).
    #[must_use]
    pub fn log_name(&self) -> &str {
        &self.log_name
    }

    /// Tells whether windows of the two are the same ones.
    pub(crate) fn shares_logs_with(self: &Arc<Self>, other: &Arc<Self>) -> bool {
        Arc::ptr_eq(self, other) || self.log_name == other.log_name
    }

    /// Returns the quotas, shortest window first.
    #[must_use]
    pub fn quotas(&self) -> &[Quota] {
        &self.quotas
    }

    /// Returns the quotas that are reported on and not enforced, in the order they were added.
    #[must_use]
    pub fn candidates(&self) -> &[Quota] {
        &self.candidates
    }

    /// Returns all quotas a store has to judge: those that are enforced and then the candidates.
    pub(crate) fn quotas_and_candidates(&self) -> impl ExactSizeIterator<Item = Quota> {
        let (quotas, candidates) = (&self.quotas, &self.candidates);
        let of = move |at| quotas.get(at).unwrap_or_else(|| &candidates[at - quotas.len()]);
        (0..quotas.len() + candidates.len()).map(move |at| *of(at))
    }

    /// Returns the policy that holds if, and only if, both of one name do.
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

    /// Returns the policy of one of several processes that each decide alone: each limit divided
    /// among them, but not below 1.
    #[cfg(feature = "redis")]
    pub(crate) fn shared_among(&self, instances: NonZeroU32) -> Arc<Self> {
        let mut share = self.clone();
        for quota in &mut share.quotas {
            let limit = (quota.limit() / instances).max(1);
            *quota = Quota::new(limit, quota.window());
        }
        Arc::new(share)
    }

    /// Returns how long an entry matters to any quota, in microseconds.
    pub(crate) fn longest_window_us(&self) -> u64 {
        let candidates = self.candidates.iter().map(Quota::window_us).max().unwrap_or(0);
        self.quotas.last().map_or(0, Quota::window_us).max(candidates)
    }

    /// Returns the policy if a limiter can use it.
    fn checked(self) -> Result<Self, PolicyError> {
        if self.quotas.is_empty() {
            return Err(PolicyError::NoQuota { name: self.name.as_ref().to_owned() });
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
    /// Writes the enforced quotas, without the name, as [`Policy::from_str`] reads them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, quota) in self.quotas.iter().enumerate() {
            write!(f, "{}{quota}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Policy({:?}: {self})", self.name)
    }
}

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        text.split(',').enumerate().try_fold(Self::unnamed(), |policy, (index, part)| {
            let quota = part
                .trim()
                .parse()
                .map_err(|source| PolicyError::Quota { position: index + 1, source })?;
            Ok(policy.quota(quota))
        })
    }
}

/// What is wrong with a policy.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The name is empty, too long, or has a character that a header or a key can't carry.
    #[error("{name:?} is not a policy name: use 1 to 64 characters of A-Z a-z 0-9 _ . -")]
    Name {
        /// The name as it was given.
        name: String,
    },
    /// The policy limits nothing.
    #[error("the policy {name:?} has no quota: add one with Policy::quota")]
    NoQuota {
        /// The policy's name.
        name: String,
    },
    /// Bans under the policy would not be enforced.
    #[error(
        "the policy {name:?} has no penalty, so that its bans would not be enforced: add one with \
         Policy::penalty, such as Penalty::manual()"
    )]
    NoPenalty {
        /// The policy's name.
        name: String,
    },
    /// One of the quotas can't be read.
    #[error("quota number {position}: {source}")]
    Quota {
        /// Which of the comma-separated quotas, counted from 1.
        position: usize,
        /// What is wrong with it.
        source: ParseQuotaError,
    },
    /// A handle's policy can't change its name.
    #[error(
        "the policy {from:?} can't be replaced by one named {to:?}: its history is kept by name"
    )]
    Renamed {
        /// The name of the policy in use.
        from: String,
        /// The name of the policy that was to replace it.
        to: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_ordered_by_window() {
        let policy: Policy = "100/1h, 2/1s,5/60s".parse().unwrap();
        assert_eq!(policy.to_string(), "2/1s,5/60s,100/1h");
        assert_eq!(policy.longest_window_us(), 3_600_000_000);
        assert_eq!(policy.to_string().parse::<Policy>().unwrap(), policy);
    }

    #[test]
    fn errors_say_which_quota_is_wrong() {
        let error = "2/1s,0/60s".parse::<Policy>().unwrap_err();
        assert_eq!(error.to_string(), "quota number 2: the limit is zero: it must be at least 1");
        let error = "".parse::<Policy>().unwrap_err();
        assert!(error.to_string().starts_with("quota number 1: \"\" is not a quota"));
    }

    #[test]
    fn names_fit_headers_and_keys() {
        for name in ["", "a b", "a:b", "a{b}", "a\"b", "é", &"x".repeat(65)] {
            assert!(matches!(Policy::try_new(name), Err(PolicyError::Name { .. })), "{name:?}");
        }
        assert_eq!(Policy::new("sms.channel-7_x").name(), "sms.channel-7_x");
    }
}
