//! [`Delivery`]: one alert, sent until it is taken.

use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, Request, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::time::{sleep, timeout};

use crate::logs::Throttle;

/// How often an alert is sent at most.
const ATTEMPTS: u32 = 5;

static FAILED: Throttle = Throttle::new();

/// How long a delivery waits.
#[derive(Clone, Copy)]
pub(super) struct Waits {
    /// For the response.
    pub(super) response: Duration,
    /// Before the first retry. Each further one waits twice as long.
    pub(super) first_retry: Duration,
}

impl Default for Waits {
    fn default() -> Self {
        Self { response: Duration::from_secs(5), first_retry: Duration::from_secs(1) }
    }
}

#[cfg(feature = "tls")]
type Connector = hyper_rustls::HttpsConnector<HttpConnector>;
#[cfg(not(feature = "tls"))]
type Connector = HttpConnector;

/// Sends alerts to one URL.
pub(super) struct Delivery {
    client: Client<Connector, Body>,
    url: Uri,
    waits: Waits,
}

impl Delivery {
    /// Prepares to send to a URL. Fails if it can't read the certificates that the system trusts.
    pub(super) fn new(url: Uri, waits: Waits) -> io::Result<Self> {
        let client = Client::builder(TokioExecutor::new()).build(connector()?);
        Ok(Self { client, url, waits })
    }

    /// Sends an alert until it is taken or refused for good, or has failed too often.
    pub(super) async fn send(&self, alert: Bytes) {
        let mut wait = self.waits.first_retry;
        for attempt in 1..=ATTEMPTS {
            match self.attempt(alert.clone()).await {
                Ok(()) => return,
                Err(failure) if attempt == ATTEMPTS || failure.is_final() => {
                    // Without the URL, whose path may be a secret.
                    FAILED.log(move |times| {
                        tracing::warn!(%failure, times, "an alert could not be sent to the webhook");
                    });
                    return;
                }
                Err(_) => {}
            }
            sleep(wait).await;
            wait *= 2;
        }
    }

    async fn attempt(&self, alert: Bytes) -> Result<(), Failure> {
        let mut request = Request::new(Body::from(alert));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.url.clone();
        let json = axum::http::HeaderValue::from_static("application/json");
        request.headers_mut().insert(CONTENT_TYPE, json);
        let response = timeout(self.waits.response, self.client.request(request)).await;
        let status = response.map_err(|_| Failure::Late)?.map_err(|_| Failure::Broken)?.status();
        if status.is_success() { Ok(()) } else { Err(Failure::Status(status)) }
    }
}

#[cfg(not(feature = "tls"))]
fn connector() -> io::Result<Connector> {
    Ok(HttpConnector::new())
}

#[cfg(feature = "tls")]
fn connector() -> io::Result<Connector> {
    let provider = rustls::crypto::ring::default_provider();
    let builder = hyper_rustls::HttpsConnectorBuilder::new();
    let builder = builder.with_provider_and_native_roots(provider)?;
    Ok(builder.https_or_http().enable_http1().build())
}

/// Why an alert was not taken.
#[derive(Clone, Copy, Debug, thiserror::Error)]
enum Failure {
    #[error("there is no response in time")]
    Late,
    #[error("the connection fails")]
    Broken,
    #[error("the response is {0}")]
    Status(StatusCode),
}

impl Failure {
    /// Tells whether another attempt would fail too.
    fn is_final(self) -> bool {
        match self {
            Self::Late | Self::Broken => false,
            Self::Status(status) => {
                let passes = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS];
                !status.is_server_error() && !passes.contains(&status)
            }
        }
    }
}
