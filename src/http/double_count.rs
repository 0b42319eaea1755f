//! Detects layers that count one request twice in the same log.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::Extensions;

use super::config::Config;
use crate::store::{Check, LogId};
use crate::telemetry;
use crate::window::Decision;

/// The admitted checks of outer layers, except the one whose decision is in the extensions.
#[derive(Clone, Default)]
struct OuterChecks(Vec<Arc<Check>>);

/// Reports a request that an outer layer has already counted in a log of `check`.
///
/// Called only if the extensions held the decision of another layer.
pub(super) fn report_double_count(
    outer: Decision,
    check: &Arc<Check>,
    extensions: &mut Extensions,
    config: &Config,
) {
    let mut counted = extensions.remove::<OuterChecks>().unwrap_or_default();
    counted.0.extend(outer.admitted().map(|admitted| admitted.check().clone()));
    let is_counted = |log: &&LogId| counted.0.iter().any(|check| check.logs.contains(log));
    if let Some(log) = check.logs.iter().find(is_counted) {
        let is_first = !config.double_count_reported.swap(true, Ordering::Relaxed);
        telemetry::counted_twice(log.policy.name(), is_first);
    }
    extensions.insert(counted);
}
