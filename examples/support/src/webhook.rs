//! [`Webhook`]: sends alerts to an HTTP server, and never holds up what causes them.
//!
//! A flood of alerts is summarised: the last ones are sent, and those before them are counted.

mod delivery;

use std::time::Duration;

use axum::body::Bytes;
use axum::http::Uri;
use clap::Args;
use serde::Serialize;
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc};
use tokio::time::sleep;

use self::delivery::{Delivery, Waits};
use crate::logs::Throttle;

/// The alerts that wait to be sent. For one more, the oldest of them is only counted.
const KEPT: usize = 16;
/// The time after an alert in which no other is sent.
const PAUSE: Duration = Duration::from_millis(100);

static COUNTED: Throttle = Throttle::new();

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
pub enum WebhookError {
    /// Not such a URL.
    #[error(
        "the value of --alert-webhook is not a URL for alerts\n\
         hint: write http://HOST[:PORT]/PATH or https://HOST[:PORT]/PATH, without a user"
    )]
    Url,
    /// The server can't do TLS.
    #[error(
        "the URL of --alert-webhook needs TLS\n\
         hint: build the server with `--features tls`, or write http://"
    )]
    NoTls,
    /// The system trusts no certificate.
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
        let delivery = Delivery::new(parse(url)?, Waits::default())?;
        Ok(Self(Some(Self::spawn(delivery))))
    }

    fn spawn(delivery: Delivery) -> broadcast::Sender<Job> {
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
                delivery.send(alert).await;
                sleep(PAUSE).await;
            }
        });
        jobs
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use axum::extract::State;
    use axum::http::{HeaderMap, StatusCode};
    use axum::routing::post;
    use axum::{Json, Router};
    use serde_json::{Value, json};

    use super::*;
    use crate::lock;

    #[derive(Clone, Default)]
    struct Receiver {
        /// What it responds with, the last first. 200 once it is empty.
        statuses: Arc<Mutex<Vec<StatusCode>>>,
        taken: Arc<Mutex<Vec<Value>>>,
    }

    async fn take(
        State(receiver): State<Receiver>,
        headers: HeaderMap,
        Json(alert): Json<Value>,
    ) -> StatusCode {
        assert_eq!(headers["content-type"], "application/json");
        lock(&receiver.taken).push(alert);
        lock(&receiver.statuses).pop().unwrap_or(StatusCode::OK)
    }

    async fn receiver(statuses: &[u16]) -> (Webhook, Receiver) {
        let statuses = statuses.iter().rev().map(|it| StatusCode::from_u16(*it).unwrap());
        let receiver =
            Receiver { statuses: Arc::new(Mutex::new(statuses.collect())), ..Default::default() };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let app = Router::new().route("/hook", post(take)).with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        (webhook(&url), receiver)
    }

    fn webhook(url: &str) -> Webhook {
        Webhook(Some(Webhook::spawn(Delivery::new(parse(url).unwrap(), SHORT).unwrap())))
    }

    const SHORT: Waits =
        Waits { response: Duration::from_secs(10), first_retry: Duration::from_millis(1) };

    #[tokio::test]
    async fn alert_is_sent_until_it_is_taken() {
        let (webhook, receiver) = receiver(&[500, 429, 200, 200]).await;
        webhook.send(&json!({ "alert": 1 }));
        webhook.send(&json!({ "alert": 2 }));
        webhook.flush().await;
        let [one, two] = [json!({ "alert": 1 }), json!({ "alert": 2 })];
        assert_eq!(*lock(&receiver.taken), [one.clone(), one.clone(), one, two]);
    }

    #[tokio::test]
    async fn retries_end() {
        let (webhook, receiver) = receiver(&[500; 9]).await;
        webhook.send(&json!(1));
        webhook.flush().await;
        assert_eq!(lock(&receiver.taken).len(), 5);
    }

    #[tokio::test]
    async fn alert_that_is_refused_is_not_repeated() {
        let (webhook, receiver) = receiver(&[404]).await;
        webhook.send(&json!(1));
        webhook.flush().await;
        assert_eq!(lock(&receiver.taken).len(), 1);
    }

    #[tokio::test]
    async fn the_last_alerts_of_a_flood_are_sent_and_the_others_counted() {
        let (webhook, receiver) = receiver(&[]).await;
        for number in 0..1000 {
            webhook.send(&json!(number));
        }
        webhook.flush().await;
        let taken = lock(&receiver.taken);
        // The flush itself takes a place.
        let (summary, last) = taken.split_at(taken.len() - (KEPT - 1));
        assert_eq!(
            last.iter().filter_map(Value::as_u64).collect::<Vec<_>>(),
            (985..1000).collect::<Vec<_>>()
        );
        assert_eq!(summary.len(), 1);
        assert_eq!((&summary[0]["alert"], &summary[0]["times"]), (&"summary".into(), &985.into()));
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
