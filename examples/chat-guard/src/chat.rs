//! [`Chat`]: takes messages, checks them in the background, and shows the newest.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use example_support::lock;
use example_support::logs::Throttle;
use serde::Serialize;
use serde_json::{Value, json};
use speech_monitor::{Message, SpeechMonitor};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// How many messages are checked at the same time.
const MOST_CHECKS: usize = 16;
/// How many messages wait or are being checked, each of up to 8 KiB.
const MOST_UNCHECKED: usize = 1024;
/// How many messages are kept, the newest of all rooms and private chats.
const MOST_POSTS: usize = 10_000;
/// How many messages are shown, and how many bytes their texts have together: an answer that nobody reads is memory.
const SHOWN: usize = 100;
const SHOWN_BYTES: usize = 64 * 1024;
/// How long the checks and the mutes that are left at the end may take.
const LAST_CHECKS: Duration = Duration::from_secs(10);

/// Where a message is said: in a room, or to one user.
#[derive(Clone, PartialEq)]
pub(crate) enum Place {
    Room(String),
    Private(String),
}

/// A message. It is shown without its place.
#[derive(Serialize)]
pub(crate) struct Post {
    pub(crate) id: String,
    pub(crate) from: String,
    pub(crate) text: String,
    #[serde(skip)]
    pub(crate) place: Place,
    /// Whether others than its sender see it.
    #[serde(skip)]
    pub(crate) is_delivered: AtomicBool,
}

/// The sender gets an answer before the check, so that the time to it can't tell a mute. Until a message
/// is checked, and if its sender is muted, only its sender sees it, as if it were delivered.
///
/// Clones share everything.
#[derive(Clone)]
pub(crate) struct Chat(Arc<Shared>);

struct Shared {
    monitor: SpeechMonitor,
    posts: Mutex<VecDeque<Arc<Post>>>,
    /// Each message that waits or is being checked has one of [`MOST_UNCHECKED`].
    places: Arc<Semaphore>,
    /// Each message that is being checked has one of [`MOST_CHECKS`].
    checks: Semaphore,
}

impl Chat {
    pub(crate) fn new(monitor: SpeechMonitor) -> Self {
        let (places, checks) = (Semaphore::new(MOST_UNCHECKED), Semaphore::new(MOST_CHECKS));
        let (posts, places) = (Mutex::default(), Arc::new(places));
        Self(Arc::new(Shared { monitor, posts, places, checks }))
    }

    /// Takes a message, or returns `false` if too many wait.
    pub(crate) fn accept(&self, post: Post) -> bool {
        let Ok(place) = self.0.places.clone().try_acquire_owned() else { return false };
        let (shared, post) = (self.0.clone(), Arc::new(post));
        let mut posts = lock(&self.0.posts);
        posts.push_back(post.clone());
        if posts.len() > MOST_POSTS {
            posts.pop_front();
        }
        drop(posts);
        tokio::spawn(async move {
            let _place = place;
            let _check = shared.checks.acquire().await;
            shared.check(&post).await;
        });
        true
    }

    /// Returns what `viewer` sees in a place, the oldest first. At the viewer's own name these are the messages
    /// of all to them.
    pub(crate) fn view(&self, place: &Place, viewer: &str) -> Vec<Value> {
        let is_here = |post: &Post| match (place, &post.place) {
            (Place::Room(room), Place::Room(of)) => room == of,
            (Place::Private(peer), Place::Private(to)) => {
                let is_mine = to == viewer && (post.from == *peer || peer == viewer);
                is_mine || (to == peer && post.from == viewer)
            }
            _ => false,
        };
        let is_seen =
            |post: &Post| post.from == viewer || post.is_delivered.load(Ordering::Relaxed);
        let mut bytes = 0;
        let posts = lock(&self.0.posts);
        let seen = posts.iter().rev().filter(|post| is_here(post) && is_seen(post)).take(SHOWN);
        let seen = seen.take_while(|post| {
            bytes += post.text.len();
            bytes <= SHOWN_BYTES
        });
        let newest_first: Vec<Value> = seen.map(|post| json!(**post)).collect();
        newest_first.into_iter().rev().collect()
    }

    /// Waits until all messages are checked and all mutes are reported, but no longer than is good for a server that is
    /// to end.
    pub(crate) async fn finish(&self) {
        let all = async {
            let _places = self.0.places.acquire_many(MOST_UNCHECKED as u32).await;
            // A reply to a mute may have been lost, or its operator have left.
            self.0.monitor.settled().await;
        };
        if timeout(LAST_CHECKS, all).await.is_err() {
            match self.waiting() {
                0 => tracing::warn!("the end comes before a mute is reported"),
                messages => tracing::warn!(messages, "the end comes before these are checked"),
            }
        }
    }

    /// Returns how many messages wait or are being checked.
    pub(crate) fn waiting(&self) -> usize {
        MOST_UNCHECKED - self.0.places.available_permits()
    }
}

impl Shared {
    /// Delivers a message if its sender is not muted. The chat goes on while the store does not answer.
    async fn check(&self, post: &Post) {
        static UNCHECKED: Throttle = Throttle::new();
        let message = Message::from(&*post.from).text(&post.text);
        let message = match &post.place {
            Place::Room(_) => message,
            Place::Private(peer) => message.to(&**peer),
        };
        let is_delivered = match self.monitor.check(&message).await {
            Ok(decision) => decision.is_delivered(),
            Err(error) => {
                UNCHECKED.log(move |times| {
                    tracing::warn!(%error, times, "messages are delivered without a check");
                });
                true
            }
        };
        post.is_delivered.store(is_delivered, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post(place: Place) -> Post {
        let (id, from, text) = <_>::default();
        Post { id, from, text, place, is_delivered: false.into() }
    }

    #[tokio::test]
    async fn the_newest_10_000_messages_are_kept() {
        let chat = Chat::new(SpeechMonitor::in_process([]));
        let room = |number: usize| Place::Room(number.to_string());
        for number in 0..=10_000 {
            while !chat.accept(post(room(number))) {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!([0, 1].map(|number| chat.view(&room(number), "").len()), [0, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_does_not_wait_for_a_check_for_long() {
        let chat = Chat::new(SpeechMonitor::in_process([]));
        let _checks = chat.0.checks.acquire_many(MOST_CHECKS as u32).await.unwrap();
        assert!(chat.accept(post(Place::Room("lobby".to_owned()))));
        let begun = tokio::time::Instant::now();
        chat.finish().await;
        assert_eq!((begun.elapsed(), chat.waiting()), (LAST_CHECKS, 1));
    }
}
