//! What the layer records on the span of a request.
#![cfg_attr(not(feature = "tracing"), allow(unused_variables, reason = "then nothing is recorded"))]

#[cfg(feature = "tracing")]
use crate::telemetry::{DecisionLabel, SpanFields, record_on_span};
#[cfg(feature = "tracing")]
use crate::window::DecidedBy;
use crate::window::Decision;

/// Records a decision on the current span, if that has declared the fields.
pub(super) fn record(decision: &Decision, shadow: bool) {
    #[cfg(feature = "tracing")]
    record_on_span(|| fields(decision, shadow));
}

#[cfg(feature = "tracing")]
fn fields(decision: &Decision, shadow: bool) -> SpanFields {
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
    SpanFields {
        decision: label.as_str(),
        decided_by: match decision.decided_by() {
            DecidedBy::Store => "store",
            DecidedBy::LocalLog => "local_log",
            DecidedBy::FailurePolicy => "failure_policy",
        },
        policy: policies.join(","),
        remaining: usage.remaining(),
        retry_after: decision.denied().map(|denied| denied.retry_after()),
    }
}
