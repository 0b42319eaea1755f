//! [`Standing`]: the exact rule of strikes and bans, pure.

use uuid::Uuid;

use super::Penalty;

/// How a key stands with a policy: its strikes and its ban.
///
/// Time is in microseconds since any fixed origin. Every store must agree with this module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// When the ban ends or has ended; 0 if there was none.
    pub(crate) until_us: u64,
    /// How many rungs the key has come up the ladder.
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

/// What a denial was to a key's standing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Struck {
    /// Nothing: no denial, or part of an episode that counts already.
    #[default]
    No,
    /// A strike.
    Strike,
    /// The strike that brought a ban.
    Banned,
}

impl Standing {
    /// Returns how long the ban goes on, zero if there is none.
    pub(crate) fn wait_us(&self, now_us: u64) -> u64 {
        self.until_us.saturating_sub(now_us)
    }

    /// Counts a denial by quotas of which the longest full one is `window_us` long.
    ///
    /// `rungs_us` is how long bans are for this request.
    pub(crate) fn strike(
        &mut self,
        now_us: u64,
        id: Uuid,
        window_us: u64,
        penalty: &Penalty,
        rungs_us: &[u64],
    ) -> Struck {
        let Some(strikes) = penalty.strikes() else { return Struck::No };
        if self.last_episode.is_some_and(|(began_us, long_us)| now_us < began_us + long_us) {
            return Struck::No;
        }
        self.last_episode = Some((now_us, window_us));
        let within_us = strikes.window_us();
        // A request that is asked again is no second strike.
        self.strikes.retain(|(struck_us, other)| struck_us + within_us > now_us && *other != id);
        self.strikes.push((now_us, id));
        if self.strikes.len() < strikes.limit() as usize {
            return Struck::Strike;
        }
        self.strikes.clear();
        let level = self.level_now(now_us, penalty);
        (self.seen_us, self.seen_there_us) = (now_us, None);
        let rung = (level as usize).min(rungs_us.len().saturating_sub(1));
        self.until_us = now_us + rungs_us.get(rung).copied().unwrap_or(0);
        self.level = (level + 1).min(rungs_us.len() as u64);
        self.reason = REASON.to_owned();
        Struck::Banned
    }

    /// Imposes a ban by hand, unless one stands that ends as late. Says whether it did.
    ///
    /// It takes the key no rung up, and leaves it those that it has come down since its last ban.
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

    /// Returns how many rungs the key is up the ladder, after what it has come down since its last
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

    fn strike(standing: &mut Standing, now_us: u64) -> Struck {
        let id = Uuid::new_v4();
        standing.strike(now_us, id, MINUTE, &penalty(), &penalty().rungs_us(id))
    }

    #[test]
    fn hammering_for_a_whole_window_is_one_strike() {
        let mut standing = Standing::default();
        assert_eq!(strike(&mut standing, 0), Struck::Strike);
        for second in 1..60 {
            assert_eq!(strike(&mut standing, second * 1_000_000), Struck::No);
        }
        assert_eq!(strike(&mut standing, MINUTE), Struck::Strike);
    }

    #[test]
    fn the_third_strike_within_the_time_is_a_ban_and_the_next_bans_are_longer() {
        let mut standing = Standing::default();
        let mut now_us = 0;
        for rung in [MINUTE, 60 * MINUTE, 24 * 60 * MINUTE, 24 * 60 * MINUTE] {
            assert_eq!(strike(&mut standing, now_us), Struck::Strike);
            assert_eq!(strike(&mut standing, now_us + MINUTE), Struck::Strike);
            assert_eq!(strike(&mut standing, now_us + 2 * MINUTE), Struck::Banned);
            assert_eq!(standing.wait_us(now_us + 2 * MINUTE), rung);
            assert_eq!(standing.wait_us(now_us + 2 * MINUTE + rung), 0);
            now_us += 2 * MINUTE + rung;
        }
    }

    #[test]
    fn strikes_that_lie_too_far_apart_are_no_ban() {
        let mut standing = Standing::default();
        for minute in (0..100).step_by(5) {
            assert_eq!(strike(&mut standing, minute * MINUTE), Struck::Strike);
        }
    }

    #[test]
    fn no_number_of_bans_is_above_the_ladder() {
        let mut standing = Standing { level: 3, until_us: MINUTE, ..Standing::default() };
        for minute in 1..4 {
            strike(&mut standing, minute * MINUTE);
        }
        assert_eq!(standing.wait_us(3 * MINUTE), 24 * 60 * MINUTE);
        let three_days = 3 * 24 * 60 * MINUTE;
        assert_eq!(standing.level_now(standing.until_us + three_days, &penalty()), 0);
    }

    #[test]
    fn a_request_that_is_asked_again_is_no_second_strike() {
        let (mut standing, id) = (Standing::default(), Uuid::new_v4());
        for minute in 0..5 {
            let rungs_us = penalty().rungs_us(id);
            let struck = standing.strike(minute * MINUTE, id, MINUTE, &penalty(), &rungs_us);
            assert_eq!(struck, Struck::Strike);
        }
    }

    #[test]
    fn ban_by_hand_keeps_rungs_come_down() {
        let day = 24 * 60 * MINUTE;
        let mut standing = Standing { level: 3, until_us: MINUTE, ..Standing::default() };
        assert!(standing.impose(MINUTE + 2 * day, MINUTE, "by hand", Some(&penalty())));
        assert_eq!(standing.level, 1, "two quiet days are two rungs");
        assert!(!standing.impose(MINUTE + 2 * day, MINUTE - 1, "shorter", Some(&penalty())));
        assert_eq!(standing.reason, "by hand");
    }

    #[test]
    fn a_standing_matters_as_long_as_its_strikes_and_its_episode() {
        let mut standing = Standing::default();
        strike(&mut standing, MINUTE);
        assert_eq!(standing.over_us(&penalty()), 11 * MINUTE, "the strikes are counted over ten");
        let (id, hour) = (Uuid::new_v4(), 60 * MINUTE);
        standing.strike(2 * MINUTE, id, hour, &penalty(), &penalty().rungs_us(id));
        assert_eq!(standing.over_us(&penalty()), 62 * MINUTE, "the episode is an hour long");
    }

    #[test]
    fn a_quiet_day_is_a_rung_down() {
        let mut standing = Standing { level: 2, until_us: MINUTE, ..Standing::default() };
        let day = 24 * 60 * MINUTE;
        for (quiet, level) in [(day - 1, 2), (day, 1), (2 * day - 1, 1), (2 * day, 0), (9 * day, 0)]
        {
            assert_eq!(standing.level_now(MINUTE + quiet, &penalty()), level);
        }
        assert_eq!(standing.over_us(&penalty()), MINUTE + 2 * day);
        strike(&mut standing, 0);
        assert_eq!(standing.over_us(&penalty()), MINUTE + 2 * day, "the longest counts");
    }
}
