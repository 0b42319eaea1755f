//! [`Check`]: the question put to a store.

use std::hash::{Hash, Hasher};
#[cfg(feature = "redis")]
use std::num::NonZeroU32;
use std::sync::Arc;

use smallvec::SmallVec;
use uuid::Uuid;

use super::{DecidedBy, QuotaState, Verdict};
use crate::error::StoreError;
use crate::failure::FailurePolicy;
use crate::key::Key;
use crate::policy::Policy;
use crate::report;

/// The highest weight of a request. Each place it takes is an entry of the log, written while
/// Redis does nothing else.
const HIGHEST_COST: u32 = 1024;

/// One window: a policy and the key it is kept for.
///
/// Two are equal if they are the same window: the same key under a policy of the same name,
/// whatever its quotas.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Partition {
    /// The policy, as it was when the decision began.
    pub policy: Arc<Policy>,
    /// Whose window it is.
    pub key: Key,
}

impl Partition {
    /// Names the window of a key under a policy.
    #[must_use]
    pub fn new(policy: Arc<Policy>, key: impl Into<Key>) -> Self {
        Self { policy, key: key.into() }
    }
}

impl PartialEq for Partition {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key && self.policy.shares_windows_with(&other.policy)
    }
}

impl Eq for Partition {}

impl Hash for Partition {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.policy.window_name().hash(state);
        self.key.hash(state);
    }
}

/// The question put to a store: may this request pass all of these windows?
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Check {
    /// The request's identity, under which it is counted once.
    pub id: Uuid,
    /// The request's weight: how many places it takes, 0 to 1024. Defaults to 1.
    pub cost: u32,
    /// The windows, no two the same. At least one.
    pub partitions: SmallVec<[Partition; 1]>,
    /// Whether a check of the same identity may have been counted already.
    pub repeated: bool,
    /// Whether [`QuotaState::reset_us`] is wanted.
    pub wants_reset: bool,
    /// Whether [`Verdict::at_us`] is wanted.
    pub wants_stamp: bool,
    /// What becomes of the request if the store can't decide. Defaults to `Local` with one
    /// instance.
    pub on_failure: FailurePolicy,
}

impl Check {
    /// Creates the question for a new request.
    ///
    /// A window given twice is asked for once, under the quotas of both.
    pub fn new(partitions: impl IntoIterator<Item = Partition>) -> Self {
        Self::about(partitions.into_iter().collect())
    }

    /// Creates the question about windows that are collected already.
    pub(crate) fn about(partitions: SmallVec<[Partition; 1]>) -> Self {
        Self {
            id: Uuid::new_v4(),
            cost: 1,
            partitions: if partitions.len() < 2 { partitions } else { distinct(partitions) },
            repeated: false,
            wants_reset: false,
            wants_stamp: false,
            on_failure: FailurePolicy::default(),
        }
    }

    /// Returns the length of the longest full quota of one partition, given the states of all; zero
    /// if none is full.
    pub(crate) fn longest_full_us(&self, place: usize, states: &[QuotaState]) -> u64 {
        let before = self.partitions[..place].iter().map(|it| it.policy.judged().len());
        let own = states[before.sum()..].iter();
        let quotas = self.partitions[place].policy.quotas().iter();
        let full = quotas.zip(own).filter(|(_, state)| state.wait_us > 0);
        full.map(|(quota, _)| quota.window_us()).max().unwrap_or(0)
    }

    /// Tells whether every enforced quota has room, given the states of all.
    pub(crate) fn fits(&self, mut states: &[QuotaState]) -> bool {
        let mut fits = true;
        for partition in &self.partitions {
            let (own, rest) = states.split_at(partition.policy.judged().len());
            let enforced = &own[..partition.policy.quotas().len()];
            fits &= enforced.iter().all(|state| state.wait_us == 0);
            states = rest;
        }
        fits
    }

    /// Returns the check for one of so many processes that each decide alone: none if the request
    /// takes more places than that one has.
    #[cfg(feature = "redis")]
    pub(crate) fn shared_among(self: &Arc<Self>, instances: NonZeroU32) -> Option<Arc<Self>> {
        if instances == NonZeroU32::MIN {
            return Some(self.clone());
        }
        let mut check = Self::clone(self);
        for partition in &mut check.partitions {
            partition.policy = partition.policy.shared_among(instances);
        }
        check.possible().is_ok().then(|| Arc::new(check))
    }

    /// Replaces a failure by an admission if the failure policy is `Open`.
    pub(crate) fn open_or(&self, error: StoreError) -> Result<Verdict, StoreError> {
        if error.is_impossible() {
            return Err(error);
        }
        if self.on_failure != FailurePolicy::Open {
            report::refused_without_the_store();
            return Err(error);
        }
        let judged = self.partitions.iter().flat_map(|partition| partition.policy.judged());
        let states = judged.map(|quota| QuotaState::new(quota.limit(), 0, 0)).collect();
        let mut verdict = Verdict::new(true, None, states);
        verdict.decided_by = DecidedBy::FailurePolicy;
        Ok(verdict)
    }

    /// Returns an error if the request could never pass.
    pub(crate) fn possible(&self) -> Result<(), StoreError> {
        if self.cost > HIGHEST_COST {
            return Err(StoreError::CostTooHigh { cost: self.cost, most: HIGHEST_COST });
        }
        let quotas = self.partitions.iter().flat_map(|partition| partition.policy.quotas());
        match quotas.map(|quota| quota.limit()).min() {
            Some(limit) if self.cost > limit => {
                Err(StoreError::CostAboveLimit { cost: self.cost, limit })
            }
            _ => Ok(()),
        }
    }
}

/// Makes one of windows that are given twice, with the quotas of both.
fn distinct(partitions: SmallVec<[Partition; 1]>) -> SmallVec<[Partition; 1]> {
    let mut distinct: SmallVec<[Partition; 1]> = SmallVec::new();
    for partition in partitions {
        match distinct.iter_mut().find(|other| **other == partition) {
            Some(other) => other.policy = other.policy.merged(&partition.policy),
            None => distinct.push(partition),
        }
    }
    distinct
}
