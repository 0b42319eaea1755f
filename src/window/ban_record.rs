//! [`BanRecord`]: the strikes and the ban of a key.

use std::time::Duration;

use uuid::Uuid;

use super::costs::Entry;
use super::explanation::BanExplanation;
use crate::policy::Penalty;
use crate::time::micros;

/// The ban, the strikes and the level of one key under one policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BanRecord {
    /// When the latest ban ends or ended. 0 if there was none.
    pub(crate) until_us: u64,
    /// The key's level since that ban began, before any decay: the index of the next ban's length among
    /// the penalty's levels.
    pub(crate) level: u64,
    pub(crate) reason: String,
    /// How long the latest ban was when it was imposed by hand. 0 for one by strikes.
    pub(crate) length_us: u64,
    /// When this process imposed the ban, or sent the call that last found it in another store.
    pub(crate) seen_us: u64,
    /// Whether another store was found to have it.
    pub(crate) is_shared: bool,
    /// When the last episode ends.
    pub(crate) episode_until_us: u64,
    /// The time and the request of each strike, oldest first.
    pub(crate) strikes: Vec<Entry>,
}

/// The effect of a check on the strikes of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Strike {
    /// The request was no strike: it was not denied by a quota, or its episode counts already.
    #[default]
    None,
    /// The request was a strike.
    Counted,
    /// The request was the strike that caused a ban.
    Banned,
}

impl BanRecord {
    /// Returns what the record says at an instant.
    pub(crate) fn explain(&self, now_us: u64, penalty: &Penalty) -> BanExplanation {
        let remaining_us = self.wait_us(now_us);
        let level = self.level_at(now_us, penalty);
        let limit = penalty.strikes();
        let within_us = limit.map_or(0, |strikes| strikes.window_us());
        let counts = self.strikes.iter().filter(|it| it.at_us + within_us > now_us);
        let ages = counts.map(|it| Duration::from_micros(now_us.saturating_sub(it.at_us)));
        BanExplanation {
            remaining: Duration::from_micros(remaining_us),
            reason: if remaining_us > 0 { self.reason.clone() } else { String::new() },
            strikes: ages.collect(),
            limit,
            episode: Duration::from_micros(self.episode_us(now_us)),
            level: u32::try_from(level).unwrap_or(u32::MAX),
            next_ban: limit.map(|_| length_at(level, penalty)),
        }
    }

    /// Returns the remaining length of the ban, zero if the key is not banned.
    pub(crate) fn wait_us(&self, now_us: u64) -> u64 {
        self.until_us.saturating_sub(now_us)
    }

    /// Returns for how long further denials are no strikes.
    pub(crate) fn episode_us(&self, now_us: u64) -> u64 {
        self.episode_until_us.saturating_sub(now_us)
    }

    /// Records a denial. `window_us` is the longest window among the full quotas.
    ///
    /// The denial is a strike unless it lies in an episode. A strike begins an episode of
    /// `window_us`. The strike that completes the penalty's number bans the key.
    pub(crate) fn strike(
        &mut self,
        now_us: u64,
        id: Uuid,
        window_us: u64,
        penalty: &Penalty,
    ) -> Strike {
        let Some(strikes) = penalty.strikes() else { return Strike::None };
        if self.episode_us(now_us) > 0 {
            return Strike::None;
        }
        self.episode_until_us = now_us + window_us;
        let within_us = strikes.window_us();
        // A repeated check replaces its earlier strike. Another penalty may count strikes for longer.
        self.strikes.retain(|other| other.id != id);
        self.strikes.push(Entry { at_us: now_us, id });
        self.strikes.drain(..self.strikes.len().saturating_sub(MOST_STRIKES));
        let counts = self.strikes.iter().filter(|it| it.at_us + within_us > now_us);
        if counts.count() < strikes.limit() as usize {
            return Strike::Counted;
        }
        self.strikes.clear();
        let level = self.level_at(now_us, penalty);
        (self.seen_us, self.is_shared) = (now_us, false);
        self.until_us = now_us + micros(length_at(level, penalty));
        self.level = (level + 1).min(penalty.levels().len() as u64);
        (self.reason, self.length_us) = (STRIKES_REASON.to_owned(), 0);
        Strike::Banned
    }

    /// Imposes a ban, unless the present ban ends at the same time or later, or, if `only_longer` is set, was
    /// imposed for as long. Returns whether the ban was imposed.
    ///
    /// The key's level does not rise. The levels that it has come down since its last ban stay lost.
    pub(crate) fn impose(
        &mut self,
        now_us: u64,
        length_us: u64,
        reason: &str,
        penalty: Option<&Penalty>,
        only_longer: bool,
    ) -> bool {
        (self.seen_us, self.is_shared) = (now_us, false);
        let until_us = now_us.saturating_add(length_us);
        let is_covered = only_longer && self.until_us > now_us && length_us <= self.length_us;
        if length_us == 0 || until_us <= self.until_us || is_covered {
            return false;
        }
        self.level = penalty.map_or(self.level, |penalty| self.level_at(now_us, penalty));
        (self.until_us, self.reason, self.length_us) = (until_us, reason.to_owned(), length_us);
        true
    }

    /// Returns the key's level at an instant: one less for each decay time since its last ban ended.
    fn level_at(&self, now_us: u64, penalty: &Penalty) -> u64 {
        let unbanned_us = now_us.saturating_sub(self.until_us);
        self.level.saturating_sub(unbanned_us / penalty.decay_us())
    }

    /// Returns when the record expires: from then on it decides as an empty record does.
    pub(crate) fn expires_us(&self, penalty: &Penalty) -> u64 {
        let levels_us = self.until_us + self.level * penalty.decay_us();
        let within_us = penalty.strikes().map_or(0, |strikes| strikes.window_us());
        let strikes_us = self.strikes.last().map_or(0, |it| it.at_us + within_us);
        levels_us.max(strikes_us).max(self.episode_until_us)
    }
}

/// Returns the length of a ban by strikes. After the last length, the last one repeats.
fn length_at(level: u64, penalty: &Penalty) -> Duration {
    let lengths = penalty.levels();
    lengths.get(level as usize).or(lengths.last()).copied().unwrap_or_default()
}

/// The most strikes that a penalty can count.
const MOST_STRIKES: usize = 100;

/// The reason of a ban that strikes have caused.
pub(crate) const STRIKES_REASON: &str = "strikes";

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000_000;

    #[test]
    fn number_of_strikes_is_bounded() {
        let (mut record, penalty) = (BanRecord::default(), "2/1s:1h".parse().unwrap());
        for minute in 0..200 {
            record.strike(minute * MINUTE, Uuid::new_v4(), 1, &penalty);
        }
        assert_eq!(record.strikes.len(), MOST_STRIKES);
    }

    #[test]
    fn record_outlives_strikes_and_episode() {
        let (mut record, penalty) = (BanRecord::default(), "3/10m:1m,1h,24h".parse().unwrap());
        for (minute, minutes, expires) in [(1, 1, 11), (2, 60, 62)] {
            record.strike(minute * MINUTE, Uuid::new_v4(), minutes * MINUTE, &penalty);
            assert_eq!(record.expires_us(&penalty), expires * MINUTE);
        }
    }
}
