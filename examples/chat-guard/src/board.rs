//! [`Board`]: the newest messages of all rooms and private chats, in this process.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;

use axum::body::Bytes;
use serde::Serialize;

use crate::history::History;
use crate::names::Name;

/// How many bytes of messages are kept, delivered or withheld each; the oldest go first.
const MOST_BYTES: usize = 16 * 1024 * 1024;
/// What a message costs beside its JSON: its places in the collections, and the names in them.
const OVERHEAD: usize = 600;
/// How many messages a history has, and is kept of a place.
const MOST_POSTS: usize = 100;
/// How many bytes a history has.
const LONGEST_HISTORY: usize = 256_000;

/// Where a message is said: in a room, or to one user.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) is_private: bool,
    pub(crate) name: Name,
}

/// A message, as it is shown.
#[derive(Serialize)]
pub(crate) struct Post<'a> {
    pub(crate) id: &'a str,
    pub(crate) from: &'a Name,
    pub(crate) text: &'a str,
}

/// The newest messages.
#[derive(Default)]
pub(crate) struct Board {
    delivered: Shelf<Place>,
    /// Apart, so that a flood of withheld messages can't push out the delivered ones. Each user sees
    /// their own.
    withheld: Shelf<(Place, Name)>,
    posted: u64,
}

/// The messages of each place, oldest first, with their numbers.
struct Shelf<K> {
    stacks: HashMap<Arc<K>, Stack>,
    /// Where each message is, by its number.
    order: BTreeMap<u64, Arc<K>>,
    bytes: usize,
    /// The number from which on no message was dropped to make room for other places.
    whole_from: u64,
}

#[derive(Default)]
struct Stack {
    posts: VecDeque<(u64, Bytes)>,
    bytes: usize,
}

impl Board {
    pub(crate) fn post(&mut self, place: Place, post: &Post<'_>, is_delivered: bool) {
        // Text and names can always be written.
        let json = Bytes::from(serde_json::to_vec(post).unwrap_or_default());
        match is_delivered {
            true => self.delivered.add(place, self.posted, json),
            false => self.withheld.add((place, post.from.clone()), self.posted, json),
        }
        self.posted += 1;
    }

    /// Returns what `viewer` sees in a place: what was delivered, and their own.
    pub(crate) fn view(&self, place: Place, viewer: Option<Name>) -> History {
        let delivered = self.delivered.stacks.get(&place);
        let own = viewer.and_then(|viewer| self.withheld.stacks.get(&(place, viewer)));
        // As old as if they were delivered, or their sender could tell that they were not.
        let own = own.into_iter().flat_map(|stack| &stack.posts);
        let own = own.filter(|(number, _)| *number >= self.delivered.whole_from);
        let delivered = delivered.into_iter().flat_map(|stack| &stack.posts);
        let mut posts: Vec<&(u64, Bytes)> = delivered.chain(own).collect();
        posts.sort_unstable_by_key(|(number, _)| *number);
        let mut length = "[]".len();
        let newest = posts.into_iter().rev().map(|(_, post)| post.clone());
        History::new(newest.take(MOST_POSTS).take_while(|post| {
            length += post.len() + ",".len();
            length <= LONGEST_HISTORY
        }))
    }
}

impl<K: Hash + Eq> Shelf<K> {
    fn add(&mut self, key: K, number: u64, post: Bytes) {
        let key = match self.stacks.get_key_value(&key) {
            Some((key, _)) => key.clone(),
            None => Arc::new(key),
        };
        self.bytes += post.len() + OVERHEAD;
        self.order.insert(number, key.clone());
        let stack = self.stacks.entry(key.clone()).or_default();
        stack.bytes += post.len();
        stack.posts.push_back((number, post));
        while self.stacks.get(&key).is_some_and(Stack::is_too_long)
            && let Some(number) = self.drop_oldest_of(&key)
        {
            self.order.remove(&number);
        }
        while self.bytes > MOST_BYTES
            && let Some((number, key)) = self.order.pop_first()
        {
            self.whole_from = number + 1;
            self.drop_oldest_of(&key);
        }
    }

    /// Drops the oldest message of a place, and returns its number.
    fn drop_oldest_of(&mut self, key: &Arc<K>) -> Option<u64> {
        let stack = self.stacks.get_mut(key)?;
        let (number, post) = stack.posts.pop_front()?;
        stack.bytes -= post.len();
        self.bytes -= post.len() + OVERHEAD;
        if stack.posts.is_empty() {
            self.stacks.remove(key);
        }
        Some(number)
    }
}

impl Stack {
    /// Returns whether it is longer than a history.
    fn is_too_long(&self) -> bool {
        self.posts.len() > MOST_POSTS || self.bytes > LONGEST_HISTORY
    }
}

impl<K> Default for Shelf<K> {
    fn default() -> Self {
        Self { stacks: HashMap::new(), order: BTreeMap::new(), bytes: 0, whole_from: 0 }
    }
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;

    use super::*;

    fn place(name: &str) -> Place {
        Place { is_private: false, name: name.parse().unwrap() }
    }

    fn say(board: &mut Board, to: Place, from: &str, text: &str, is_delivered: bool) {
        let from = from.parse().unwrap();
        board.post(to, &Post { id: "1", from: &from, text }, is_delivered);
    }

    /// Returns the texts in a history, and its length in bytes.
    async fn texts(history: History) -> (Vec<String>, usize) {
        let body = history.into_response().into_body();
        let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let posts: Vec<serde_json::Value> = serde_json::from_slice(&bytes).unwrap();
        let text = |post: &serde_json::Value| post["text"].as_str().unwrap().to_owned();
        (posts.iter().map(text).collect(), bytes.len())
    }

    #[tokio::test]
    async fn history_is_the_newest_hundred() {
        let mut board = Board::default();
        assert_eq!(texts(board.view(place("a"), None)).await, (vec![], 2));
        for number in 0..150 {
            say(&mut board, place("a"), "alice", &format!("a{number}"), true);
            say(&mut board, place("a"), "mallory", &format!("m{number}"), false);
            say(&mut board, place("b"), "bob", "b", true);
        }
        let (seen, _) = texts(board.view(place("a"), None)).await;
        let expected: Vec<_> = (50..150).map(|number| format!("a{number}")).collect();
        assert_eq!(seen, expected);
        let (seen, _) = texts(board.view(place("a"), "mallory".parse().ok())).await;
        let both = (100..150).flat_map(|it| [format!("a{it}"), format!("m{it}")]);
        assert_eq!(seen, both.collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn own_messages_go_when_their_time_goes() {
        let mut board = Board::default();
        say(&mut board, place("quiet"), "mallory", "before", false);
        say(&mut board, place("quiet"), "alice", "hello", true);
        let text = "x".repeat(50_000);
        for number in 0..400 {
            say(&mut board, place(&number.to_string()), "bob", &text, true);
        }
        say(&mut board, place("quiet"), "mallory", "after", false);
        let (seen, _) = texts(board.view(place("quiet"), "mallory".parse().ok())).await;
        assert_eq!(seen, ["after"], "a message that was delivered would be gone too");
    }

    #[tokio::test]
    async fn history_and_board_have_bounded_bytes() {
        let mut board = Board::default();
        // Six bytes of JSON for each character.
        let text = "\u{1}".repeat(10_000);
        for number in 0..1_000 {
            for is_delivered in [true, false] {
                let room = place(&(number % 100).to_string());
                say(&mut board, room, &(number % 10).to_string(), &text, is_delivered);
            }
            assert!(board.delivered.bytes <= MOST_BYTES && board.withheld.bytes <= MOST_BYTES);
        }
        assert!(board.delivered.bytes > MOST_BYTES - 100_000);
        let (seen, length) = texts(board.view(place("99"), "9".parse().ok())).await;
        assert_eq!(seen.len(), 4, "{length} bytes");
        assert!((200_000..=LONGEST_HISTORY).contains(&length));
        let (seen, _) = texts(board.view(place("0"), None)).await;
        assert!(seen.len() <= 4, "the oldest went first");
    }

    #[test]
    fn short_messages_take_bounded_memory() {
        let mut board = Board::default();
        for number in 0..100_000 {
            say(&mut board, place(&number.to_string()), "a", "", number % 2 == 0);
        }
        let kept = board.delivered.order.len();
        assert_eq!((kept, kept), (board.delivered.stacks.len(), board.withheld.order.len()));
        assert!((MOST_BYTES / 700..MOST_BYTES / OVERHEAD).contains(&kept), "{kept}");
    }
}
