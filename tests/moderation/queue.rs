//! Messages judged in the background: the caller does not wait, and a full queue sheds.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Semaphore;
use tower_sliding_window::moderation::store::{RecordedMessage, SpeechStore};
use tower_sliding_window::moderation::{Message, Rule, SpeechMonitor, SpeechQueue, Submitted};
use tower_sliding_window::store::StoreFuture;
use tower_sliding_window::{MemoryStore, StoreError};

use super::RecordsBy;

/// A queue on a store that records a message for each permit, and fails on the text `fail`.
struct Held {
    queue: SpeechQueue,
    permits: Arc<Semaphore>,
    texts: Arc<Mutex<Vec<String>>>,
}

impl Held {
    fn new(capacity: usize) -> Self {
        let (permits, texts) = (Arc::new(Semaphore::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (store, needed, sink) = (MemoryStore::new(), permits.clone(), texts.clone());
        let rest = store.clone();
        let record = move |message: &RecordedMessage| {
            let (store, needed, sink) = (store.clone(), needed.clone(), sink.clone());
            let message = message.clone();
            StoreFuture::later(async move {
                needed.acquire().await.expect("it is never closed").forget();
                let text = std::str::from_utf8(message.peer.as_ref().unwrap().as_bytes()).unwrap();
                sink.lock().unwrap().push(text.to_owned());
                if text == "fail" {
                    return Err(StoreError::Timeout);
                }
                store.record(&message).await
            })
        };
        let monitor = SpeechMonitor::new(Rule::recommended(), RecordsBy(record, rest));
        Self { queue: monitor.spawn(NonZeroUsize::new(capacity).unwrap()), permits, texts }
    }
}

#[tokio::test(start_paused = true)]
async fn a_sender_has_a_share_of_the_queue() {
    let Held { queue, permits, .. } = Held::new(100);
    let spam = || queue.submit(Message::from("mallory").to("bob"));
    let queued = (0..1_000).filter(|_| spam() == Submitted::Queued).count();
    assert_eq!(queued, 16);
    for _ in 0..16 {
        assert_eq!(queue.submit(says("hello")), Submitted::Queued, "another one has room");
    }
    permits.add_permits(1_000);
    queue.flush().await;
    assert_eq!(spam(), Submitted::Queued, "the share is free again");
}

#[tokio::test(start_paused = true)]
async fn few_messages_of_a_sender_are_checked_at_a_time() {
    let under_way = Arc::new(Mutex::new([0_usize; 2]));
    let (store, count) = (MemoryStore::new(), under_way.clone());
    let rest = store.clone();
    let record = move |message: &RecordedMessage| {
        let (store, count, message) = (store.clone(), count.clone(), message.clone());
        StoreFuture::later(async move {
            {
                let [now, most] = &mut *count.lock().unwrap();
                *now += 1;
                *most = (*most).max(*now);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            count.lock().unwrap()[0] -= 1;
            store.record(&message).await
        })
    };
    let monitor = SpeechMonitor::new(Rule::recommended(), RecordsBy(record, rest));
    let mut checks = tokio::task::JoinSet::new();
    for number in 0..50 {
        let monitor = monitor.clone();
        checks.spawn(async move {
            monitor.check(&Message::from("mallory").text(format!("{number}"))).await
        });
    }
    settle().await;
    // Another sender does not wait for them. A caller that leaves gives its turn back.
    let hello = Message::from("bob").text("hello");
    let bob = monitor.check(&hello);
    let bob = tokio::time::timeout(Duration::from_millis(2), bob).await.expect("it is not held up");
    assert!(bob.unwrap().is_delivered());
    checks.abort_all();
    while checks.join_next().await.is_some() {}
    assert_eq!(under_way.lock().unwrap()[1], 5, "four of one sender, and one of the other");
    assert!(monitor.check(&Message::from("mallory").text("hello")).await.unwrap().is_delivered());
}

fn says(text: &str) -> Message {
    Message::from("alice").to(text)
}

/// Lets the worker take what it can.
async fn settle() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn only_a_full_queue_sheds() {
    let Held { queue, permits, texts } = Held::new(3);
    assert_eq!(queue.submit(says("1")), Submitted::Queued);
    settle().await;
    // One is with the store, three wait; time stands still, so nothing here can have waited.
    let submitted: Vec<_> = ["2", "3", "4", "5", "6"].map(|text| queue.submit(says(text))).into();
    let (queued, shed) = (Submitted::Queued, Submitted::Shed);
    assert_eq!(submitted, [queued, queued, queued, shed, shed]);
    assert_eq!(queue.shed(), 2);
    assert!(format!("{queue:?}").contains("room: 0, shed: 2"), "{queue:?}");

    permits.add_permits(2);
    settle().await;
    assert_eq!(queue.submit(says("7")), Submitted::Queued, "there is room again");
    permits.add_permits(100);
    queue.flush().await;
    assert_eq!(*texts.lock().unwrap(), ["1", "2", "3", "4", "7"], "in the order they came");
}

#[tokio::test(start_paused = true)]
async fn queue_outlives_failures_and_handles() {
    let Held { queue, permits, texts } = Held::new(10);
    permits.add_permits(100);
    for text in ["fail", "one", "fail", "two"] {
        queue.submit(says(text));
    }
    queue.flush().await;
    assert_eq!((queue.failed(), queue.shed()), (2, 0));
    assert_eq!(texts.lock().unwrap().len(), 4);
    for text in ["three", "four", "five"] {
        queue.clone().submit(says(text));
    }
    drop(queue);
    settle().await;
    assert_eq!(texts.lock().unwrap().len(), 7, "the queued messages are still checked");
}

#[tokio::test(start_paused = true)]
async fn queue_mutes_even_if_the_hook_panics() {
    let events = Arc::new(Mutex::new(0));
    let sink = events.clone();
    let monitor =
        SpeechMonitor::new(Rule::recommended(), MemoryStore::new()).on_mute(move |event| {
            *sink.lock().unwrap() += 1;
            assert_ne!(event.sender.as_bytes(), b"alice", "a panic of the test's own");
        });
    let queue = monitor.spawn(NonZeroUsize::new(10).unwrap());
    for sender in ["alice", "bob"] {
        for _ in 0..3 {
            let message = Message::from(sender).text("buy cheap gold");
            assert_eq!(queue.submit(message), Submitted::Queued);
        }
        assert_eq!(monitor.mute_of(sender).await.unwrap(), None, "not yet");
        queue.flush().await;
        let mute = monitor.mute_of(sender).await.unwrap().unwrap();
        assert_eq!(mute.remaining(), Duration::from_secs(6 * 3600));
    }
    assert_eq!((queue.shed(), queue.failed(), *events.lock().unwrap()), (0, 0, 2));
    assert_eq!(monitor.panicked(), 1);
}
