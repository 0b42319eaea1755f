//! The least layer: what no layer that denies a known user can leave out.
//!
//! It reads the user and the clock, looks the user up in a map behind a lock, and sends the same
//! response as ours, of whose fields it writes two anew. It keeps no window, admits no request and
//! forgets no user.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::Request;
use axum::http::HeaderValue;
use axum::response::Response;
use tokio::time::Instant;
use tower::{Layer, Service};

use crate::problem::problem;
use crate::setup::user_of;

/// Denies every user for the length of a window.
#[derive(Clone)]
pub(crate) struct LeastLayer {
    window: Duration,
    denied_until: Arc<Mutex<HashMap<String, Instant>>>,
}

impl LeastLayer {
    pub(crate) fn new(window: Duration) -> Self {
        Self { window, denied_until: Arc::default() }
    }

    fn seconds(&self, user: &str) -> u64 {
        let now = Instant::now();
        let mut denied_until = self.denied_until.lock().unwrap_or_else(PoisonError::into_inner);
        let until = match denied_until.get(user) {
            Some(until) => *until,
            None => *denied_until.entry(user.to_owned()).or_insert(now + self.window),
        };
        until.saturating_duration_since(now).as_secs() + 1
    }
}

impl<S> Layer<S> for LeastLayer {
    type Service = Least<S>;

    fn layer(&self, inner: S) -> Least<S> {
        Least { inner, layer: self.clone() }
    }
}

#[derive(Clone)]
pub(crate) struct Least<S> {
    inner: S,
    layer: LeastLayer,
}

impl<S> Service<Request> for Least<S>
where
    S: Service<Request, Response = Response, Error = Infallible>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Ready<Result<Response, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let seconds = self.layer.seconds(user_of(request.uri()).unwrap_or_default());
        let rate_limit = format!(r#""default";r=0;t={seconds}"#);
        let rate_limit = HeaderValue::try_from(rate_limit).expect("only digits are written");
        ready(Ok(problem(HeaderValue::from(seconds), rate_limit)))
    }
}
