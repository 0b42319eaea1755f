//! The layer in front of services.

mod axum;
mod flood;
mod grpc;
mod in_flight;
mod layer;
mod mistakes;
mod offenders;
mod quota_fields;
mod rejection;
mod service;
mod settle;
mod tracing;
mod waits;

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::channel::{Channel, Sender};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tower::{Service, service_fn};

const OK: StatusCode = StatusCode::OK;
const TOO_MANY: StatusCode = StatusCode::TOO_MANY_REQUESTS;

type Body<E> = Channel<Bytes, E>;
type Bodies<E> = UnboundedReceiver<Sender<Bytes, E>>;

/// Returns a service whose responses are bodies that the test writes, and the senders of these bodies.
fn streaming<E: Send + 'static>() -> (
    impl Service<Request<String>, Response = Response<Body<E>>, Error = Infallible, Future: Send>
    + Clone,
    Bodies<E>,
) {
    let (bodies, receiver) = unbounded_channel();
    let service = service_fn(move |_| {
        let (sender, body) = Channel::new(8);
        let _ = bodies.send(sender);
        std::future::ready(Ok(Response::new(body)))
    });
    (service, receiver)
}
