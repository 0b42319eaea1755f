//! [`Board`]: the newest messages of all rooms and private chats, in this process.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::body::Bytes;
use serde::Serialize;

use crate::history::History;
use crate::names::Name;

/// How many bytes of messages are kept.
const MOST_BYTES: usize = 32 * 1024 * 1024;
/// What a message costs beside its JSON: its places in the collections, and the names in them.
const OVERHEAD: usize = 1_200;
/// How many messages a history has, and is kept for it.
const MOST_POSTS: usize = 100;
/// How many bytes a history has.
const LONGEST_HISTORY: usize = 256_000;

/// Where a message is said: in a room, or to one user.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Room(Name),
    Private(Name),
}

/// A message, as it is shown.
#[derive(Serialize)]
pub(crate) struct Post<'a> {
    pub(crate) id: &'a str,
    pub(crate) from: &'a Name,
    pub(crate) text: &'a str,
}

/// The newest messages, each under the number in which they were accepted.
///
/// A full board drops the oldest message of its largest group: of a room, a pair or a sender. So a flood
/// drops its own messages, whether it is of one sender, in one room or to one user.
#[derive(Default)]
pub(crate) struct Board {
    posts: BTreeMap<u64, Kept>,
    groups: BTreeMap<Arc<Group>, Numbers>,
    by_size: BTreeSet<(Size, Arc<Group>)>,
    bytes: usize,
    accepted: u64,
}

struct Kept {
    json: Bytes,
    /// The one by which it is found, and that of its sender.
    groups: [Arc<Group>; 2],
}

/// Messages that share the room on the board.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Room(Name),
    Pair {
        to: Name,
        from: Name,
    },
    /// What only its sender sees there: it is not checked yet, or the sender is muted. Apart, so that
    /// it can't push out what others see.
    Own(Place, Name),
    Sender(Name),
}

impl Group {
    fn of_all(place: &Place, from: &Name) -> Self {
        match place {
            Place::Room(name) => Self::Room(name.clone()),
            Place::Private(to) => Self::Pair { to: to.clone(), from: from.clone() },
        }
    }
}

#[derive(Default)]
struct Numbers {
    numbers: BTreeSet<u64>,
    bytes: usize,
    /// The number from which on none was dropped because the board was full.
    whole_from: u64,
}

/// Of two groups with as many bytes, the one with the older message goes first.
type Size = (usize, Reverse<Option<u64>>);

impl Numbers {
    fn size(&self) -> Size {
        (self.bytes, Reverse(self.numbers.first().copied()))
    }

    /// Returns whether it is longer than a history.
    fn is_too_long(&self) -> bool {
        let count = self.numbers.len();
        count > MOST_POSTS || self.bytes > LONGEST_HISTORY + count * OVERHEAD
    }
}

impl Board {
    /// Takes a message that only its sender sees, and returns its number.
    pub(crate) fn accept(&mut self, place: Place, post: &Post<'_>) -> u64 {
        // Text and names can always be written.
        let json = Bytes::from(serde_json::to_vec(post).unwrap_or_default());
        let number = self.accepted;
        self.accepted += 1;
        self.add(number, json, Group::Own(place, post.from.clone()), post.from);
        number
    }

    /// Shows a message to all. It stands where it was accepted.
    pub(crate) fn deliver(&mut self, number: u64) {
        // It may have been dropped, as any message.
        let Some(kept) = self.remove(number) else { return };
        if let Group::Own(place, from) = &*kept.groups[0] {
            self.add(number, kept.json, Group::of_all(place, from), from);
        }
    }

    /// Returns what `viewer` sees in a place: what was delivered, and their own.
    ///
    /// At the viewer's own name these are the messages of all to them. Of each pair the newest come
    /// first, so that one sender can't hide the others.
    pub(crate) fn view(&self, place: &Place, viewer: &Name) -> History {
        let mut lines = vec![self.said(place, viewer)];
        if matches!(place, Place::Private(name) if name == viewer) {
            let first = Group::Pair { to: viewer.clone(), from: Name::default() };
            let pairs = self.groups.range(first..).map_while(|(group, numbers)| match &**group {
                Group::Pair { to, from } if to == viewer => Some((from, &numbers.numbers)),
                _ => None,
            });
            lines.extend(pairs.filter(|(from, _)| *from != viewer).map(|(_, it)| it.clone()));
        }
        let ranked = |line: &BTreeSet<u64>| {
            line.iter().rev().enumerate().map(|(rank, it)| (rank, Reverse(*it))).collect::<Vec<_>>()
        };
        let mut ranked: Vec<_> = lines.iter().flat_map(ranked).collect();
        ranked.sort_unstable();
        let mut length = "[]".len();
        let posts = ranked.into_iter().filter_map(|(_, Reverse(it))| Some((it, self.json(it)?)));
        let mut newest: Vec<_> = posts
            .take(MOST_POSTS)
            .take_while(|(_, json)| {
                length += json.len() + ",".len();
                length <= LONGEST_HISTORY
            })
            .collect();
        newest.sort_unstable_by_key(|(number, _)| Reverse(*number));
        History::new(newest.into_iter().map(|(_, json)| json))
    }

    /// Returns what was said in a room, or between the viewer and a user.
    fn said(&self, place: &Place, viewer: &Name) -> BTreeSet<u64> {
        let theirs = match place {
            Place::Room(name) => Group::Room(name.clone()),
            Place::Private(peer) => Group::Pair { to: viewer.clone(), from: peer.clone() },
        };
        let all = Group::of_all(place, viewer);
        // As old as if they were delivered, or their sender could tell that they were not.
        let whole_from = self.groups.get(&all).map_or(0, |it| it.whole_from);
        let own = Group::Own(place.clone(), viewer.clone());
        let own = self.groups.get(&own).into_iter().flat_map(|it| it.numbers.range(whole_from..));
        let shown = [all, theirs].map(|group| self.groups.get(&group));
        shown.into_iter().flatten().flat_map(|it| &it.numbers).chain(own).copied().collect()
    }

    fn json(&self, number: u64) -> Option<Bytes> {
        self.posts.get(&number).map(|kept| kept.json.clone())
    }

    fn add(&mut self, number: u64, json: Bytes, group: Group, from: &Name) {
        let groups = [Arc::new(group), Arc::new(Group::Sender(from.clone()))];
        let bytes = json.len() + OVERHEAD;
        self.bytes += bytes;
        let groups = groups.map(|group| {
            self.change(group, |it| {
                it.bytes += bytes;
                it.numbers.insert(number);
            })
        });
        let group = groups[0].clone();
        self.posts.insert(number, Kept { json, groups });
        while let Some(numbers) = self.groups.get(&group).filter(|it| it.is_too_long())
            && let Some(oldest) = numbers.numbers.first().copied()
        {
            self.remove(oldest);
        }
        while self.bytes > MOST_BYTES
            && let Some(((_, Reverse(Some(oldest))), group)) = self.by_size.last().cloned()
        {
            self.change(group, |it| it.whole_from = oldest + 1);
            self.remove(oldest);
        }
    }

    fn remove(&mut self, number: u64) -> Option<Kept> {
        let kept = self.posts.remove(&number)?;
        let bytes = kept.json.len() + OVERHEAD;
        self.bytes -= bytes;
        for group in &kept.groups {
            self.change(group.clone(), |it| {
                it.bytes -= bytes;
                it.numbers.remove(&number);
            });
        }
        Some(kept)
    }

    /// Changes a group and its place among the sizes. Returns the group as it is kept.
    fn change(&mut self, group: Arc<Group>, change: impl FnOnce(&mut Numbers)) -> Arc<Group> {
        let (group, mut numbers) =
            self.groups.remove_entry(&group).unwrap_or((group, Numbers::default()));
        self.by_size.remove(&(numbers.size(), group.clone()));
        change(&mut numbers);
        if !numbers.numbers.is_empty() {
            self.by_size.insert((numbers.size(), group.clone()));
            self.groups.insert(group.clone(), numbers);
        }
        group
    }
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;

    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn room(text: &str) -> Place {
        Place::Room(name(text))
    }

    fn to(text: &str) -> Place {
        Place::Private(name(text))
    }

    fn say(board: &mut Board, place: Place, from: &str, text: &str, is_delivered: bool) {
        let number = board.accept(place, &Post { id: "1", from: &name(from), text });
        if is_delivered {
            board.deliver(number);
        }
        assert!(board.bytes <= MOST_BYTES);
    }

    /// Returns the texts that a viewer sees, and their length in bytes.
    async fn view(board: &Board, place: Place, viewer: &str) -> (Vec<String>, usize) {
        let body = board.view(&place, &name(viewer)).into_response().into_body();
        let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let posts: Vec<serde_json::Value> = serde_json::from_slice(&bytes).unwrap();
        let text = |post: &serde_json::Value| post["text"].as_str().unwrap().to_owned();
        (posts.iter().map(text).collect(), bytes.len())
    }

    async fn texts(board: &Board, place: Place, viewer: &str) -> Vec<String> {
        view(board, place, viewer).await.0
    }

    #[tokio::test]
    async fn history_is_the_newest_hundred() {
        let mut board = Board::default();
        assert_eq!(view(&board, room("a"), "bob").await, (vec![], 2));
        for number in 0..150 {
            say(&mut board, room("a"), "alice", &format!("a{number}"), true);
            say(&mut board, room("a"), "mallory", &format!("m{number}"), false);
            say(&mut board, room("b"), "bob", "b", true);
        }
        let expected: Vec<_> = (50..150).map(|number| format!("a{number}")).collect();
        assert_eq!(texts(&board, room("a"), "bob").await, expected);
        let both = (100..150).flat_map(|it| [format!("a{it}"), format!("m{it}")]);
        assert_eq!(texts(&board, room("a"), "mallory").await, both.collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn messages_stand_in_the_order_of_acceptance() {
        let mut board = Board::default();
        let accept = |board: &mut Board, from, text| {
            board.accept(room("a"), &Post { id: "1", from: &name(from), text })
        };
        let numbers = [("alice", "1"), ("bob", "2"), ("alice", "3")]
            .map(|(from, text)| accept(&mut board, from, text));
        assert_eq!(texts(&board, room("a"), "alice").await, ["1", "3"], "at once to its sender");
        board.deliver(numbers[1]);
        assert_eq!(texts(&board, room("a"), "carol").await, ["2"]);
        assert_eq!(texts(&board, room("a"), "alice").await, ["1", "2", "3"]);
        board.deliver(numbers[2]);
        board.deliver(numbers[0]);
        assert_eq!(texts(&board, room("a"), "carol").await, ["1", "2", "3"]);
    }

    #[tokio::test]
    async fn a_sender_sees_the_same_muted_or_not() {
        let mut seed = 7_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        let [mut delivered, mut withheld] = [Board::default(), Board::default()];
        for number in 0..500 {
            let from = ["alice", "bob", "mallory"][random(3) as usize];
            let place =
                [room("a"), room("b"), to("bob"), to("mallory")][random(4) as usize].clone();
            let text = format!("{number} {}", "x".repeat(random(3) as usize * 4_000));
            say(&mut delivered, place.clone(), from, &text, true);
            say(&mut withheld, place.clone(), from, &text, from != "mallory");
            let seen = view(&delivered, place.clone(), "mallory").await;
            assert!(seen == view(&withheld, place, "mallory").await, "{number}");
        }
    }

    #[tokio::test]
    async fn only_the_two_of_a_pair_see_its_messages() {
        let mut board = Board::default();
        say(&mut board, to("bob"), "alice", "hello", true);
        say(&mut board, to("alice"), "bob", "hi", true);
        assert_eq!(texts(&board, to("bob"), "alice").await, ["hello", "hi"]);
        assert_eq!(texts(&board, to("alice"), "bob").await, ["hello", "hi"]);
        assert_eq!(texts(&board, to("bob"), "bob").await, ["hello"]);
        for place in ["alice", "bob", "eve"] {
            assert!(texts(&board, to(place), "eve").await.is_empty());
        }
    }

    #[tokio::test]
    async fn a_pair_has_its_own_share() {
        let mut board = Board::default();
        say(&mut board, to("bob"), "alice", "hello", true);
        for number in 0..300 {
            say(&mut board, to("bob"), &format!("bot {}", number % 2), "spam", true);
        }
        let seen = texts(&board, to("bob"), "bob").await;
        assert_eq!((seen.len(), seen[0].as_str()), (100, "hello"));
    }

    #[tokio::test]
    async fn a_flood_drops_its_own_messages() {
        // By one sender in many rooms, in a few rooms by many senders, and of muted senders.
        type Flood = fn(usize) -> (String, String);
        let floods: [(Flood, bool); 4] = [
            (|it| ("mallory".into(), it.to_string()), true),
            (|it| (it.to_string(), (it % 400).to_string()), true),
            (|it| ((it % 400).to_string(), it.to_string()), true),
            (|it| ("mallory".into(), it.to_string()), false),
        ];
        for (flood, is_delivered) in floods {
            let mut board = Board::default();
            for number in 0..20 {
                say(&mut board, room("quiet"), "alice", &number.to_string(), true);
            }
            say(&mut board, to("bob"), "alice", "hello", true);
            for number in 0..32_000 {
                let (from, place) = flood(number);
                say(&mut board, room(&place), &from, "spam", is_delivered);
            }
            assert_eq!(texts(&board, room("quiet"), "carol").await.len(), 20);
            assert_eq!(texts(&board, to("bob"), "bob").await, ["hello"]);
        }
    }

    #[tokio::test]
    async fn own_messages_go_when_their_time_goes() {
        let mut board = Board::default();
        let long = "x".repeat(9_000);
        for number in 0..40 {
            say(&mut board, room("busy"), &format!("user {}", number % 20), &long, true);
            say(&mut board, room("busy"), "mallory", &format!("m{number}"), false);
        }
        // Rooms of 200 kB each, so that `busy` is among the largest.
        for number in 0..8_000 {
            say(&mut board, room(&(number % 400).to_string()), &number.to_string(), &long, true);
        }
        let others = texts(&board, room("busy"), "carol").await.len();
        let own = texts(&board, room("busy"), "mallory").await.len() - others;
        assert!((1..15).contains(&others), "{others}");
        assert!((others..others + 2).contains(&own), "{own} and {others} of others");
    }

    #[tokio::test]
    async fn history_and_board_have_bounded_bytes() {
        let mut board = Board::default();
        // Six bytes of JSON for each character.
        let text = "\u{1}".repeat(10_000);
        for number in 0..1_000 {
            let (to, from) = ((number % 100).to_string(), (number % 10).to_string());
            say(&mut board, room(&to), &from, &text, number % 3 > 0);
        }
        assert!(board.bytes > MOST_BYTES - 100_000);
        let (seen, length) = view(&board, room("99"), "9").await;
        assert_eq!(seen.len(), 4, "{length} bytes");
        assert!((200_000..=LONGEST_HISTORY).contains(&length));
    }

    #[test]
    fn short_messages_take_bounded_memory() {
        let mut board = Board::default();
        for number in 0..40_000 {
            say(&mut board, room(&number.to_string()), &number.to_string(), "", number % 2 == 0);
        }
        let kept = board.posts.len();
        assert!((MOST_BYTES / 1_300..MOST_BYTES / OVERHEAD).contains(&kept), "{kept}");
        assert_eq!((2 * kept, 2 * kept), (board.groups.len(), board.by_size.len()));
    }
}
