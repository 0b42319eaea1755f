//! [`Levels`]: the policies that messages are held to, made from a [`Document`] and lowered by the controller.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use example_support::lock;
use example_support::policies::PolicySet;
use serde::{Deserialize, Serialize};
use tower_sliding_window::{Policy, PolicyHandle, Quota};

use crate::message::Message;

/// The levels, whose names their policies have.
pub(crate) const LEVELS: [&str; 4] = ["institution", "channel", "destination", "receiver"];
/// The policies that hold one institution to its share of a level.
const SHARES: [&str; 4] = ["", "channel-share", "destination-share", "receiver-share"];
/// The lists, each with the members of a level. The receivers are not listed: one policy is for all.
const LISTS: [&str; 3] = ["institutions", "channels", "destinations"];
/// The most members of a list.
const MOST_MEMBERS: usize = 1000;
/// How long each log keeps its entries at least. Up to here a change of a window keeps the log.
const KEPT: Duration = Duration::from_secs(60);

/// All that an operator can change: the lists, and the limits in the form `5/1s,20/1h`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Document {
    /// What one institution may take of each limit that institutions share, in percent.
    pub(crate) institution_share: u32,
    pub(crate) institutions: BTreeMap<String, String>,
    pub(crate) channels: BTreeMap<String, String>,
    pub(crate) destinations: BTreeMap<String, String>,
    pub(crate) receiver: String,
}

/// What is wrong with a document.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {why}")]
pub(crate) struct DocumentError {
    place: String,
    why: String,
}

/// The limits of the members of a level, by name.
type Members = BTreeMap<String, Policy>;

impl Document {
    /// Reads the limits of each level. That of the receivers has the name "".
    pub(crate) fn read(&self) -> Result<[Members; 4], DocumentError> {
        if !(1..=100).contains(&self.institution_share) {
            return wrong("institution_share", "it must be from 1 to 100 percent");
        }
        let lists = [&self.institutions, &self.channels, &self.destinations];
        let mut levels = [const { Members::new() }; 4];
        for ((list, limits), members) in LISTS.into_iter().zip(lists).zip(&mut levels) {
            if !(1..=MOST_MEMBERS).contains(&limits.len()) {
                return wrong(list, format_args!("there must be 1 to {MOST_MEMBERS}"));
            }
            for (name, limit) in limits {
                let place = format!("{list}.{name}");
                // A name that could be spelt in two ways would have two logs, so there are no capitals.
                if list == "destinations" && !is_prefix(name) {
                    return wrong(place, "write + and what its numbers begin with, such as +49");
                } else if list != "destinations" && !is_name(name) {
                    return wrong(place, "a name is 1 to 64 characters of a-z 0-9 _ . -");
                }
                members.insert(name.clone(), limit.parse().or_else(|it| wrong(place, it))?);
            }
        }
        let receiver = self.receiver.parse().or_else(|error| wrong("receiver", error))?;
        levels[3].insert(String::new(), receiver);
        Ok(levels)
    }

    /// Changes one limit, which `receiver` or `LIST/NAME` names, or removes a member of a list if there
    /// is no limit. Returns false if there is no such limit.
    pub(crate) fn change(&mut self, target: &str, limit: Option<String>) -> bool {
        let (list, name) = target.split_once('/').unwrap_or((target, ""));
        let members = match (list, &limit) {
            ("receiver", Some(limit)) => {
                self.receiver.clone_from(limit);
                return name.is_empty();
            }
            ("institutions", _) => &mut self.institutions,
            ("channels", _) => &mut self.channels,
            ("destinations", _) => &mut self.destinations,
            _ => return false,
        };
        let Some(limit) = limit else { return members.remove(name).is_some() };
        members.insert(name.to_owned(), limit);
        true
    }
}

fn wrong<T>(place: impl Into<String>, why: impl ToString) -> Result<T, DocumentError> {
    Err(DocumentError { place: place.into(), why: why.to_string() })
}

fn is_name(name: &str) -> bool {
    let allowed = |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit() || b"_.-".contains(&it);
    // Clients resolve `.` and `..` in a path.
    (1..=64).contains(&name.len()) && name.bytes().all(allowed) && !matches!(name, "." | "..")
}

/// Tells whether telephone numbers may begin so. `+` is for all.
fn is_prefix(name: &str) -> bool {
    let digits = name.strip_prefix('+').filter(|it| !it.starts_with('0') && it.len() <= 15);
    digits.is_some_and(|it| it.bytes().all(|byte| byte.is_ascii_digit()))
}

/// What a message is held to by one log.
#[derive(Clone)]
pub(crate) struct Limit {
    pub(crate) policy: PolicyHandle,
    /// How many parts fit if nothing lowers it.
    pub(crate) most: u32,
}

type Limits = BTreeMap<String, Limit>;

/// The policies in force. An institution's limit is the configured one times what the controller leaves of it.
pub(crate) struct Levels(Mutex<Live>);

#[derive(Default)]
struct Live {
    institution_share: u32,
    levels: [Members; 4],
    /// What the controller leaves of the institutions' limits, in percent.
    left: u32,
    /// For all institutions together, by level.
    all: [Limits; 4],
    /// For each institution, by level. That of the institutions is empty.
    shares: [Limits; 4],
}

impl Levels {
    /// Puts a document in force.
    pub(crate) fn new(document: &Document) -> Result<Self, DocumentError> {
        let levels = Self(Mutex::new(Live { left: 100, ..Live::default() }));
        levels.apply(document)?;
        Ok(levels)
    }

    /// Returns the logs of a message: of each the limit, and the key. Or the level of which no member fits the message.
    pub(crate) fn logs(&self, message: &Message) -> Result<Vec<(Limit, String)>, &'static str> {
        let Live { all, shares, .. } = &*lock(&self.0);
        let institution = &message.institution;
        let own = all[0].get(institution).ok_or(LEVELS[0])?;
        all[1].get(&message.channel).ok_or(LEVELS[1])?;
        // Of two prefixes the longer comes later in the order of texts.
        let mut prefixes = all[2].keys().rev();
        let prefix = prefixes.find(|prefix| message.to.starts_with(prefix.as_str()));
        let prefix = prefix.ok_or(LEVELS[2])?.as_str();
        let mut logs = vec![(own.clone(), institution.clone())];
        let channel = message.channel.as_str();
        let shared = [(1, channel, channel), (2, prefix, prefix), (3, "", &message.to)];
        for (level, name, key) in shared {
            let share = shares[level].get(name);
            logs.extend(share.map(|share| (share.clone(), format!("{key}/{institution}"))));
            // On a Cluster logs are asked in the order of their keys. `~` comes last: who is above a limit of its own takes
            // no place for a moment in what all share.
            logs.extend(all[level].get(name).map(|limit| (limit.clone(), format!("~{key}"))));
        }
        Ok(logs)
    }

    /// Returns how many institutions there are.
    pub(crate) fn institutions(&self) -> usize {
        lock(&self.0).all[0].len()
    }

    /// Returns what the controller leaves of the institutions' limits, in percent.
    pub(crate) fn left(&self) -> u32 {
        lock(&self.0).left
    }

    /// Leaves this much of the institutions' limits. Takes effect at once.
    pub(crate) fn leave(&self, percent: u32) {
        self.change(|live| live.left = percent);
    }

    /// Changes what the policies are made of, and makes them.
    fn change(&self, change: impl FnOnce(&mut Live)) {
        let live = &mut *lock(&self.0);
        change(live);
        let share = live.institution_share;
        for (level, members) in live.levels.iter().enumerate() {
            let left = if level == 0 { live.left } else { 100 };
            live.all[level] = limits(LEVELS[level], members, 100, left, &live.all[level]);
            live.shares[level] = match level > 0 && share < 100 {
                true => limits(SHARES[level], members, share, 100, &live.shares[level]),
                false => Limits::new(),
            };
        }
    }
}

impl PolicySet for Levels {
    type Document = Document;
    type Error = DocumentError;

    fn check(&self, document: &Document) -> Result<(), DocumentError> {
        document.read().map(drop)
    }

    fn apply(&self, document: &Document) -> Result<(), DocumentError> {
        let levels = document.read()?;
        let share = document.institution_share;
        self.change(|live| (live.institution_share, live.levels) = (share, levels));
        Ok(())
    }
}

/// Returns a share of these limits, of which the controller leaves a part.
///
/// A handle stays. As the policies say how long they keep their entries, the name of the logs is the one that
/// every other server makes of the same document.
fn limits(name: &'static str, members: &Members, share: u32, left: u32, before: &Limits) -> Limits {
    let limit = |(member, configured): (&String, &Policy)| {
        let configured = scaled(name, configured, share);
        let most = configured.quotas().iter().map(Quota::limit).min().unwrap_or(u32::MAX);
        let policy = scaled(name, &configured, left);
        // What is known of denials stays if nothing changes.
        let handle = before
            .get(member)
            .map(|limit| limit.policy.clone())
            .filter(|handle| *handle.get() == policy || handle.set(policy.clone()).is_ok());
        let policy = handle.unwrap_or_else(|| PolicyHandle::new(policy));
        (member.clone(), Limit { policy, most })
    };
    members.iter().map(limit).collect()
}

/// Returns a policy of this name with a share of each limit, but at least 1.
fn scaled(name: &str, policy: &Policy, percent: u32) -> Policy {
    // The parts of a message are its cost.
    let policy_of = Policy::new(name).keep_for(KEPT).budget();
    policy.quotas().iter().fold(policy_of, |scaled, quota| {
        let limit = u64::from(quota.limit()) * u64::from(percent) / 100;
        scaled.quota(Quota::new(u32::try_from(limit).unwrap_or(u32::MAX).max(1), quota.window()))
    })
}
