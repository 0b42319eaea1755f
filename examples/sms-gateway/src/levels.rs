//! [`Levels`]: the policies that messages are held to, made from a [`Document`] and lowered by the controller.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use example_support::policies::PolicySet;
use serde::{Deserialize, Serialize};
use tower_sliding_window::{Policy, PolicyError, PolicyHandle, Quota};

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

/// Why a document can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DocumentError {
    #[error("institution_share: it must be from 1 to 100 percent")]
    Share,
    #[error("{0}: there must be one, or no message could be sent")]
    Empty(&'static str),
    #[error("{0}: there are more than {MOST_MEMBERS}")]
    TooMany(&'static str),
    #[error("{list}: {name:?} is not 1 to 64 characters of a-z 0-9 _ . -")]
    Name { list: &'static str, name: String },
    #[error(
        "destinations: {0:?} is not + and what its numbers begin with, such as +49, or + for all"
    )]
    Destination(String),
    #[error("{place}: {source}")]
    Limit { place: String, source: PolicyError },
}

/// The limits of the members of a level, by name.
type Members = BTreeMap<String, Policy>;

impl Document {
    /// Reads the limits of each level. Those of the receivers have the name "".
    fn read(&self) -> Result<[Members; 4], DocumentError> {
        if !(1..=100).contains(&self.institution_share) {
            return Err(DocumentError::Share);
        }
        let lists = [&self.institutions, &self.channels, &self.destinations];
        let mut levels = [const { Members::new() }; 4];
        for ((list, limits), members) in LISTS.into_iter().zip(lists).zip(&mut levels) {
            match limits.len() {
                0 => return Err(DocumentError::Empty(list)),
                1..=MOST_MEMBERS => {}
                _ => return Err(DocumentError::TooMany(list)),
            }
            for (name, limit) in limits {
                check_name(list, name)?;
                members.insert(name.clone(), parse(format_args!("{list}.{name}"), limit)?);
            }
        }
        levels[3].insert(String::new(), parse(format_args!("receiver"), &self.receiver)?);
        Ok(levels)
    }

    /// Changes one limit, which `receiver` or `LIST/NAME` names, or removes a member of a list if there
    /// is no limit. Returns false if there is no such limit.
    pub(crate) fn change(&mut self, target: &str, limit: Option<String>) -> bool {
        let (list, name) = target.split_once('/').unwrap_or((target, ""));
        let members = match (list, limit.is_some()) {
            ("receiver", true) if name.is_empty() => {
                self.receiver = limit.unwrap_or_default();
                return true;
            }
            ("institutions", _) => &mut self.institutions,
            ("channels", _) => &mut self.channels,
            ("destinations", _) => &mut self.destinations,
            _ => return false,
        };
        match limit {
            Some(limit) => {
                members.insert(name.to_owned(), limit);
                true
            }
            None => members.remove(name).is_some(),
        }
    }
}

fn parse(place: std::fmt::Arguments<'_>, limit: &str) -> Result<Policy, DocumentError> {
    limit.parse().map_err(|source| DocumentError::Limit { place: place.to_string(), source })
}

/// A name that could be spelt in two ways would have two logs, so there are no capitals.
fn check_name(list: &'static str, name: &str) -> Result<(), DocumentError> {
    if list == "destinations" {
        let digits = name.strip_prefix('+').filter(|it| !it.starts_with('0') && it.len() <= 15);
        let fits = digits.is_some_and(|it| it.bytes().all(|byte| byte.is_ascii_digit()));
        return if fits { Ok(()) } else { Err(DocumentError::Destination(name.to_owned())) };
    }
    let allowed = |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit() || b"_.-".contains(&it);
    let fits = (1..=64).contains(&name.len()) && name.bytes().all(allowed);
    if fits { Ok(()) } else { Err(DocumentError::Name { list, name: name.to_owned() }) }
}

/// What a message is held to by one log.
#[derive(Clone)]
pub(crate) struct Limit {
    /// The name of the policy.
    pub(crate) name: &'static str,
    pub(crate) policy: PolicyHandle,
    /// How many parts fit if nothing lowers it.
    pub(crate) most: u32,
}

type Limits = BTreeMap<String, Limit>;

/// The policies in force. An institution's limit is the configured one times what the controller leaves of it.
pub(crate) struct Levels(RwLock<Live>);

struct Live {
    document: Document,
    levels: [Members; 4],
    /// What the controller leaves of the institutions' limits, in percent.
    left: u32,
    /// For all institutions together, by level.
    all: [Limits; 4],
    /// For each institution, by level. That of the institutions is empty.
    shares: [Limits; 4],
}

/// No member of this level fits a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unknown(pub(crate) &'static str);

impl Levels {
    /// Puts a document in force.
    pub(crate) fn new(document: Document) -> Result<Self, DocumentError> {
        let levels = document.read()?;
        let [all, shares] = [(); 2].map(|()| [const { Limits::new() }; 4]);
        let mut live = Live { document, levels, left: 100, all, shares };
        live.make();
        Ok(Self(RwLock::new(live)))
    }

    /// Returns the logs of a message: of each the limit, and the key.
    pub(crate) fn logs(&self, message: &Message) -> Result<Vec<(Limit, String)>, Unknown> {
        let Live { all, shares, .. } = &*self.live();
        let institution = &message.institution;
        let own = all[0].get(institution).ok_or(Unknown(LEVELS[0]))?;
        all[1].get(&message.channel).ok_or(Unknown(LEVELS[1]))?;
        // Of two prefixes the longer comes later in the order of texts.
        let mut prefixes = all[2].keys().rev();
        let prefix = prefixes.find(|prefix| message.to.starts_with(prefix.as_str()));
        let prefix = prefix.ok_or(Unknown(LEVELS[2]))?.as_str();
        let mut logs = vec![(own.clone(), institution.clone())];
        let channel = message.channel.as_str();
        let shared = [(1, channel, channel), (2, prefix, prefix), (3, "", &message.to)];
        for (level, name, key) in shared {
            let share = shares[level].get(name);
            logs.extend(share.map(|share| (share.clone(), format!("{key}/{institution}"))));
            logs.extend(all[level].get(name).map(|limit| (limit.clone(), key.to_owned())));
        }
        Ok(logs)
    }

    /// Returns how many institutions there are.
    pub(crate) fn institutions(&self) -> usize {
        self.live().all[0].len()
    }

    /// Tells whether there is an institution of this name.
    pub(crate) fn has_institution(&self, name: &str) -> bool {
        self.live().all[0].contains_key(name)
    }

    pub(crate) fn document(&self) -> Document {
        self.live().document.clone()
    }

    /// Returns what the controller leaves of the institutions' limits, in percent.
    pub(crate) fn left(&self) -> u32 {
        self.live().left
    }

    /// Leaves this much of the institutions' limits. Takes effect at once.
    pub(crate) fn leave(&self, percent: u32) {
        self.change(|live| live.left = percent);
    }

    fn live(&self) -> RwLockReadGuard<'_, Live> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Live)) {
        let mut live = self.0.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut live);
        live.make();
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
        self.change(|live| (live.document, live.levels) = (document.clone(), levels));
        Ok(())
    }
}

impl Live {
    /// Makes the policies of the document.
    fn make(&mut self) {
        let share = self.document.institution_share;
        for (level, members) in self.levels.iter().enumerate() {
            let left = if level == 0 { self.left } else { 100 };
            self.all[level] = limits(LEVELS[level], members, 100, left, &self.all[level]);
            self.shares[level] = match level > 0 && share < 100 {
                true => limits(SHARES[level], members, share, 100, &self.shares[level]),
                false => Limits::new(),
            };
        }
    }
}

/// Returns a share of these limits, of which the controller leaves a part.
///
/// A handle stays, and with it what is known of its denials, as long as the name of its logs is the one that
/// every other server makes of the same document.
fn limits(name: &'static str, members: &Members, share: u32, left: u32, before: &Limits) -> Limits {
    let limit = |(member, configured): (&String, &Policy)| {
        let configured = scaled(name, configured, share);
        let most = configured.quotas().iter().map(Quota::limit).min().unwrap_or(u32::MAX);
        let policy = scaled(name, &configured, left);
        let handle = before.get(member).map(|limit| &limit.policy).filter(|handle| {
            let held = handle.get();
            *held == policy
                || held.retention() == policy.retention() && handle.set(policy.clone()).is_ok()
        });
        let policy = handle.cloned().unwrap_or_else(|| PolicyHandle::new(policy));
        (member.clone(), Limit { name, policy, most })
    };
    members.iter().map(limit).collect()
}

/// Returns a policy of this name with a share of each limit, but at least 1.
fn scaled(name: &str, policy: &Policy, percent: u32) -> Policy {
    let policy_of = Policy::new(name).keep_for(KEPT);
    policy.quotas().iter().fold(policy_of, |scaled, quota| {
        let limit = u64::from(quota.limit()) * u64::from(percent) / 100;
        scaled.quota(Quota::new(u32::try_from(limit).unwrap_or(u32::MAX).max(1), quota.window()))
    })
}
