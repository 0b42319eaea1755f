//! Turns the result of a check into a decision, and reports it.

use crate::error::StoreError;
use crate::failure::FailurePolicy;
use crate::telemetry::{self, DecisionLabel};
use crate::window::{Check, DecidedBy, Decision, LogOutcome, Outcome, Strike};

/// Returns the decision that follows from the result of a check, and reports both.
///
/// In shadow mode a denial is reported as one that is not enforced.
pub(crate) fn conclude(
    check: Check,
    result: Result<Outcome, StoreError>,
    shadow: bool,
) -> Result<Decision, StoreError> {
    let decision = match result {
        Ok(outcome) => Decision::new(check, outcome),
        Err(error) => {
            error.report();
            let outcome = admit_if_open(&check, error).inspect_err(|error| {
                if !error.is_mistake() {
                    let is_closed = check.on_failure == FailurePolicy::Closed;
                    telemetry::fallback(if is_closed { "closed" } else { "local" }, "refused");
                }
            })?;
            Decision::new(check, outcome)
        }
    };
    report(&decision, shadow);
    Ok(decision)
}

/// Replaces an error of the store by an admission if the failure policy is `Open`.
pub(crate) fn admit_if_open(check: &Check, error: StoreError) -> Result<Outcome, StoreError> {
    if error.is_mistake() || check.on_failure != FailurePolicy::Open {
        return Err(error);
    }
    let logs = check.logs.iter().map(|log| LogOutcome::empty(&log.policy));
    let mut outcome = Outcome::new(true, logs);
    outcome.decided_by = DecidedBy::FailurePolicy;
    Ok(outcome)
}

/// Reports a decision to metrics and tracing.
pub(crate) fn report(decision: &Decision, shadow: bool) {
    if !telemetry::IS_ON {
        return;
    }
    let outcome = match decision {
        Decision::Admitted(_) => DecisionLabel::Admitted,
        Decision::Denied(_) if shadow => DecisionLabel::ShadowDenied,
        Decision::Denied(_) => DecisionLabel::Denied,
    };
    match decision.decided_by() {
        DecidedBy::Store => {}
        DecidedBy::LocalLog => telemetry::fallback("local", outcome.as_str()),
        DecidedBy::FailurePolicy => telemetry::fallback("open", outcome.as_str()),
    }
    let is_admitted = decision.is_admitted();
    for (log, log_outcome) in decision.usage().logs() {
        if is_admitted || log_outcome.denies() {
            telemetry::decision(log.policy.label(), outcome);
        }
        match log_outcome.ban().strike() {
            Strike::None => {}
            Strike::Counted => telemetry::strike(log.policy.label()),
            Strike::Banned => telemetry::banned(log.policy.name(), log_outcome.ban().remaining()),
        }
    }
    if let Decision::Denied(denied) = decision {
        telemetry::denied(|| denied.violated().collect(), || denied.retry_after(), shadow);
    }
}
