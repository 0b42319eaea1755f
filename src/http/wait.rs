//! [`wait`]: how a request waits for room, if its layer lets requests wait.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http::request::Parts;

use super::config::Config;
use super::rejection::Rejection;
use crate::waiting::{Bounds, NotAdmitted, deny_behind, until_admitted};
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
        Err(NotAdmitted::TooManyWaiters(_, None)) => {
            deny_behind(&config.waiting, &config.store, check).await
        }
        Err(NotAdmitted::Store(error)) => Err(error),
    };
    decided.map(Some).map_err(Rejection::StoreFailed)
}
