use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{FromRequestParts, MatchedPath, RawPathParams};
use http::request::Parts;

use super::{KeyError, KeyExtractor, non_empty};

const NOT_ROUTED: KeyError = KeyError::NotProvided {
    fix: "add the layer with `Router::layer` or `Router::route_layer` on the router that has the \
          route: there are no path parameters outside of it",
};
const NO_PARAMETER: KeyError = KeyError::NotProvided {
    fix: "check the name given to `key::path_param`, and add the layer only to routes that have \
          a parameter of this name",
};

const TWO_PARAMETERS: KeyError = KeyError::NotProvided {
    fix: "the route has two parameters of the name given to `key::path_param`, as a nested router may: \
          give one of them another name",
};

/// Takes the key from a parameter of axum's route, percent-decoded.
///
/// A path whose parameters are not UTF-8 is [`KeyError::Invalid`]. Each spelling of a number or a UUID, as for `Path<u64>`, is a
/// key of its own: parse it as [`key`](super) shows.
///
/// The parameter is available only after routing, so add the layer with `Router::route_layer` or
/// `Router::layer` on the router that has the route. With `Router::layer` the rule also receives paths
/// without a route. These are [`KeyError::Missing`], because the client chooses the path.
///
/// A layer outside the router, and a route without a parameter of that name, are
/// [`KeyError::NotProvided`]: add the rule to the routes that have the parameter.
///
/// ```
/// use tower_sliding_window::key;
///
/// let sku = key::path_param("sku"); // of "/seckill/{sku}/orders"
/// ```
pub fn path_param(name: impl Into<String>) -> impl KeyExtractor + Clone {
    let name = name.into();
    move |parts: &Parts| {
        if !parts.uri.path().starts_with('/') {
            // `CONNECT host:port` and `OPTIONS *` have no route.
            return Err(KeyError::Missing);
        }
        // axum passes the parameters only to an extractor, which needs a mutable head.
        let (mut head, ()) = http::Request::new(()).into_parts();
        head.extensions = parts.extensions.clone();
        let extracted = pin!(RawPathParams::from_request_parts(&mut head, &()))
            .poll(&mut Context::from_waker(Waker::noop()));
        let params = match extracted {
            Poll::Ready(Ok(params)) => params,
            Poll::Ready(Err(RawPathParamsRejection::InvalidUtf8InPathParam(_))) => {
                return Err(KeyError::Invalid);
            }
            _ => return Err(NOT_ROUTED),
        };
        let mut values = params.iter().filter(|(key, _)| *key == name);
        match values.next() {
            // A router in another one may have the same name. The application sees either, or both.
            Some(_) if values.next().is_some() => Err(TWO_PARAMETERS),
            Some((_, value)) => non_empty(value.as_bytes()),
            // The fallback of a router has no matched path.
            None if parts.extensions.get::<MatchedPath>().is_none() => Err(KeyError::Missing),
            None => Err(NO_PARAMETER),
        }
    }
}
