//! [`BanRecord`]: the exact rule of strikes and bans, pure.

use uuid::Uuid;

use crate::policy::Penalty;

/// How a key stands with a policy: its strikes and its ban.
///
/// Time is in microseconds since any fixed origin. Every store must agree with this module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BanRecord {
    /// When the ban ends or has ended; 0 if there was none.
    pub(crate) until_us: u64,
    /// How many levels the key has come up the levels.
    pub(crate) level: u64,
    /// Why there is a ban.
    pub(crate) reason: String,
    /// When the ban was imposed here.
    pub(crate) seen_us: u64,
    /// When the ban was last seen to stand in another store, on that store's clock.
    pub(crate) seen_there_us: Option<u64>,
    /// When the last episode began, and of how long a window.
    last_episode: Option<(u64, u64)>,
    /// When strikes were counted, oldest first, and for which requests.
    strikes: Vec<(u64, Uuid)>,
}

/// What a denial was to a key's record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Strike {
    /// Nothing: no denial, or part of an episode that counts already.
    #[default]
    None,
    /// A strike.
    Counted,
    /// The strike that brought a ban.
    Banned,
}

impl BanRecord {
    /// Returns how long the ban goes on, zero if there is none.
    pub(crate) fn wait_us(&self, now_us: u64) -> u64 {
        self.until_us.saturating_sub(now_us)
    }

    /// Counts a denial by quotas of which the longest full one is `window_us` long.
    ///
    /// `level_lengths_us` is how long bans are for this request.
    pub(crate) fn strike(
        &mut self,
        now_us: u64,
        id: Uuid,
        window_us: u64,
        penalty: &Penalty,
        level_lengths_us: &[u64],
    ) -> Strike {
        let Some(strikes) = penalty.strikes() else { return Strike::None };
        if self.last_episode.is_some_and(|(began_us, long_us)| now_us < began_us + long_us) {
            return Strike::None;
        }
        self.last_episode = Some((now_us, window_us));
        let within_us = strikes.window_us();
        // A request that is asked again is no second strike.
        self.strikes.retain(|(struck_us, other)| struck_us + within_us > now_us && *other != id);
        self.strikes.push((now_us, id));
        if self.strikes.len() < strikes.limit() as usize {
            return Strike::Counted;
        }
        self.strikes.clear();
        let level = self.level_now(now_us, penalty);
        (self.seen_us, self.seen_there_us) = (now_us, None);
        let place = (level as usize).min(level_lengths_us.len().saturating_sub(1));
        self.until_us = now_us + level_lengths_us.get(place).copied().unwrap_or(0);
        self.level = (level + 1).min(level_lengths_us.len() as u64);
        self.reason = REASON.to_owned();
        Strike::Banned
    }

    /// Imposes a ban by hand, unless one stands that ends as late. Says whether it did.
    ///
    /// It takes the key no level up, and leaves it those that it has come down since its last ban.
    pub(crate) fn impose(
        &mut self,
        now_us: u64,
        length_us: u64,
        reason: &str,
        penalty: Option<&Penalty>,
    ) -> bool {
        (self.seen_us, self.seen_there_us) = (now_us, None);
        let until_us = now_us.saturating_add(length_us);
        if length_us == 0 || until_us <= self.until_us {
            return false;
        }
        self.level = penalty.map_or(self.level, |penalty| self.level_now(now_us, penalty));
        (self.until_us, self.reason) = (until_us, reason.to_owned());
        true
    }

    /// Returns how many levels the key is up the levels, after what it has come down since its last
    /// ban.
    fn level_now(&self, now_us: u64, penalty: &Penalty) -> u64 {
        let quiet_us = now_us.saturating_sub(self.until_us);
        self.level.saturating_sub(quiet_us / penalty.decay_us())
    }

    /// Returns when nothing of this matters any longer.
    pub(crate) fn over_us(&self, penalty: &Penalty) -> u64 {
        let banned_us = self.until_us + self.level * penalty.decay_us();
        let within_us = penalty.strikes().map_or(0, |strikes| strikes.window_us());
        let strikes_us = self.strikes.last().map_or(0, |(struck_us, _)| struck_us + within_us);
        let episode_us = self.last_episode.map_or(0, |(began_us, long_us)| began_us + long_us);
        banned_us.max(strikes_us).max(episode_us)
    }
}

/// The reason of a ban that strikes have brought.
pub(crate) const REASON: &str = "strikes";

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000_000;

    fn penalty() -> Penalty {
        "3/10m:1m,1h,24h".parse().unwrap()
    }

    fn strike(record: &mut BanRecord, now_us: u64) -> Strike {
        let id = Uuid::new_v4();
        record.strike(now_us, id, MINUTE, &penalty(), &penalty().level_lengths_us(id))
    }

    #[test]
    fn hammering_for_a_whole_window_is_one_strike() {
        let mut record = BanRecord::default();
        assert_eq!(strike(&mut record, 0), Strike::Counted);
        for second in 1..60 {
            assert_eq!(strike(&mut record, second * 1_000_000), Strike::None);
        }
        assert_eq!(strike(&mut record, MINUTE), Strike::Counted);
    }

    #[test]
    fn the_third_strike_within_the_time_is_a_ban_and_the_next_bans_are_longer() {
        let mut record = BanRecord::default();
        let mut now_us = 0;
        for level in [MINUTE, 60 * MINUTE, 24 * 60 * MINUTE, 24 * 60 * MINUTE] {
            assert_eq!(strike(&mut record, now_us), Strike::Counted);
            assert_eq!(strike(&mut record, now_us + MINUTE), Strike::Counted);
            assert_eq!(strike(&mut record, now_us + 2 * MINUTE), Strike::Banned);
            assert_eq!(record.wait_us(now_us + 2 * MINUTE), level);
            assert_eq!(record.wait_us(now_us + 2 * MINUTE + level), 0);
            now_us += 2 * MINUTE + level;
        }
    }

    #[test]
    fn strikes_that_lie_too_far_apart_are_no_ban() {
        let mut record = BanRecord::default();
        for minute in (0..100).step_by(5) {
            assert_eq!(strike(&mut record, minute * MINUTE), Strike::Counted);
        }
    }

    #[test]
    fn no_number_of_bans_is_above_the_ladder() {
        let mut record = BanRecord { level: 3, until_us: MINUTE, ..BanRecord::default() };
        for minute in 1..4 {
            strike(&mut record, minute * MINUTE);
        }
        assert_eq!(record.wait_us(3 * MINUTE), 24 * 60 * MINUTE);
        let three_days = 3 * 24 * 60 * MINUTE;
        assert_eq!(record.level_now(record.until_us + three_days, &penalty()), 0);
    }

    #[test]
    fn a_request_that_is_asked_again_is_no_second_strike() {
        let (mut record, id) = (BanRecord::default(), Uuid::new_v4());
        for minute in 0..5 {
            let level_lengths_us = penalty().level_lengths_us(id);
            let strike = record.strike(minute * MINUTE, id, MINUTE, &penalty(), &level_lengths_us);
            assert_eq!(strike, Strike::Counted);
        }
    }

    #[test]
    fn ban_by_hand_keeps_rungs_come_down() {
        let day = 24 * 60 * MINUTE;
        let mut record = BanRecord { level: 3, until_us: MINUTE, ..BanRecord::default() };
        assert!(record.impose(MINUTE + 2 * day, MINUTE, "by hand", Some(&penalty())));
        assert_eq!(record.level, 1, "two quiet days are two levels");
        assert!(!record.impose(MINUTE + 2 * day, MINUTE - 1, "shorter", Some(&penalty())));
        assert_eq!(record.reason, "by hand");
    }

    #[test]
    fn a_standing_matters_as_long_as_its_strikes_and_its_episode() {
        let mut record = BanRecord::default();
        strike(&mut record, MINUTE);
        assert_eq!(record.over_us(&penalty()), 11 * MINUTE, "the strikes are counted over ten");
        let (id, hour) = (Uuid::new_v4(), 60 * MINUTE);
        record.strike(2 * MINUTE, id, hour, &penalty(), &penalty().level_lengths_us(id));
        assert_eq!(record.over_us(&penalty()), 62 * MINUTE, "the episode is an hour long");
    }

    #[test]
    fn a_quiet_day_is_a_rung_down() {
        let mut record = BanRecord { level: 2, until_us: MINUTE, ..BanRecord::default() };
        let day = 24 * 60 * MINUTE;
        for (quiet, level) in [(day - 1, 2), (day, 1), (2 * day - 1, 1), (2 * day, 0), (9 * day, 0)]
        {
            assert_eq!(record.level_now(MINUTE + quiet, &penalty()), level);
        }
        assert_eq!(record.over_us(&penalty()), MINUTE + 2 * day);
        strike(&mut record, 0);
        assert_eq!(record.over_us(&penalty()), MINUTE + 2 * day, "the longest counts");
    }
}
