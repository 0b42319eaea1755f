//! What a limiter and a layer make of a store's outcome: the decision, and what is reported of it.

use std::sync::Arc;

use crate::error::StoreError;
use crate::failure::FailurePolicy;
use crate::telemetry;
use crate::window::{Check, DecidedBy, Decision, LogOutcome, Outcome, Strike};

/// Returns the decision that a check's result is, and reports both.
///
/// A denial in shadow mode is reported as such: it is not enforced.
pub(crate) fn conclude(
    check: Arc<Check>,
    result: Result<Outcome, StoreError>,
    shadow: bool,
) -> Result<Decision, StoreError> {
    let outcome = result.or_else(|error| {
        error.report();
        admit_if_open(&check, error)
    })?;
    let decision = Decision::new(check, outcome);
    report(&decision, shadow);
    Ok(decision)
}

/// Replaces a failure by an admission if the failure policy is `Open`.
pub(crate) fn admit_if_open(check: &Check, error: StoreError) -> Result<Outcome, StoreError> {
    if error.is_impossible() {
        return Err(error);
    }
    if check.on_failure != FailurePolicy::Open {
        telemetry::fallback("closed", "refused");
        return Err(error);
    }
    let mut outcome =
        Outcome::new(true, check.logs.iter().map(|log| LogOutcome::empty(&log.policy)));
    outcome.decided_by = DecidedBy::FailurePolicy;
    Ok(outcome)
}

fn report(decision: &Decision, shadow: bool) {
    if !telemetry::IS_ON {
        return;
    }
    let outcome = match decision {
        Decision::Admitted(_) => "admitted",
        Decision::Denied(_) if shadow => "shadow_denied",
        Decision::Denied(_) => "denied",
    };
    match decision.decided_by() {
        DecidedBy::Store => {}
        DecidedBy::LocalLog => telemetry::fallback("local", outcome),
        DecidedBy::FailurePolicy => telemetry::fallback("open", outcome),
    }
    for (log, of_log) in decision.usage().logs() {
        let policy = log.policy.name();
        if decision.is_admitted() || of_log.is_full() {
            telemetry::decision(policy, outcome);
        }
        match of_log.ban().strike() {
            Strike::None => {}
            Strike::Counted => telemetry::strike(policy),
            Strike::Banned => telemetry::banned(policy, of_log.ban().remaining()),
        }
        for (quota, state) in log.policy.candidates().iter().zip(of_log.candidates()) {
            if state.is_full() {
                telemetry::candidate_denial(policy, quota);
            }
        }
    }
    if let Decision::Denied(denied) = decision {
        telemetry::denied(|| denied.violated().collect(), denied.retry_after(), shadow);
    }
}
