//! The rules that a muted request is still held to: those whose keys are not banned.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::decision::{Decision, Denied};
use crate::store::{Check, DecidedBy, Partition, Verdict};

/// What a denial by a ban leaves to be decided.
pub(super) enum Rest {
    /// Nothing: every key of the request is banned.
    None,
    /// Nothing: a rule whose key is not banned has no room either. The denial is by these rules.
    Full(Denied),
    /// The check of the rules whose keys are not banned.
    Open(Arc<Check>),
}

/// Returns what a denial by a ban leaves to be decided.
pub(super) fn unbanned(check: &Check, denied: &Denied, decided_by: DecidedBy) -> Rest {
    let bans = denied.usage().bans().filter(|(_, ban)| ban.wait_us > 0);
    let banned: SmallVec<[usize; 4]> = bans.map(|(_, ban)| ban.partition).collect();
    let mut partitions: SmallVec<[Partition; 1]> = SmallVec::new();
    let (mut states, mut full) = (SmallVec::new(), false);
    for (place, (_, quotas, candidates)) in denied.usage().policies().enumerate() {
        if !banned.contains(&place) {
            partitions.push(check.partitions[place].clone());
            states.extend(quotas.iter().chain(candidates).copied());
            full |= quotas.iter().any(|state| state.wait_us > 0);
        }
    }
    if partitions.is_empty() {
        return Rest::None;
    }
    let rest = Arc::new(Check { partitions, ..check.clone() });
    if !full {
        return Rest::Open(rest);
    }
    let at_us = denied.stamp().and_then(|at| at.as_micros().try_into().ok());
    let mut verdict = Verdict::new(false, at_us, states);
    verdict.decided_by = decided_by;
    match Decision::new(rest.clone(), verdict) {
        Decision::Denied(denied) => Rest::Full(denied),
        Decision::Admitted(_) => Rest::Open(rest),
    }
}
