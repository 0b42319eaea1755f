//! [`BanExplanation`]: what the ban record of a key says.

use std::fmt::{Display, Formatter, Result};
use std::time::Duration;

#[cfg(feature = "serde")]
use super::serial::{all_as_micros, as_micros, some_as_micros};
use crate::quota::Quota;

/// The ban record of a key: its ban, its strikes and its level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct BanExplanation {
    /// The remaining length of the ban, zero if the key is not banned.
    #[cfg_attr(feature = "serde", serde(rename = "remaining_us", serialize_with = "as_micros"))]
    pub remaining: Duration,
    /// The reason of the ban, empty if the key is not banned.
    pub reason: String,
    /// How long ago each strike was that counts, oldest first. There are at most 2,048.
    #[cfg_attr(feature = "serde", serde(rename = "strikes_us", serialize_with = "all_as_micros"))]
    pub strikes: Vec<Duration>,
    /// How many strikes within what time cause a ban. `None` if strikes are not counted.
    pub limit: Option<Quota>,
    /// For how long a denial is no new strike, because it lies in the episode of the last one.
    #[cfg_attr(feature = "serde", serde(rename = "episode_us", serialize_with = "as_micros"))]
    pub episode: Duration,
    /// The level: how many of the penalty's lengths the next ban skips.
    pub level: u32,
    /// The length of the next ban by strikes. `None` if strikes are not counted.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "next_ban_us", serialize_with = "some_as_micros")
    )]
    pub next_ban: Option<Duration>,
}

impl Display for BanExplanation {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self.remaining.is_zero() {
            true => f.write_str("not banned")?,
            // The reason is the caller's text, and may have any characters.
            false => write!(f, "banned for {:.3?}, reason {:?}", self.remaining, self.reason)?,
        }
        if let Some(limit) = self.limit {
            write!(f, "; strikes {} of {limit}", self.strikes.len())?;
        }
        if let Some(last) = self.strikes.last() {
            write!(f, ", the last {last:.3?} ago")?;
        }
        if !self.episode.is_zero() {
            write!(f, ", the next in {:.3?} at the earliest", self.episode)?;
        }
        write!(f, "; level {}", self.level)?;
        self.next_ban.iter().try_for_each(|length| write!(f, ", next ban {length:.3?}"))
    }
}
