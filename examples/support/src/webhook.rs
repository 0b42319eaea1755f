//! [`Webhook`]: sends alerts to an HTTP server, and never holds up what causes them.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Method, Request, Uri};
use clap::Args;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use crate::logs::Throttle;

/// The alerts that wait to be sent, or are being sent. One more is only counted.
const KEPT: usize = 16;
/// How often an alert is sent at most.
const ATTEMPTS: u32 = 5;
/// How long a response is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the alerts that wait at the end may take.
const LAST_ALERTS: Duration = Duration::from_secs(10);
/// The wait before the first retry. Each further one waits twice as long.
const FIRST_RETRY: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 1000 });

/// Where alerts are sent. They are only logged if `--alert-webhook` is left out.
///
/// `mut_arg` gives `--alert-webhook` the environment variable of the server.
#[derive(Args)]
pub struct WebhookFlags {
    /// Sends each alert to this URL too, as JSON by POST: http://HOST[:PORT]/PATH. An alert that is not
    /// taken is sent up to five times, with one `time`. Of a flood of alerts the first ones are sent, and the others
    /// counted in the log.
    // Text here, so that an error of clap, which repeats the value, can't show the path: it often is
    // a secret.
    #[arg(long, value_name = "URL", hide_env_values = true)]
    alert_webhook: Option<String>,
}

/// The URL is none to which alerts can be sent. The message does not show it.
#[derive(Debug, thiserror::Error)]
#[error(
    "the value of --alert-webhook is not a URL for alerts\n\
     hint: write http://HOST[:PORT]/PATH; for https:// name a proxy on this machine"
)]
pub struct WebhookError;

fn parse(text: &str) -> Result<Uri, WebhookError> {
    let url: Uri = text.parse().map_err(|_| WebhookError)?;
    if url.scheme_str() == Some("http") { Ok(url) } else { Err(WebhookError) }
}

/// Escapes what a chat service such as Slack reads as markup in a member `text`: `&`, `<` and `>`. A
/// name that a client has chosen could otherwise call a whole channel.
pub fn plain(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Sends alerts from a task of its own. Clones share it.
#[derive(Clone)]
pub struct Webhook(Option<Queue>);

#[derive(Clone)]
struct Queue {
    /// Each alert keeps its place until it is sent or given up.
    alerts: UnboundedSender<(Bytes, OwnedSemaphorePermit)>,
    places: Arc<Semaphore>,
}

impl Webhook {
    /// Begins to send to the URL of the flags. Sends nothing if there is none.
    pub fn new(flags: &WebhookFlags) -> Result<Self, WebhookError> {
        let Some(url) = &flags.alert_webhook else { return Ok(Self(None)) };
        let ((alerts, mut queue), url) = (mpsc::unbounded_channel(), parse(url)?);
        tokio::spawn(async move {
            let client = Client::builder(TokioExecutor::new()).build_http();
            while let Some((alert, _place)) = queue.recv().await {
                deliver(&client, &url, &alert).await;
            }
        });
        Ok(Self(Some(Queue { alerts, places: Arc::new(Semaphore::new(KEPT)) })))
    }

    /// Sends an alert, an object, as JSON, soon. A `time` is added to its members: now, in seconds of the Unix epoch.
    ///
    /// A receiver that is slow to respond gets it again, with the same time.
    pub fn send(&self, mut alert: Value) {
        static LEFT_OUT: Throttle = Throttle::new();
        let Some(queue) = &self.0 else { return };
        let Ok(place) = queue.places.clone().try_acquire_owned() else {
            LEFT_OUT.log(|times| tracing::warn!(times, "alerts are not sent: too many at a time"));
            return;
        };
        alert["time"] = unix_seconds().into();
        // The task takes alerts as long as the program runs.
        let _ = queue.alerts.send((alert.to_string().into(), place));
    }

    /// Waits until every alert has been sent or given up, but no longer than is good for a program that is
    /// to end.
    pub async fn flush(&self) {
        let Some(queue) = &self.0 else { return };
        if timeout(LAST_ALERTS, queue.places.acquire_many(KEPT as u32)).await.is_err() {
            let alerts = KEPT - queue.places.available_permits();
            tracing::warn!(alerts, "the end comes before these alerts are sent");
        }
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Sends an alert until it is taken, or has failed too often.
async fn deliver(client: &Client<HttpConnector, Body>, url: &Uri, alert: &Bytes) {
    static FAILED: Throttle = Throttle::new();
    let mut wait = FIRST_RETRY;
    for attempt in 1..=ATTEMPTS {
        let mut request = Request::new(Body::from(alert.clone()));
        (*request.method_mut(), *request.uri_mut()) = (Method::POST, url.clone());
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let result = timeout(PATIENCE, client.request(request)).await;
        let why = match result {
            Err(_) => "there is no response in time".to_owned(),
            Ok(Err(_)) => "the connection fails".to_owned(),
            Ok(Ok(response)) if response.status().is_success() => return,
            Ok(Ok(response)) => response.status().to_string(),
        };
        if attempt == ATTEMPTS {
            // Without the URL, whose path may be a secret.
            FAILED.log(move |times| tracing::warn!(why, times, "an alert could not be sent"));
            return;
        }
        sleep(wait).await;
        wait *= 2;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use axum::http::StatusCode;
    use axum::routing::post;
    use axum::{Json, Router};
    use serde_json::json;

    use super::*;
    use crate::lock;

    /// The alerts that a server has got.
    type Taken = Arc<Mutex<Vec<Value>>>;

    /// Begins to send to a server that responds with these statuses, and then with 200.
    async fn receiver(statuses: Vec<u16>) -> (Webhook, Taken) {
        let (taken, statuses) = (Taken::default(), Arc::new(Mutex::new(statuses.into_iter())));
        let seen = Arc::clone(&taken);
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

    /// One that takes an alert and is too slow, or fails, to say so gets it again, with the same time.
    #[tokio::test]
    async fn an_alert_is_sent_until_it_is_taken() {
        let (webhook, taken) = receiver(vec![500, 429, 200, 200, 404, 500, 500, 500, 500]).await;
        (1..=4).for_each(|alert| webhook.send(json!({ "alert": alert })));
        webhook.flush().await;
        let mut taken = lock(&taken);
        let alerts: Vec<_> = taken.iter().map(|alert| alert["alert"].clone()).collect();
        assert_eq!(alerts, [1, 1, 1, 2, 3, 3, 3, 3, 3, 4]);
        taken.dedup();
        assert_eq!(taken.len(), 4, "{taken:?}");
        for alert in &*taken {
            let age = unix_seconds() - alert["time"].as_u64().unwrap();
            assert!(age < 60, "{alert}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_does_not_wait_for_a_receiver_for_long() {
        let ((alerts, _queue), places) = (mpsc::unbounded_channel(), Semaphore::new(KEPT));
        let webhook = Webhook(Some(Queue { alerts, places: Arc::new(places) }));
        webhook.send(json!({}));
        let begun = tokio::time::Instant::now();
        webhook.flush().await;
        assert_eq!(begun.elapsed(), LAST_ALERTS);
    }

    #[test]
    fn names_are_no_markup_and_urls_are_checked() {
        assert_eq!(plain("<!channel> a&b"), "&lt;!channel&gt; a&amp;b");
        for url in ["", "evil", "https://a/b", "/path", "http://"] {
            assert!(parse(url).is_err(), "{url:?}");
        }
        assert!(parse("http://127.0.0.1:9/a?b=c").is_ok());
    }
}
