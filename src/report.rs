//! What the features `metrics` and `tracing` tell of decisions. No key is ever told.
#![cfg_attr(
    not(any(feature = "metrics", feature = "tracing")),
    allow(unused_variables, reason = "nobody listens")
)]

use crate::decision::Decision;
use crate::error::StoreError;

/// Tells of a decision; a shadowed one was not enforced.
pub(crate) fn decision(decision: &Decision, shadow: bool) {
    #[cfg(feature = "metrics")]
    {
        let outcome = match decision {
            Decision::Admitted(_) => "admitted",
            Decision::Denied(_) if shadow => "shadow_denied",
            Decision::Denied(_) => "denied",
        };
        for (policy, quotas, _) in decision.usage().policies() {
            let full = quotas.iter().any(|state| state.wait_us > 0);
            if decision.is_admitted() || full {
                let policy = policy.name().to_owned();
                metrics::counter!("sliding_window_decisions_total", "policy" => policy, "outcome" => outcome)
                    .increment(1);
            }
        }
        for (policy, quota, state) in decision.usage().candidates() {
            if state.wait_us > 0 {
                let (policy, quota) = (policy.name().to_owned(), quota.to_string());
                metrics::counter!("sliding_window_candidate_denials_total", "policy" => policy, "quota" => quota)
                    .increment(1);
            }
        }
    }
    #[cfg(feature = "tracing")]
    if let Decision::Denied(denied) = decision {
        let policies: Vec<_> = denied.violated().collect();
        tracing::debug!(?policies, retry_after = ?denied.retry_after(), shadow, "denied");
    }
}

/// Tells of a store that could not decide.
pub(crate) fn store_error(error: &StoreError) {
    #[cfg(feature = "metrics")]
    metrics::counter!("sliding_window_store_errors_total", "kind" => error.kind()).increment(1);
    #[cfg(feature = "tracing")]
    tracing::debug!(%error, "the store could not decide");
}
