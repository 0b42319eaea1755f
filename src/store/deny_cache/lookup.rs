//! [`Lookup`]: what a check needs to know from before it was sent, so that its denial can be cached.

use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::denials::Denials;
use super::hashed_log::Hashes;
use crate::window::{Check, LogId, Outcome};

/// A check that no cached denial answers.
pub(in crate::store) struct Lookup {
    sent_ns: u64,
    max_age: Duration,
    hashes: Hashes,
    generations: SmallVec<[u64; 2]>,
}

impl Denials {
    /// Returns the cached denial of a check that is about to be sent.
    ///
    /// # Errors
    ///
    /// If there is none, what [`Denials::end`] needs. It is `None` for a check whose denial is not cached.
    pub(super) fn look_up(
        &self,
        check: &Check,
        now: Instant,
        max_age: Duration,
    ) -> Result<Outcome, Option<Lookup>> {
        if !is_cached(check) {
            return Err(None);
        }
        let hashes = self.hashes(&check.logs);
        let now_ns = self.nanos_at(now);
        if !self.have_expired(now_ns)
            && let Some(outcome) = self.deny(check, &hashes, now_ns)
        {
            return Ok(outcome);
        }
        let mut generations = SmallVec::new();
        for hash in &hashes {
            generations.push(self.generation(*hash));
        }
        Err(Some(Lookup { sent_ns: now_ns, max_age, hashes, generations }))
    }

    /// Caches the denial of a check by the store, and drops the denials that its outcome makes wrong.
    pub(super) fn end(&self, lookup: Option<&Lookup>, logs: &[LogId], outcome: &Outcome) {
        let Some(Lookup { sent_ns, max_age, hashes, generations }) = lookup else {
            return self.observe(logs, &self.hashes(logs), outcome);
        };
        if !outcome.admitted {
            self.insert(logs, hashes, outcome, *sent_ns, *max_age, generations);
        } else if self.have_expired(*sent_ns) {
            // There is no denial to drop.
            return;
        }
        self.observe(logs, hashes, outcome);
    }
}

/// Returns whether denials of a check are cached.
///
/// The wait of a higher cost changes when a request of a lower cost is admitted, and a repeated request may
/// have been admitted before.
fn is_cached(check: &Check) -> bool {
    check.takes_one_place() && !check.repeated
}
