//! [`Board`]: the messages of all rooms and private chats, in this process.

use std::collections::VecDeque;

use serde::Serialize;

use crate::names::Name;

/// How many bytes of messages are kept, delivered or withheld each; the oldest go first.
const MOST_BYTES: usize = 16 * 1024 * 1024;
/// What a message costs beside its texts.
const OVERHEAD: usize = 200;

/// Where a message is said: in a room, or to one user.
#[derive(PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) is_private: bool,
    pub(crate) name: Name,
}

/// A message, as it is shown.
#[derive(Clone, Serialize)]
pub(crate) struct Post {
    pub(crate) id: String,
    pub(crate) from: Name,
    pub(crate) text: String,
}

/// The newest messages.
#[derive(Default)]
pub(crate) struct Board {
    delivered: Shelf,
    /// Apart, so that a flood of withheld messages can't push out the delivered ones.
    withheld: Shelf,
    posted: u64,
}

#[derive(Default)]
struct Shelf {
    posts: VecDeque<(u64, Place, Post)>,
    bytes: usize,
}

impl Board {
    pub(crate) fn post(&mut self, place: Place, post: Post, is_delivered: bool) {
        let shelf = if is_delivered { &mut self.delivered } else { &mut self.withheld };
        shelf.add(self.posted, place, post);
        self.posted += 1;
    }

    /// Returns what `viewer` sees in a place, oldest first: what was delivered, and their own.
    pub(crate) fn view(&self, place: &Place, viewer: Option<&Name>) -> Vec<Post> {
        let delivered = self.delivered.at(place);
        let withheld = self.withheld.at(place);
        let own = withheld.filter(|(_, _, post)| Some(&post.from) == viewer);
        let mut posts: Vec<_> = delivered.chain(own).collect();
        posts.sort_by_key(|(number, _, _)| *number);
        posts.into_iter().map(|(_, _, post)| post.clone()).collect()
    }
}

impl Shelf {
    fn add(&mut self, number: u64, place: Place, post: Post) {
        self.bytes += size(&post);
        self.posts.push_back((number, place, post));
        while self.bytes > MOST_BYTES {
            let Some((_, _, oldest)) = self.posts.pop_front() else { break };
            self.bytes -= size(&oldest);
        }
    }

    fn at(&self, place: &Place) -> impl Iterator<Item = &(u64, Place, Post)> {
        self.posts.iter().filter(move |(_, at, _)| at == place)
    }
}

/// A place has a name too, no longer than a sender's.
fn size(post: &Post) -> usize {
    post.text.len() + OVERHEAD + 2 * Name::LONGEST
}
