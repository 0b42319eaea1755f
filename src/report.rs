//! What the features `metrics` and `tracing` tell. No key is ever told.
//!
//! The metrics are listed in the documentation of the crate; a test holds that list to what is
//! told here.
#![cfg_attr(
    not(all(feature = "metrics", feature = "tracing")),
    allow(unused_variables, reason = "each feature tells its own part")
)]

use crate::decision::Decision;
use crate::error::StoreError;
use crate::key::KeyError;
#[cfg(feature = "metrics")]
use crate::store::{DecidedBy, Struck};
use crate::storm::StormEvent;

#[cfg(feature = "metrics")]
fn without_the_store(policy: &'static str, outcome: &'static str) {
    metrics::counter!("sliding_window_fallback_decisions_total", "failure_policy" => policy, "outcome" => outcome)
        .increment(1);
}

/// Tells of a decision; a shadowed one was not enforced.
pub(crate) fn decision(decision: &Decision, shadow: bool) {
    #[cfg(feature = "metrics")]
    {
        let outcome = match decision {
            Decision::Admitted(_) => "admitted",
            Decision::Denied(_) if shadow => "shadow_denied",
            Decision::Denied(_) => "denied",
        };
        match decision.decided_by() {
            DecidedBy::Store => {}
            DecidedBy::LocalWindow => without_the_store("local", outcome),
            DecidedBy::FailurePolicy => without_the_store("open", outcome),
        }
        for (policy, quotas, _) in decision.usage().policies() {
            let full = quotas.iter().any(|state| state.wait_us > 0);
            if decision.is_admitted() || full {
                let policy = policy.name().to_owned();
                metrics::counter!("sliding_window_decisions_total", "policy" => policy, "outcome" => outcome)
                    .increment(1);
            }
        }
        for (partition, ban) in decision.usage().bans() {
            let policy = partition.policy.name().to_owned();
            match ban.struck {
                Struck::No => {}
                Struck::Strike => {
                    metrics::counter!("sliding_window_strikes_total", "policy" => policy)
                        .increment(1);
                }
                Struck::Banned => {
                    metrics::counter!("sliding_window_bans_total", "policy" => policy).increment(1);
                }
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
    for (partition, ban) in decision.usage().bans() {
        if ban.struck == crate::store::Struck::Banned {
            let length = std::time::Duration::from_micros(ban.wait_us);
            tracing::info!(policy = partition.policy.name(), ?length, "banned");
        }
    }
    #[cfg(feature = "tracing")]
    if let Decision::Denied(denied) = decision {
        let policies: Vec<_> = denied.violated().collect();
        tracing::debug!(?policies, retry_after = ?denied.retry_after(), shadow, "denied");
    }
}

/// Tells of a request that was refused because the store could not decide.
pub(crate) fn refused_without_the_store() {
    #[cfg(feature = "metrics")]
    without_the_store("closed", "refused");
}

/// Tells of a store that is no longer asked, for it fails.
#[cfg(feature = "redis")]
pub(crate) fn store_lost(error: &StoreError) {
    #[cfg(feature = "metrics")]
    metrics::gauge!("sliding_window_store_available").set(0.0);
    #[cfg(feature = "tracing")]
    tracing::warn!(%error, "the store does not answer: the failure policy decides");
}

/// Tells of a store that answers, for the first time or again.
#[cfg(feature = "redis")]
pub(crate) fn store_found() {
    #[cfg(feature = "metrics")]
    metrics::gauge!("sliding_window_store_available").set(1.0);
    #[cfg(feature = "tracing")]
    tracing::info!("the store answers");
}

/// Tells of requests that the store was told of later.
#[cfg(feature = "redis")]
pub(crate) fn written_back(count: u64) {
    #[cfg(feature = "metrics")]
    if count > 0 {
        metrics::counter!("sliding_window_written_back_total").increment(count);
    }
    #[cfg(feature = "tracing")]
    if count > 0 {
        tracing::debug!(count, "told the store of requests it had missed");
    }
}

/// Tells of a request that the store could not be told of.
#[cfg(feature = "redis")]
pub(crate) fn write_back_lost(error: &StoreError) {
    #[cfg(feature = "metrics")]
    metrics::counter!("sliding_window_write_back_lost_total").increment(1);
    #[cfg(feature = "tracing")]
    tracing::warn!(%error, "the store can't be told of a request it has missed");
}

/// Tells of an in-process store that holds 80 % of the logs it may.
#[cfg(feature = "memory")]
pub(crate) fn memory_nearly_full(held: usize, capacity: usize) {
    #[cfg(feature = "metrics")]
    metrics::gauge!("sliding_window_memory_nearly_full").increment(1.0);
    #[cfg(feature = "tracing")]
    tracing::warn!(
        held,
        capacity,
        "an in-process store is nearly full: at its capacity it refuses keys that have no log; put \
         a rule by address beside the rule by user, or raise the capacity"
    );
}

/// Tells of an in-process store that was nearly full and is not any more.
#[cfg(feature = "memory")]
pub(crate) fn memory_has_room() {
    #[cfg(feature = "metrics")]
    metrics::gauge!("sliding_window_memory_nearly_full").decrement(1.0);
}

/// Tells of a request that an in-process store had no room for.
#[cfg(feature = "memory")]
pub(crate) fn memory_full() {
    #[cfg(feature = "metrics")]
    metrics::counter!("sliding_window_memory_full_total").increment(1);
}

/// Tells of a sender who was muted, or muted for longer.
#[cfg(feature = "moderation")]
pub(crate) fn muted(rule: &crate::moderation::Rule) {
    #[cfg(feature = "metrics")]
    metrics::counter!("sliding_window_mutes_total", "rule" => rule.to_string()).increment(1);
    #[cfg(feature = "tracing")]
    tracing::info!(%rule, "a sender is muted");
}

/// Tells of a hook for mutes that has panicked.
#[cfg(feature = "moderation")]
pub(crate) fn mute_hook_panicked() {
    #[cfg(feature = "metrics")]
    metrics::counter!("sliding_window_mute_hook_panics_total").increment(1);
    #[cfg(feature = "tracing")]
    tracing::error!("the hook that is told of mutes has panicked");
}

/// Tells of a lost reply that may have told of a mute, and that the store is not asked about.
#[cfg(feature = "moderation")]
pub(crate) fn mute_untold() {
    #[cfg(feature = "metrics")]
    metrics::counter!("sliding_window_mutes_untold_total").increment(1);
    #[cfg(feature = "tracing")]
    tracing::warn!("the hook may not be told of a mute: the reply of the store was lost");
}

/// Tells of a message that is not judged, for too many wait to be.
#[cfg(feature = "moderation")]
pub(crate) fn message_shed() {
    #[cfg(feature = "metrics")]
    metrics::counter!("sliding_window_messages_shed_total").increment(1);
    #[cfg(feature = "tracing")]
    tracing::debug!("a message is not judged, for too many wait to be");
}

/// Tells of a storm that has started or ended.
pub(crate) fn storm_event(event: &StormEvent) {
    #[cfg(feature = "metrics")]
    {
        let (StormEvent::Started { name, .. } | StormEvent::Ended { name, .. }) = event;
        let (name, event) = (name.clone(), if event.is_start() { "start" } else { "end" });
        metrics::counter!("sliding_window_storms_total", "name" => name, "event" => event)
            .increment(1);
    }
    #[cfg(feature = "tracing")]
    match event {
        StormEvent::Started { name, count, threshold, .. } => {
            tracing::info!(name, count, %threshold, "a storm has started");
        }
        StormEvent::Ended { name, peak, lasted, .. } => {
            tracing::info!(name, peak, ?lasted, "a storm has ended");
        }
    }
}

/// Tells of an event that the hook is not told of, for too many wait.
pub(crate) fn storm_alert_shed() {
    #[cfg(feature = "metrics")]
    metrics::counter!("sliding_window_storm_alerts_shed_total").increment(1);
    #[cfg(feature = "tracing")]
    tracing::warn!("the hook is not told of a storm, for too many events wait");
}

/// Tells of a hook that has panicked.
pub(crate) fn storm_hook_panicked() {
    #[cfg(feature = "metrics")]
    metrics::counter!("sliding_window_storm_alert_panics_total").increment(1);
    #[cfg(feature = "tracing")]
    tracing::error!("the hook that is told of storms has panicked");
}

/// Tells of a request without the key of a rule.
pub(crate) fn no_key(policy: &str, error: KeyError) {
    #[cfg(feature = "metrics")]
    {
        let reason = match error {
            KeyError::Missing => "missing",
            KeyError::Invalid => "invalid",
            KeyError::NotApplicable => "not_applicable",
            KeyError::NotProvided { .. } => "not_provided",
        };
        metrics::counter!("sliding_window_missing_keys_total", "policy" => policy.to_owned(), "reason" => reason)
            .increment(1);
    }
}

/// Tells of a rule whose key the server does not provide. Called once for each rule.
pub(crate) fn key_not_provided(policy: &str, fix: &'static str) {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        policy,
        fix,
        "the server does not provide the key of a rule: its requests are answered with 500"
    );
}

/// Tells of a rule that has never found its key. Called once for each rule.
pub(crate) fn key_never_found(policy: &str, requests: u32) {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        policy,
        requests,
        "a rule has not found its key in any request: check the name that its extractor looks for, \
         and that the layer which provides it comes before this one"
    );
}

/// Tells of a request that two layers count in the same log.
pub(crate) fn counted_twice(policy: &str, first: bool) {
    #[cfg(feature = "metrics")]
    metrics::counter!("sliding_window_counted_twice_total", "policy" => policy.to_owned())
        .increment(1);
    #[cfg(feature = "tracing")]
    if first {
        tracing::warn!(
            policy,
            "two layers count a request under the same policy and key: remove one of them, or name \
             their policies differently if both are meant"
        );
    }
}

/// Tells of a store that could not decide, or of a request that no store could admit.
pub(crate) fn store_error(error: &StoreError) {
    if error.retry_after().is_some() { store_failed(error) } else { impossible(error) }
}

fn store_failed(error: &StoreError) {
    #[cfg(feature = "metrics")]
    metrics::counter!("sliding_window_store_errors_total", "kind" => error.kind()).increment(1);
    #[cfg(feature = "tracing")]
    tracing::debug!(%error, "the store could not decide");
}

/// Reports a strike that is not counted, for the table of ban records is full.
pub(crate) fn strike_lost(error: &StoreError) {
    #[cfg(feature = "metrics")]
    metrics::counter!("sliding_window_strikes_lost_total").increment(1);
    #[cfg(feature = "tracing")]
    tracing::warn!(%error, "a strike is not counted");
}

fn impossible(error: &StoreError) {
    #[cfg(feature = "metrics")]
    metrics::counter!("sliding_window_impossible_requests_total", "kind" => error.kind())
        .increment(1);
    #[cfg(feature = "tracing")]
    tracing::debug!(%error, "no store could admit the request");
}
