//! [`Passed`]: what is left to do for a request that was let through.

use std::sync::Arc;

use http::Response;
use tokio::task::JoinHandle;

use super::charge::Charge;
use super::config::Config;
use crate::window::Usage;

/// What is left to do for a request that was let through.
///
/// If it is dropped before the response is there, the request keeps its place: the inner service
/// was called. The layer can be told otherwise with `cancel_unanswered`.
#[derive(Default)]
pub(super) struct Passed {
    /// To be shown in the response.
    pub(super) usage: Option<Usage>,
    charge: Option<(Charge, Arc<Config>)>,
}

impl Passed {
    pub(super) fn new(usage: Option<Usage>, charge: Option<Charge>, config: Arc<Config>) -> Self {
        Self { usage, charge: charge.map(|charge| (charge, config)) }
    }

    /// Decides, now that the result is there, whether the request keeps its place.
    pub(super) fn settle<B, E>(
        &mut self,
        result: Result<Response<B>, E>,
    ) -> (Result<Response<B>, E>, Option<JoinHandle<()>>) {
        let Some((charge, config)) = self.charge.take() else { return (result, None) };
        let (result, cancels) = match (result, &config.cancel_if) {
            (Ok(response), Some(cancel_if)) => {
                let (parts, body) = response.into_parts();
                let head = Response::from_parts(parts, ());
                let cancels = cancel_if(&head);
                (Ok(head.map(|()| body)), cancels)
            }
            (Ok(response), None) => (Ok(response), false),
            (Err(error), _) => (Err(error), config.cancel_unanswered),
        };
        if !cancels {
            return (result, None);
        }
        if let Some(usage) = &mut self.usage {
            usage.give_back();
        }
        (result, charge.cancel())
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        if let Some((charge, config)) = self.charge.take()
            && config.cancel_unanswered
        {
            charge.cancel();
        }
    }
}
