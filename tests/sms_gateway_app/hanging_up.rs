//! What becomes of a message whose sender does not wait for the answer, or does not end it.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use clap::Parser;
use tokio::time::{Instant, sleep, timeout};
use tower_sliding_window::store::{
    Check, KnownLog, Partition, Restored, Store, StoreFuture, Verdict,
};
use tower_sliding_window::{FailurePolicy, MemoryStore, Policy, Quota};

use crate::alerts::Alerts;
use crate::args::Args;
use crate::bucket::Bucket;
use crate::controller::Results;
use crate::downstream::Downstream;
use crate::gateway::{Gateway, limiter};
use crate::levels::Levels;
use crate::message::Message;
use crate::{App, SECOND, body};
use test_support::requests::send;

/// A store whose answers take a second to come.
struct Far(MemoryStore);

impl Far {
    fn far<T: Send + 'static>(answer: StoreFuture<T>) -> StoreFuture<T> {
        StoreFuture::later(async move {
            let answer = answer.await;
            sleep(SECOND).await;
            answer
        })
    }
}

impl Store for Far {
    fn admit(&self, check: &Arc<Check>) -> StoreFuture<Verdict> {
        Self::far(self.0.admit(check))
    }

    fn peek(&self, check: &Arc<Check>) -> StoreFuture<Verdict> {
        Self::far(self.0.peek(check))
    }

    fn cancel(&self, check: &Arc<Check>) -> StoreFuture<bool> {
        Self::far(self.0.cancel(check))
    }

    fn restore(&self, log: &Partition, known: &KnownLog) -> StoreFuture<Restored> {
        Self::far(self.0.restore(log, known))
    }

    fn reset(&self, partitions: &[Partition]) -> StoreFuture<()> {
        Self::far(self.0.reset(partitions))
    }
}

#[tokio::test(start_paused = true)]
async fn who_hangs_up_while_the_windows_are_asked_leaves_no_trace() {
    let flags = ["sms_gateway", "--downstream-errors", "100%"];
    let args = Args::try_parse_from(flags).unwrap_or_else(|error| panic!("{error}"));
    let windows = MemoryStore::new();
    let gateway = Arc::new(Gateway {
        limiter: limiter(Far(windows.clone()), FailurePolicy::default()),
        bucket: Bucket::new(args.global.0).unwrap(),
        levels: Arc::new(Levels::new(args.thresholds())),
        alerts: Alerts::new(args.bound()),
        downstream: Downstream::new(args.conduct()),
        results: Results::new(&args.targets()),
    });
    let body = body("bank", "otp", "+491701234567");
    let asked = gateway.send(Message::from_json(body.as_bytes()).unwrap());
    assert!(timeout(SECOND / 2, asked).await.is_err(), "it takes longer");
    let receiver = limiter(windows, FailurePolicy::default());
    let receiver = async || {
        let policy = Policy::new("receiver").quota(Quota::per_hour(1));
        receiver.check_all([(policy, "+491701234567")]).await.unwrap().is_admitted()
    };
    assert!(!receiver().await, "it had been admitted");
    sleep(3 * SECOND).await;
    assert!(receiver().await, "and gave its place back");
}

#[tokio::test(start_paused = true)]
async fn who_does_not_end_a_body_is_told_so_in_the_end() {
    for (method, path) in [("POST", "/sms"), ("PUT", "/policies/channel"), ("PUT", "/downstream")] {
        let app = App::start(&["--idle-timeout", "7s"]).await;
        let asked = Instant::now();
        let mut request = App::request(method, path, "127.0.0.1:9", "");
        *request.body_mut() = Body::new(Endless);
        let answer = timeout(60 * SECOND, send(&app.0, request)).await.expect("an answer");
        assert_eq!((answer.status.as_u16(), asked.elapsed()), (408, 7 * SECOND), "{path}");
        assert_eq!(answer.problem()["status"], 408);
    }
}

/// A body of which nothing comes.
struct Endless;

impl http_body::Body for Endless {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        std::task::Poll::Pending
    }
}
