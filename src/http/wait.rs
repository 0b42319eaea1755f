//! [`wait`]: how a request waits for room, if its layer lets requests wait.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http::request::Parts;

use super::config::Config;
use super::rejection::Rejection;
use crate::error::StoreError;
use crate::store::conclude;
use crate::waiting::{Bounds, NotAdmitted, denied_behind, until_admitted};
use crate::window::{Check, Decision};

/// A wait, which ends with the head of its request.
pub(super) type Wait = Pin<Box<dyn Future<Output = (Parts, WaitResult)> + Send>>;

/// How a wait has ended. There is no decision if no rule applies to the request any more.
pub(super) type WaitResult = Result<Option<Decision>, Rejection>;

/// Waits until a request is admitted, or denies it. If the future is dropped, the request does not count.
pub(super) fn wait(check: Check, head: Parts, config: Arc<Config>) -> Wait {
    Box::pin(async move {
        let waited = decide(check, &head, &config).await;
        (head, waited)
    })
}

async fn decide(check: Check, head: &Parts, config: &Config) -> WaitResult {
    // Anew, because policies may have been replaced.
    let again =
        || -> Result<Check, Option<Rejection>> { config.check(head).map_err(Some)?.ok_or(None) };
    let bounds = Bounds::new(config.max_wait, config.max_waiters);
    let first = check.clone();
    let decided = match until_admitted(&config.waiting, &config.store, first, again, bounds).await {
        Ok(admitted) => Ok(Decision::Admitted(admitted)),
        Err(NotAdmitted::Stopped(rejection)) => return rejection.map_or(Ok(None), Err),
        Err(NotAdmitted::Denied(denied) | NotAdmitted::TooManyWaiters(_, Some(denied))) => {
            Ok(Decision::Denied(denied))
        }
        Err(NotAdmitted::TooManyWaiters(_, None)) => deny_behind_others(check, config).await,
        Err(NotAdmitted::Store(error)) => Err(error),
    };
    decided.map(Some).map_err(Rejection::StoreFailed)
}

/// Denies a request behind others that wait, without a check that would overtake them.
async fn deny_behind_others(check: Check, config: &Config) -> Result<Decision, StoreError> {
    let behind = config.waiting.denials_behind(&check);
    if !behind.is_empty() {
        let denied = denied_behind(&config.waiting, &config.store, check, &behind).await;
        return denied.map(Decision::Denied);
    }
    let outcome = config.store.peek(&check).await.map(|mut outcome| {
        if outcome.admitted {
            // There is room, for those that wait.
            outcome.admitted = false;
            let state = outcome.logs_mut().iter_mut().find_map(|log| log.quotas_mut().first_mut());
            state.into_iter().for_each(|state| state.wait_us = 1);
        }
        outcome
    });
    conclude(check, outcome, false)
}
