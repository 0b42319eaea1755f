//! Messages judged in the background: the caller does not wait, and a full queue sheds.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Semaphore;
use tower_sliding_window::moderation::store::{
    History, Imposed, Imposition, SpeechStore, Utterance,
};
use tower_sliding_window::moderation::{Message, Mute, Rule, SpeechMonitor, Submitted};
use tower_sliding_window::store::StoreFuture;
use tower_sliding_window::{Key, MemoryStore, StoreError};

/// A store that records nothing until it is let.
#[derive(Clone)]
struct Held {
    store: MemoryStore,
    lets: Arc<Semaphore>,
    texts: Arc<Mutex<Vec<String>>>,
}

impl Held {
    fn new() -> Self {
        let (lets, texts) = (Arc::new(Semaphore::new(0)), Arc::default());
        Self { store: MemoryStore::new(), lets, texts }
    }
}

impl SpeechStore for Held {
    fn record(&self, said: &Utterance) -> StoreFuture<History> {
        let (held, said) = (self.clone(), said.clone());
        StoreFuture::later(async move {
            held.lets.acquire().await.expect("it is never closed").forget();
            let text = said.text.as_deref().unwrap_or_default();
            held.texts.lock().unwrap().push(text.to_owned());
            match text {
                "fail" => Err(StoreError::Timeout),
                _ => held.store.record(&said).await,
            }
        })
    }

    fn mute(&self, imposition: &Imposition) -> StoreFuture<Imposed> {
        self.store.mute(imposition)
    }

    fn imposed(&self, imposition: &Imposition) -> StoreFuture<Imposed> {
        self.store.imposed(imposition)
    }

    fn mute_of(&self, sender: &Key) -> StoreFuture<Option<Mute>> {
        self.store.mute_of(sender)
    }

    fn forget(&self, sender: &Key) -> StoreFuture<()> {
        self.store.forget(sender)
    }
}

fn places(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap()
}

fn says(text: &str) -> Message {
    Message::from("alice").text(text)
}

/// Lets the worker take what it can.
async fn settle() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_queued_is_judged_and_mutes() {
    let monitor = SpeechMonitor::new(Rule::recommended(), MemoryStore::new());
    let queue = monitor.spawn(places(10));
    for _ in 0..3 {
        assert_eq!(queue.submit(says("buy gold")), Submitted::Queued);
    }
    assert_eq!(monitor.mute_of("alice").await.unwrap(), None, "not yet");
    queue.flush().await;
    let mute = monitor.mute_of("alice").await.unwrap().unwrap();
    assert_eq!(mute.remaining(), Duration::from_secs(6 * 3600));
    assert_eq!((queue.shed(), queue.failed()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn only_a_full_queue_sheds() {
    let held = Held::new();
    let queue = SpeechMonitor::new(Rule::recommended(), held.clone()).spawn(places(3));
    assert_eq!(queue.submit(says("1")), Submitted::Queued);
    settle().await;
    // One is with the store, three wait; time stands still, so nothing here can have waited.
    let submitted: Vec<_> = ["2", "3", "4", "5", "6"].map(|text| queue.submit(says(text))).into();
    let (queued, shed) = (Submitted::Queued, Submitted::Shed);
    assert_eq!(submitted, [queued, queued, queued, shed, shed]);
    assert_eq!(queue.shed(), 2);
    assert!(format!("{queue:?}").contains("room: 0, shed: 2"), "{queue:?}");

    held.lets.add_permits(2);
    settle().await;
    assert_eq!(queue.submit(says("7")), Submitted::Queued, "there is room again");
    held.lets.add_permits(100);
    queue.flush().await;
    assert_eq!(*held.texts.lock().unwrap(), ["1", "2", "3", "4", "7"], "in the order they came");
}

#[tokio::test(start_paused = true)]
async fn failed_message_does_not_stop_the_queue() {
    let held = Held::new();
    held.lets.add_permits(100);
    let queue = SpeechMonitor::new(Rule::recommended(), held.clone()).spawn(places(10));
    for text in ["fail", "one", "fail", "two"] {
        queue.submit(says(text));
    }
    queue.flush().await;
    assert_eq!((queue.failed(), queue.shed()), (2, 0));
    assert_eq!(held.texts.lock().unwrap().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn queue_drains_after_the_last_handle() {
    let held = Held::new();
    let queue = SpeechMonitor::new(Rule::recommended(), held.clone()).spawn(places(10));
    for text in ["one", "two", "three"] {
        queue.clone().submit(says(text));
    }
    drop(queue);
    held.lets.add_permits(100);
    settle().await;
    assert_eq!(held.texts.lock().unwrap().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_audit_ends_nothing() {
    let (store, reported) = (MemoryStore::new(), Arc::new(Mutex::new(0)));
    let heard = reported.clone();
    let monitor = SpeechMonitor::new(Rule::recommended(), store).on_mute(move |event| {
        *heard.lock().unwrap() += 1;
        assert_ne!(event.sender.as_bytes(), b"alice", "a panic of the test's own");
    });
    let queue = monitor.spawn(places(10));
    for sender in ["alice", "bob"] {
        for _ in 0..3 {
            let message = Message::from(sender).text("buy gold");
            assert_eq!(queue.submit(message), Submitted::Queued);
        }
        queue.flush().await;
        assert!(monitor.mute_of(sender).await.unwrap().is_some(), "{sender} is muted");
    }
    assert_eq!((queue.shed(), *reported.lock().unwrap(), monitor.panicked()), (0, 2, 1));
}
