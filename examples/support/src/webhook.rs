//! [`Webhook`]: sends alerts to an HTTP server, and never holds up what causes them.
//!
//! A flood of alerts is summarised: the last ones are sent, and those before them are counted.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Method, Request, StatusCode, Uri};
use clap::Args;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Serialize;
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc};
use tokio::time::{sleep, timeout};

use crate::logs::Throttle;

/// The alerts that wait to be sent. For one more, the oldest of them is only counted.
const KEPT: usize = 16;
/// How often an alert is sent at most.
const ATTEMPTS: u32 = 5;
/// How long a response is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// The wait before the first retry. Each further one waits twice as long.
const FIRST_RETRY: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 1000 });
/// The time after an alert in which no other is sent.
const PAUSE: Duration = Duration::from_millis(100);

static COUNTED: Throttle = Throttle::new();
static FAILED: Throttle = Throttle::new();

/// Where alerts are sent. They are only logged if `--alert-webhook` is left out.
///
/// `mut_arg` gives `--alert-webhook` the environment variable of the server.
#[derive(Args)]
pub struct WebhookFlags {
    /// Sends each alert to this URL too, as JSON by POST: http://HOST[:PORT]/PATH, or https:// with a
    /// server built with `--features tls`. An alert that is not taken is sent up to five times.
    /// Of a flood of alerts the last ones are sent, and how many came before them.
    // Text here, so that an error of clap, which repeats the value, can't show the path: it often is
    // a secret.
    #[arg(long, value_name = "URL", hide_env_values = true)]
    alert_webhook: Option<String>,
}

/// Why alerts can't be sent. No message shows the URL.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum WebhookError {
    #[error(
        "the value of --alert-webhook is not a URL for alerts\n\
         hint: write http://HOST[:PORT]/PATH or https://HOST[:PORT]/PATH, without a user"
    )]
    Url,
    #[error(
        "the URL of --alert-webhook needs TLS\n\
         hint: build the server with `--features tls`, or write http://"
    )]
    NoTls,
    #[error(
        "can't read the certificates that the system trusts: {0}\n\
         hint: install the package ca-certificates, or write http:// in --alert-webhook"
    )]
    Certificates(#[from] std::io::Error),
}

fn parse(text: &str) -> Result<Uri, WebhookError> {
    let url: Uri = text.parse().map_err(|_| WebhookError::Url)?;
    let has_user = url.authority().is_none_or(|authority| authority.as_str().contains('@'));
    match url.scheme_str() {
        Some("http") if !has_user => Ok(url),
        Some("https") if !has_user && cfg!(feature = "tls") => Ok(url),
        Some("https") if !has_user => Err(WebhookError::NoTls),
        _ => Err(WebhookError::Url),
    }
}

/// Escapes what a chat service such as Slack reads as markup in a member `text`: `&`, `<` and `>`. A
/// name that a client has chosen could otherwise call a whole channel.
pub fn plain(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[derive(Clone)]
enum Job {
    Send(Bytes),
    /// Is dropped when everything before it has been sent or given up.
    Flush(#[expect(dead_code, reason = "only dropped")] mpsc::Sender<()>),
}

/// Sends alerts from a task of its own. Clones share it.
#[derive(Clone)]
pub struct Webhook(Option<broadcast::Sender<Job>>);

impl Webhook {
    /// Begins to send to the URL of the flags. Sends nothing if there is none.
    ///
    /// # Errors
    ///
    /// [`WebhookError`] if nothing can be sent to the URL.
    ///
    /// # Panics
    ///
    /// If it is called outside of a Tokio runtime.
    pub fn new(flags: &WebhookFlags) -> Result<Self, WebhookError> {
        let Some(url) = &flags.alert_webhook else { return Ok(Self(None)) };
        let url = parse(url)?;
        let client = Client::builder(TokioExecutor::new()).build(connector()?);
        // Unlike an mpsc channel, it makes room for the newest.
        let (jobs, mut queue) = broadcast::channel(KEPT);
        tokio::spawn(async move {
            loop {
                let alert = match queue.recv().await {
                    Ok(Job::Send(alert)) => alert,
                    Ok(Job::Flush(_)) => continue,
                    Err(RecvError::Lagged(times)) => summary(times),
                    Err(RecvError::Closed) => return,
                };
                deliver(&client, &url, alert).await;
                sleep(PAUSE).await;
            }
        });
        Ok(Self(Some(jobs)))
    }

    /// Sends an alert after those before it. Returns at once; if too many wait, the oldest is only
    /// counted, in an alert that says how many were.
    pub fn send(&self, alert: &impl Serialize) {
        let Some(jobs) = &self.0 else { return };
        match serde_json::to_vec(alert) {
            // The task that receives it never ends before this.
            Ok(alert) => drop(jobs.send(Job::Send(alert.into()))),
            Err(error) => tracing::warn!(%error, "an alert is no JSON"),
        }
    }

    /// Waits until all alerts so far are sent or given up.
    pub async fn flush(&self) {
        let Some(jobs) = &self.0 else { return };
        let (done, mut wait) = mpsc::channel(1);
        // Without the task there is nothing to wait for.
        drop(jobs.send(Job::Flush(done)));
        wait.recv().await;
    }
}

/// Returns what is sent in place of so many alerts.
fn summary(times: u64) -> Bytes {
    COUNTED.log(|times| tracing::warn!(times, "alerts are only counted: too many at a time"));
    let text = format!("{times} more alerts: too many to send each of them");
    json!({ "text": text, "alert": "summary", "times": times }).to_string().into()
}

#[cfg(feature = "tls")]
type Connector = hyper_rustls::HttpsConnector<HttpConnector>;
#[cfg(not(feature = "tls"))]
type Connector = HttpConnector;

#[cfg(not(feature = "tls"))]
fn connector() -> std::io::Result<Connector> {
    Ok(HttpConnector::new())
}

#[cfg(feature = "tls")]
fn connector() -> std::io::Result<Connector> {
    let provider = rustls::crypto::ring::default_provider();
    let builder = hyper_rustls::HttpsConnectorBuilder::new();
    let builder = builder.with_provider_and_native_roots(provider)?;
    Ok(builder.https_or_http().enable_http1().build())
}

/// Sends an alert until it is taken or refused for good, or has failed too often.
async fn deliver(client: &Client<Connector, Body>, url: &Uri, alert: Bytes) {
    let mut wait = FIRST_RETRY;
    for attempt in 1..=ATTEMPTS {
        let mut request = Request::new(Body::from(alert.clone()));
        (*request.method_mut(), *request.uri_mut()) = (Method::POST, url.clone());
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let (why, is_final) = match timeout(PATIENCE, client.request(request)).await {
            Err(_) => ("there is no response in time".to_owned(), false),
            Ok(Err(_)) => ("the connection fails".to_owned(), false),
            Ok(Ok(response)) if response.status().is_success() => return,
            Ok(Ok(response)) => {
                let status = response.status();
                let passes = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS];
                (status.to_string(), !status.is_server_error() && !passes.contains(&status))
            }
        };
        if is_final || attempt == ATTEMPTS {
            // Without the URL, whose path may be a secret.
            FAILED.log(move |times| {
                tracing::warn!(why, times, "an alert could not be sent to the webhook");
            });
            return;
        }
        sleep(wait).await;
        wait *= 2;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::routing::post;
    use axum::{Json, Router};
    use serde_json::Value;

    use super::*;
    use crate::lock;

    type Taken = Arc<Mutex<Vec<Value>>>;

    /// Begins to send to a server that responds with these statuses, and then with 200.
    async fn receiver(statuses: Vec<u16>) -> (Webhook, Taken) {
        let (taken, statuses) = (Taken::default(), Mutex::new(statuses.into_iter()));
        let (seen, statuses) = (Arc::clone(&taken), Arc::new(statuses));
        let take = async move |Json(alert): Json<Value>| {
            lock(&seen).push(alert);
            StatusCode::from_u16(lock(&statuses).next().unwrap_or(200)).unwrap()
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let app = Router::new().route("/hook", post(take));
        tokio::spawn(async move { axum::serve(listener, app).await });
        (Webhook::new(&WebhookFlags { alert_webhook: Some(url) }).unwrap(), taken)
    }

    #[tokio::test]
    async fn an_alert_is_sent_until_it_is_taken_or_refused() {
        let (webhook, taken) =
            receiver(vec![500, 429, 200, 404, 200, 500, 500, 500, 500, 500]).await;
        (1..=4).for_each(|alert| webhook.send(&json!(alert)));
        webhook.flush().await;
        assert_eq!(*lock(&taken), [1, 1, 1, 2, 3, 4, 4, 4, 4, 4]);
    }

    #[tokio::test]
    async fn the_last_alerts_of_a_flood_are_sent_and_the_others_counted() {
        let (webhook, taken) = receiver(vec![]).await;
        (0..1000).for_each(|number| webhook.send(&json!(number)));
        webhook.flush().await;
        let taken = lock(&taken);
        // The flush itself takes a place.
        assert_eq!((taken.len(), &taken[0]["times"]), (KEPT, &json!(985)));
        assert_eq!(taken[1..], (985..1000).map(Value::from).collect::<Vec<_>>());
    }

    #[test]
    fn names_are_no_markup() {
        assert_eq!(plain("<!channel> a&b"), "&lt;!channel&gt; a&amp;b");
    }

    #[test]
    fn only_web_urls_are_taken() {
        for url in ["", "evil", "ftp://a/b", "/path", "http://", "http://user:pw@a/b"] {
            assert!(matches!(parse(url), Err(WebhookError::Url)), "{url:?}");
        }
        assert!(parse("http://127.0.0.1:9/a?b=c").is_ok());
        assert_eq!(parse("https://hooks.example/a").is_ok(), cfg!(feature = "tls"));
    }
}
