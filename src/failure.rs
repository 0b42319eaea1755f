//! [`FailurePolicy`]: what becomes of a request when the store can't decide.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

/// What becomes of a request when the store can't decide.
///
/// Under each of them a process keeps a log of what Redis has admitted for it. If Redis loses its data, the process
/// writes that back before Redis decides again.
///
/// As text: `local`, `local:3`, `open` or `closed`.
///
/// ```
/// use tower_sliding_window::FailurePolicy;
///
/// let policy: FailurePolicy = "local:3".parse()?;
/// assert_eq!(policy, FailurePolicy::local(3));
/// assert_eq!(FailurePolicy::default().to_string(), "local");
/// # Ok::<(), tower_sliding_window::ParseFailurePolicyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailurePolicy {
    /// A log in this process decides, at each quota's limit divided by the number of instances.
    ///
    /// The default is one instance: in an outage each of N servers admits the whole limit. Pass their number to
    /// [`FailurePolicy::local`] to divide it.
    ///
    /// The local log holds what this process has admitted before, and its own admissions are
    /// written back to the store later. So with one instance no key gets more than the quota. With
    /// several instances each one may admit its share on top of what the others have admitted before.
    /// If each is told their number, that is together less than twice the limit in one window, unless there
    /// are more instances than the limit has places. With 3 instances a limit of 5 is 1 for each. A request
    /// whose cost is above the share is refused as with `Closed`. A denial for want of a share can name too long a wait: as soon as Redis replies
    /// again, the whole quota counts. A process that has just started knows no earlier admissions. If a process ends
    /// before the write-back, the others never learn what it admitted.
    ///
    /// Only [`RedisStore`](crate::RedisStore) has local logs. When any other store fails, such as a
    /// [`MemoryStore`](crate::MemoryStore) at its capacity, `Local` acts as `Closed`.
    Local {
        /// The number of processes that share the store. A share is rounded down, and is at least
        /// 1.
        instances: NonZeroU32,
    },
    /// The request is admitted and not counted, unless Redis has counted it and its reply was lost.
    Open,
    /// The request is refused: with a 503 and `Retry-After` by a layer, with an error by a
    /// [`Limiter`](crate::Limiter).
    Closed,
}

impl FailurePolicy {
    /// Creates the policy `Local` for a number of instances.
    ///
    /// # Panics
    ///
    /// If `instances` is zero.
    #[track_caller]
    pub const fn local(instances: u32) -> Self {
        match NonZeroU32::new(instances) {
            Some(instances) => Self::Local { instances },
            None => panic!("`instances` is zero: it must be at least 1"),
        }
    }
}

impl Default for FailurePolicy {
    /// Returns `Local` with one instance.
    fn default() -> Self {
        Self::local(1)
    }
}

impl fmt::Display for FailurePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local { instances: NonZeroU32::MIN } => f.write_str("local"),
            Self::Local { instances } => write!(f, "local:{instances}"),
            Self::Open => f.write_str("open"),
            Self::Closed => f.write_str("closed"),
        }
    }
}

impl FromStr for FailurePolicy {
    type Err = ParseFailurePolicyError;

    fn from_str(text: &str) -> Result<Self, ParseFailurePolicyError> {
        match (text, text.strip_prefix("local:")) {
            ("local", _) => Ok(Self::default()),
            ("open", _) => Ok(Self::Open),
            ("closed", _) => Ok(Self::Closed),
            (_, Some(number)) => match number.parse() {
                Ok(instances) => Ok(Self::Local { instances }),
                Err(_) => Err(ParseFailurePolicyError::Instances { text: number.to_owned() }),
            },
            _ => Err(ParseFailurePolicyError::Unknown { text: text.to_owned() }),
        }
    }
}

/// Why a text is not a [`FailurePolicy`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseFailurePolicyError {
    /// The text does not name a policy.
    #[error("{text:?} is not a failure policy: write local, local:INSTANCES, open or closed")]
    Unknown {
        /// The text.
        text: String,
    },
    /// The part after `local:` is not a number of instances.
    #[error("{text:?} is not a number of instances: write 1 to 4294967295, as in local:3")]
    Instances {
        /// The part after `local:`.
        text: String,
    },
}
