//! The rules that a muted request is still held to: those whose keys are not banned.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::window::{Check, DecidedBy, Decision, Denied, LogId, LogOutcome, Outcome};

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
    let mut logs: SmallVec<[LogId; 1]> = SmallVec::new();
    let mut outcomes: SmallVec<[LogOutcome; 1]> = SmallVec::new();
    for (log, outcome) in denied.usage().logs() {
        if !outcome.ban().is_banned() {
            logs.push(log.clone());
            outcomes.push(outcome.clone());
        }
    }
    if logs.is_empty() {
        return Rest::None;
    }
    let rest = Arc::new(Check { logs, ..check.clone() });
    let mut outcome = Outcome::new(false, outcomes);
    if outcome.fits() {
        return Rest::Open(rest);
    }
    (outcome.timestamp, outcome.decided_by) = (denied.timestamp(), decided_by);
    match Decision::new(rest.clone(), outcome) {
        Decision::Denied(denied) => Rest::Full(denied),
        Decision::Admitted(_) => Rest::Open(rest),
    }
}
