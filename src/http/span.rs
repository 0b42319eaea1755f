//! What the layer records on the span of a request.
#![cfg_attr(not(feature = "tracing"), allow(unused_variables, reason = "then nothing is recorded"))]

use crate::window::Decision;

/// Records a decision on the current span, if that has declared one of the fields.
#[cfg(feature = "tracing")]
pub(super) fn record(decision: &Decision, shadow: bool) {
    use crate::telemetry::DecisionLabel;
    use crate::window::DecidedBy;

    let span = tracing::Span::current();
    let is_ours = |field: tracing::field::Field| field.name().starts_with("rate_limit.");
    if !span.metadata().is_some_and(|span| span.fields().iter().any(is_ours)) {
        return;
    }
    let usage = decision.usage();
    let (label, policies): (_, Vec<&str>) = match decision {
        Decision::Admitted(_) => {
            (DecisionLabel::Admitted, usage.logs().map(|(log, _)| log.policy.name()).collect())
        }
        Decision::Denied(denied) if shadow => {
            (DecisionLabel::ShadowDenied, denied.violated().collect())
        }
        Decision::Denied(denied) => (DecisionLabel::Denied, denied.violated().collect()),
    };
    let decided_by = match decision.decided_by() {
        DecidedBy::Store => "store",
        DecidedBy::LocalLog => "local_log",
        DecidedBy::FailurePolicy => "failure_policy",
    };
    span.record("rate_limit.decision", label.as_str());
    span.record("rate_limit.decided_by", decided_by);
    span.record("rate_limit.policy", tracing::field::display(policies.join(",")));
    // As `i64`: tracing-opentelemetry makes a text of a `u64`.
    span.record("rate_limit.remaining", i64::from(usage.remaining()));
    if let Some(denied) = decision.denied() {
        let millis = denied.retry_after().as_nanos().div_ceil(1_000_000);
        span.record("rate_limit.retry_after_ms", i64::try_from(millis).unwrap_or(i64::MAX));
    }
}

#[cfg(not(feature = "tracing"))]
pub(super) fn record(decision: &Decision, shadow: bool) {}
