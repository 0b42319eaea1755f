use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{FromRequestParts, RawPathParams};
use http::request::Parts;

use super::{KeyError, KeyExtractor, non_empty};

/// Takes the key from a parameter of axum's route, percent-decoded.
///
/// A path whose parameters are not UTF-8 is [`KeyError::Invalid`].
///
/// The parameter is known only after routing, so add the layer with `Router::layer` or
/// `route_layer` on the router that has the route.
///
/// ```
/// use tower_sliding_window::key;
///
/// let sku = key::path_param("sku"); // of "/seckill/{sku}/orders"
/// ```
#[must_use]
pub fn path_param(name: impl Into<String>) -> impl KeyExtractor + Clone {
    let name = name.into();
    move |parts: &Parts| {
        // axum hands the parameters only to an extractor, and that wants a head of its own.
        let (mut head, ()) = http::Request::new(()).into_parts();
        head.extensions = parts.extensions.clone();
        let extracted = pin!(RawPathParams::from_request_parts(&mut head, &()))
            .poll(&mut Context::from_waker(Waker::noop()));
        let params = match extracted {
            Poll::Ready(Ok(params)) => params,
            Poll::Ready(Err(RawPathParamsRejection::InvalidUtf8InPathParam(_))) => {
                return Err(KeyError::Invalid);
            }
            _ => return Err(KeyError::Missing),
        };
        let value = params.iter().find(|(key, _)| *key == name).ok_or(KeyError::Missing)?.1;
        non_empty(value.as_bytes())
    }
}
