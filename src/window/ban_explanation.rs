//! [`BanExplanation`]: what the ban record of a key says.

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
    /// How long ago each strike was that counts, oldest first. There are at most 100.
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
