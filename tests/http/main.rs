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
use std::fmt::Debug;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use http_body::{Body, Frame};
use http_body_util::channel::{Channel, Sender};
use http_body_util::{BodyExt, Empty, Full};
use serde_json::json;
use test_support::recorder::RecordedMetrics;
use test_support::requests::*;
use test_support::warnings::Warnings;
use test_support::*;
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, advance, sleep, timeout};
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sliding_window::store::{Check, LogId, Store, StoreFuture};
use tower_sliding_window::*;

const OK: StatusCode = StatusCode::OK;
const TOO_MANY: StatusCode = StatusCode::TOO_MANY_REQUESTS;

/// A layer by user on a store of its own.
fn alone(policy: impl Into<PolicyHandle>) -> SlidingWindowLayer {
    by_user(policy, MemoryStore::new())
}

/// Sends a request to a clone of the service, and returns the response with its body.
async fn call<S, A, B>(service: &S, request: Request<A>) -> Response<B>
where
    S: Service<Request<A>, Response = Response<B>, Error: Debug> + Clone,
{
    service.clone().oneshot(request).await.unwrap()
}

/// Returns the places that a policy leaves alice.
async fn left(policy: impl Into<PolicyHandle>, store: &(impl Store + Clone)) -> u32 {
    Limiter::new(policy, store.clone()).peek("alice").await.unwrap().remaining()
}

type Streamed<E> = Response<Channel<Bytes, E>>;
type Bodies<E> = UnboundedReceiver<Sender<Bytes, E>>;

/// Returns a service whose responses are bodies that the test writes, and the senders of these bodies.
fn streaming<E: Send + 'static>() -> (
    impl Service<Request<String>, Response = Streamed<E>, Error = Infallible, Future: Send> + Clone,
    Bodies<E>,
) {
    let (bodies, receiver) = mpsc::unbounded_channel();
    let service = service_fn(move |_| {
        let (sender, body) = Channel::new(8);
        let _ = bodies.send(sender);
        std::future::ready(Ok(Response::new(body)))
    });
    (service, receiver)
}
