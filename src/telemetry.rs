//! The metrics and events of the features `metrics` and `tracing`. They contain names and numbers, never
//! a key.
//!
//! `src/docs/watching.md` lists the metrics. A test compares that list with this file.

#![cfg_attr(
    not(all(feature = "metrics", feature = "tracing")),
    allow(unused_variables, reason = "each feature reports its own part")
)]

macro_rules! event {
    ($level:ident, $($fields:tt)*) => {
        #[cfg(feature = "tracing")]
        tracing::$level!($($fields)*);
    };
}

#[cfg(feature = "metrics")]
mod describe;
mod fill;
mod policy_label;

use std::fmt::Display;
use std::time::Duration;

use self::fill::LOST_CONNECTIONS;
pub(crate) use self::fill::{Fill, JOURNAL, MEMORY};
pub(crate) use self::policy_label::PolicyLabel;

pub(crate) const IS_ON: bool = cfg!(any(feature = "metrics", feature = "tracing"));

macro_rules! count {
    ($name:literal $(, $label:literal => $value:expr)*) => {
        count!($name $(, $label => $value)*; 1)
    };
    ($name:literal $(, $label:literal => $value:expr)*; $by:expr) => {
        #[cfg(feature = "metrics")]
        {
            describe::to_present();
            metrics::counter!($name $(, $label => $value)*).increment($by);
        }
    };
}

macro_rules! record {
    ($name:literal $(, $label:literal => $value:expr)*; $measured:expr) => {
        #[cfg(feature = "metrics")]
        {
            describe::to_present();
            metrics::histogram!($name $(, $label => $value)*).record($measured);
        }
    };
}

/// A decision, as the label of a counter.
#[derive(Clone, Copy)]
pub(crate) enum DecisionLabel {
    Admitted,
    Denied,
    ShadowDenied,
}

impl DecisionLabel {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Denied => "denied",
            Self::ShadowDenied => "shadow_denied",
        }
    }
}

pub(crate) fn decision(policy: &PolicyLabel, decision: DecisionLabel) {
    policy.count(decision);
}

/// Reports a denial. `policies` and `retry_after` are called only if the event is enabled.
pub(crate) fn denied<'a>(
    policies: impl Fn() -> Vec<&'a str>,
    retry_after: impl Fn() -> Duration,
    shadow: bool,
) {
    event!(debug, policies = ?policies(), retry_after = ?retry_after(), shadow, "denied");
}

pub(crate) fn fallback(failure_policy: &'static str, outcome: &'static str) {
    count!(
        "sliding_window_fallback_decisions_total",
        "failure_policy" => failure_policy, "outcome" => outcome
    );
}

pub(crate) fn strike(policy: &PolicyLabel) {
    count!("sliding_window_strikes_total", "policy" => policy.name().clone());
}

pub(crate) fn banned(policy: &str, length: Duration) {
    count!("sliding_window_bans_total", "policy" => policy.to_owned());
    event!(info, policy, ?length, "banned");
}

pub(crate) fn strikes_lost(strikes: u64, error: impl Display) {
    count!("sliding_window_strikes_lost_total"; strikes);
    event!(warn, strikes, %error, "strikes are not counted");
}

pub(crate) fn store_error(kind: &'static str, error: impl Display) {
    count!("sliding_window_store_errors_total", "kind" => kind);
    event!(debug, %error, "the store could not decide");
}

pub(crate) fn mistake(kind: &'static str, error: impl Display) {
    count!("sliding_window_impossible_requests_total", "kind" => kind);
    event!(debug, %error, "no store could admit the request");
}

/// Warns of requests that no store can ever admit. Called once for each layer or limiter.
pub(crate) fn never_passes(error: impl Display) {
    event!(warn, %error, "no such request ever passes");
}

/// Reports that a connection is lost, and whether that is new.
pub(crate) fn store_lost(error: impl Display, is_new: bool) {
    LOST_CONNECTIONS.change(is_new.into());
    event!(warn, %error, "the store does not answer: the failure policy decides");
}

/// Warns of a Redis that replies with an error. A connection that works hides it from `sliding_window_store_available`.
pub(crate) fn refused(code: &str) {
    event!(
        warn,
        code,
        "Redis refuses checks, and the failure policy decides: for OOM its memory is full, for NOPERM its user lacks a \
         right (ACL LOG), and for others see its log"
    );
}

/// Warns of a Redis that has more to do than it can. It is connected, so nothing else shows it.
pub(crate) fn overloaded() {
    event!(
        warn,
        "Redis is overloaded: checks are not decided in time, and are refused unless their failure policy is `Open`"
    );
}

/// Reports that a connection is there again, or not needed any more.
pub(crate) fn connection_found() {
    LOST_CONNECTIONS.change(-1);
}

pub(crate) fn store_found() {
    LOST_CONNECTIONS.change(0);
    event!(info, "the store answers");
}

/// Warns of a server that may drop live logs. Called for each connection.
pub(crate) fn may_evict(maxmemory_policy: &str) {
    event!(
        warn,
        maxmemory_policy,
        "Redis may evict logs when its memory is full, and then admits too many: set `maxmemory-policy noeviction`"
    );
}

/// Warns of a server that was named, or has the address of a node, and is part of another Cluster.
pub(crate) fn other_cluster() {
    event!(
        warn,
        "a server is of another Redis Cluster and is not used: name the servers of one Cluster"
    );
}

pub(crate) fn written_back(requests: u64) {
    if requests > 0 {
        count!("sliding_window_written_back_total"; requests);
        event!(debug, requests, "wrote requests back to the store");
    }
}

pub(crate) fn write_back_lost(requests: u64) {
    count!("sliding_window_write_back_lost_total"; requests);
    event!(debug, requests, "requests have expired before they could be written back to the store");
}

/// Reports a wait of a caller that has ended.
pub(crate) fn waited(policy: &PolicyLabel, outcome: &'static str, wait: Duration) {
    record!(
        "sliding_window_wait_duration_seconds",
        "policy" => policy.name().clone(), "outcome" => outcome; wait
    );
}

/// Reports a script call that has ended, in an error of some kind or with a reply.
pub(crate) fn script_called(script: &'static str, time: Duration, error: Option<&'static str>) {
    record!(
        "sliding_window_store_call_duration_seconds",
        "script" => script, "outcome" => error.unwrap_or("ok"); time
    );
}

/// Reports how many requests share a script call.
pub(crate) fn script_shared(script: &'static str, requests: usize) {
    record!("sliding_window_batch_size", "script" => script; requests as f64);
}

pub(crate) fn memory_full() {
    count!("sliding_window_memory_full_total");
}

pub(crate) fn no_key(policy: &PolicyLabel, reason: &'static str) {
    count!(
        "sliding_window_missing_keys_total", "policy" => policy.name().clone(), "reason" => reason
    );
    event!(debug, policy = &**policy.name(), reason, "a request has no key for a rule");
}

/// Reports a rule whose key the server does not provide. Called once for each rule.
pub(crate) fn key_not_provided(policy: &str, fix: &'static str) {
    event!(
        warn,
        policy,
        fix,
        "the server does not provide the key of a rule: the responses are 500"
    );
}

/// Reports a rule that has never found its key. Called once for each rule.
pub(crate) fn key_never_found(policy: &str, requests: u32) {
    event!(
        warn,
        policy,
        requests,
        "a rule has not found its key in any request: check the name in its extractor, and that the \
         layer that provides the key runs before this one"
    );
}

/// Reports requests that seem to come from a proxy that is not trusted. Called once for each extractor.
pub(crate) fn proxy_not_trusted(requests: u32) {
    event!(
        warn,
        requests,
        "requests have X-Forwarded-For or Forwarded, and none came from a trusted proxy: clients behind \
         a proxy share one log unless `key::client_ip` trusts the address from which the proxy connects"
    );
}

/// Warns of a penalty under which the log of a key can be full for longer than the key is banned.
pub(crate) fn ban_too_short(policy: &str, ban: Duration, quota: impl Display) {
    event!(
        warn,
        policy,
        ?ban,
        %quota,
        "the first ban of a penalty is shorter than a window of its policy: when it ends, the log may still be \
         full, and the next denial is another strike"
    );
}

/// Warns of a penalty whose strikes can't come within its time.
pub(crate) fn ban_impossible(policy: &str, strikes: impl Display, quotas: impl Display) {
    event!(
        warn,
        policy,
        %strikes,
        %quotas,
        "a penalty never brings a ban: a key gets one strike in a window, however often it is denied, and so many \
         windows take longer than the strikes count: ask for fewer strikes, or for a longer time"
    );
}
