//! [`wait`]: how a request waits for room, if its layer lets requests wait.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http::request::Parts;

use super::config::Config;
use super::rejection::Rejection;
use crate::store::conclude;
use crate::waiting::{Bounds, Ended, denied_behind, until_admitted};
use crate::window::{Check, Decision};

/// A wait, which ends with the head of its request.
pub(super) type Wait = Pin<Box<dyn Future<Output = (Parts, Waited)> + Send>>;

/// How a wait has ended.
pub(super) enum Waited {
    Decided(Decision),
    Rejected(Rejection),
    /// No rule applies to the request any more.
    NotLimited,
}

/// Why a request that waits sends no further check.
enum Stop {
    Rejected(Rejection),
    NotLimited,
}

/// Waits until a request is admitted, or denies it. If the future is dropped, the request does not count.
pub(super) fn wait(check: Check, head: Parts, config: Arc<Config>) -> Wait {
    Box::pin(async move {
        let waited = decide(check, &head, &config).await;
        (head, waited)
    })
}

async fn decide(check: Check, head: &Parts, config: &Config) -> Waited {
    // Anew, because policies may have been replaced.
    let again = || match config.check(head) {
        Ok(Some(check)) => Ok(check),
        Ok(None) => Err(Stop::NotLimited),
        Err(rejection) => Err(Stop::Rejected(rejection)),
    };
    let bounds = Bounds::new(config.max_wait, config.max_waiters);
    let first = check.clone();
    match until_admitted(&config.waiting, &config.store, first, again, bounds).await {
        Ok(admitted) => Waited::Decided(Decision::Admitted(admitted)),
        Err(Ended::Stopped(Stop::NotLimited)) => Waited::NotLimited,
        Err(Ended::Stopped(Stop::Rejected(rejection))) => Waited::Rejected(rejection),
        Err(Ended::Denied(denied) | Ended::TooManyWaiters(_, Some(denied))) => {
            Waited::Decided(Decision::Denied(denied))
        }
        Err(Ended::TooManyWaiters(_, None)) => deny_behind_others(check, config).await,
        Err(Ended::Store(error)) => Waited::Rejected(Rejection::StoreFailed(error)),
    }
}

/// Denies a request behind others that wait, without a check that would overtake them.
async fn deny_behind_others(check: Check, config: &Config) -> Waited {
    if let Some((index, behind)) = config.waiting.denial_behind(&check) {
        return match denied_behind(&config.store, check, index, behind).await {
            Ok(denied) => Waited::Decided(Decision::Denied(denied)),
            Err(error) => Waited::Rejected(Rejection::StoreFailed(error)),
        };
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
    match conclude(check, outcome, false) {
        Ok(decision) => Waited::Decided(decision),
        Err(error) => Waited::Rejected(Rejection::StoreFailed(error)),
    }
}
