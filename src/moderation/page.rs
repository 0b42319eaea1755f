//! [`MutePage`]: a part of the active mutes, for an operator.

use std::fmt;
use std::str::FromStr;

use super::decision::Mute;
use super::monitor::SpeechMonitor;
use crate::error::StoreError;
use crate::key::Key;
use crate::store::BanCursor;

/// The position where a [page](SpeechMonitor::mutes) of mutes begins. Defaults to the first page.
///
/// Its text form fits into a URL. A cursor is valid only for the store that created it.
///
/// ```
/// use tower_sliding_window::moderation::MuteCursor;
///
/// let first = MuteCursor::default();
/// assert_eq!(first.to_string().parse(), Ok(first));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MuteCursor(u64);

impl fmt::Display for MuteCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for MuteCursor {
    type Err = ParseMuteCursorError;

    fn from_str(text: &str) -> Result<Self, ParseMuteCursorError> {
        // In the form of the cursor of bans.
        let cursor = text.parse::<BanCursor>();
        let position = cursor.map(|cursor| Self(cursor.position()));
        position.map_err(|_| ParseMuteCursorError { text: text.to_owned() })
    }
}

/// The error of a text that is not a [`MuteCursor`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not the cursor of a page of mutes")]
pub struct ParseMuteCursorError {
    text: String,
}

/// A part of the active mutes, in no particular order.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct MutePage {
    /// The muted senders, each with its mute.
    pub mutes: Vec<(Key, Mute)>,
    /// Where the next page begins, or `None` after the last page.
    pub next: Option<MuteCursor>,
}

impl SpeechMonitor {
    /// Returns about `count` of the active mutes, and where the next page begins.
    ///
    /// A mute that is active while all pages are read is in one of them. On Redis it can be in two, and
    /// a page can have a few more mutes than `count`.
    ///
    /// The work of a page is bounded: it reads at most 100,000 keys, on Redis those of the whole
    /// database. So a page can have fewer mutes than `count`, even none, without being the last one. It
    /// takes one call of the store for each mute. It is for an admin page, not for each message.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unsupported`] on a Cluster, and any other [`StoreError`] if the store fails.
    pub async fn mutes(&self, cursor: MuteCursor, count: usize) -> Result<MutePage, StoreError> {
        let (senders, next) = self.store.muted_senders(cursor.0, count).await?;
        let mut mutes = Vec::with_capacity(senders.len());
        for sender in senders {
            if let Some(mute) = self.stored_mute(&sender).await? {
                mutes.push((sender, mute));
            }
        }
        Ok(MutePage { mutes, next: next.map(MuteCursor) })
    }
}
