//! Finds layers that count one request twice in the same log.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::Extensions;

use super::config::Config;
use crate::store::Check;
use crate::telemetry;
use crate::window::Decision;

/// The admissions by layers further out, but for the one whose decision the request carries.
#[derive(Clone, Default)]
struct Outer(Vec<Arc<Check>>);

/// Reports if a layer further out has counted the request in a log of `check` already.
///
/// Called only for a request that carries the decision of another layer.
pub(super) fn look_for(
    outer: Decision,
    check: &Arc<Check>,
    extensions: &mut Extensions,
    config: &Config,
) {
    let mut counted = extensions.remove::<Outer>().unwrap_or_default();
    counted.0.extend(outer.admitted().map(|admitted| admitted.check().clone()));
    let mut ours = check.logs.iter();
    let is_counted = |log| counted.0.iter().any(|check| check.logs.contains(log));
    if let Some(twice) = ours.find(|log| is_counted(log)) {
        let first = !config.counts_twice.swap(true, Ordering::Relaxed);
        telemetry::counted_twice(twice.policy.name(), first);
    }
    extensions.insert(counted);
}
