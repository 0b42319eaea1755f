//! How many messages of one sender are checked at a time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tower_sliding_window::MemoryStore;
use tower_sliding_window::moderation::store::{RecordedMessage, SpeechStore};
use tower_sliding_window::moderation::{Message, Rule, SpeechMonitor};
use tower_sliding_window::store::StoreFuture;

use super::RecordsBy;

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

/// Lets the checks go as far as they can.
async fn settle() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}
