//! The rules that still apply to a muted request: those whose keys are not banned.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::window::{Check, DecidedBy, Decision, Denied, LogId, LogOutcome, Outcome};

/// What the rules whose keys are not banned say about a request that was denied by a ban.
pub(super) enum RemainingRules {
    /// There are none: every key of the request is banned.
    None,
    /// One of them has no room, as the outcome shows. The denial is by these rules.
    Denied(Denied),
    /// They have room. This check counts the request for them.
    Check(Arc<Check>),
}

/// Evaluates the rules whose keys are not banned.
pub(super) fn remaining_rules(
    check: &Check,
    denied: &Denied,
    decided_by: DecidedBy,
) -> RemainingRules {
    let mut logs: SmallVec<[LogId; 1]> = SmallVec::new();
    let mut outcomes: SmallVec<[LogOutcome; 1]> = SmallVec::new();
    for (log, outcome) in denied.usage().logs() {
        if !outcome.ban().is_banned() {
            logs.push(log.clone());
            outcomes.push(outcome.clone());
        }
    }
    if logs.is_empty() {
        return RemainingRules::None;
    }
    let remaining = Arc::new(Check { logs, ..check.clone() });
    let mut outcome = Outcome::new(false, outcomes);
    if outcome.fits() {
        return RemainingRules::Check(remaining);
    }
    (outcome.timestamp, outcome.decided_by) = (denied.timestamp(), decided_by);
    match Decision::new(remaining.clone(), outcome) {
        Decision::Denied(denied) => RemainingRules::Denied(denied),
        Decision::Admitted(_) => RemainingRules::Check(remaining),
    }
}
