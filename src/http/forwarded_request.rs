//! [`ForwardedRequest`]: a request that the inner service handles.

use std::sync::Arc;

use http::Response;
use tokio::task::JoinHandle;

use super::config::Config;
use super::headers::RateLimitHeaders;
use crate::store::CancelHandle;
use crate::window::Usage;

/// A request that the inner service handles.
///
/// If it is dropped before the response is ready, the request stays counted, because the inner
/// service was called. With `cancel_unanswered` it is cancelled instead.
#[derive(Default)]
pub(super) struct ForwardedRequest {
    /// Boxed, because few layers show it.
    pub(super) shown: Option<Box<ShownUsage>>,
    cancel: Option<(CancelHandle, Arc<Config>)>,
}

/// The state of the logs for the headers of the response.
pub(super) struct ShownUsage {
    pub(super) usage: Usage,
    pub(super) fields: RateLimitHeaders,
}

impl ForwardedRequest {
    pub(super) fn new(
        usage: Option<Usage>,
        cancel: Option<CancelHandle>,
        config: Arc<Config>,
    ) -> Self {
        let shown = usage.map(|usage| Box::new(ShownUsage { usage, fields: config.headers }));
        Self { shown, cancel: cancel.map(|cancel| (cancel, config)) }
    }

    pub(super) fn settle<B, E>(
        &mut self,
        result: Result<Response<B>, E>,
    ) -> (Result<Response<B>, E>, Option<JoinHandle<()>>) {
        let Some((cancel, config)) = self.cancel.take() else { return (result, None) };
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
        if let Some(shown) = &mut self.shown {
            shown.usage.give_back();
        }
        (result, cancel.cancel())
    }
}

impl Drop for ForwardedRequest {
    fn drop(&mut self) {
        if let Some((cancel, config)) = self.cancel.take()
            && config.cancel_unanswered
        {
            cancel.cancel();
        }
    }
}
