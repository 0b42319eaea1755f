//! An explanation as text, for a person.

use std::fmt::{Display, Formatter, Result};

use uuid::Uuid;

use super::{Explanation, LoggedAdmission, QuotaExplanation};
use crate::window::outcome::DecidedBy;

/// How many admissions of a quota are written.
const MOST: usize = 20;

/// The last 8 digits of an identity. The first ones are those of its thread.
struct ShortId(Uuid);

impl Display for ShortId {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{:08x}", self.0.as_u64_pair().1 as u32)
    }
}

impl Display for Explanation {
    /// Writes the decision in the first line, then each quota with up to 20 of its admissions, and the
    /// ban record.
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "policy {}, cost {}: ", self.policy, self.cost)?;
        match self.admitted {
            true => f.write_str("admitted")?,
            false => write!(f, "denied, retry after {:.3?}", self.retry_after)?,
        }
        match self.decided_by {
            DecidedBy::Store => write!(f, " (decided by: {})", self.store)?,
            DecidedBy::LocalLog => f.write_str(
                " (decided by: the log in this process, because of an outage of the store)",
            )?,
            DecidedBy::FailurePolicy => f.write_str(
                " (decided by: the failure policy, because of an outage of the store; not counted)",
            )?,
        }
        self.quotas.iter().try_for_each(|quota| write!(f, "\n  {quota}"))?;
        self.ban.iter().try_for_each(|ban| write!(f, "\n  {ban}"))
    }
}

impl Display for QuotaExplanation {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{}: {} taken, {} free", self.quota, self.taken, self.free)?;
        match self.waits_for {
            Some(id) => write!(f, ", waits {:.3?} for {}", self.wait, ShortId(id))?,
            None if !self.wait.is_zero() => f.write_str(", the cost is above the limit")?,
            None => {}
        }
        let written = &self.admissions[..self.admissions.len().min(MOST)];
        written.iter().try_for_each(|admission| write!(f, "\n    {admission}"))?;
        let places: u32 = written.iter().map(|admission| admission.cost).sum();
        match self.taken.saturating_sub(places) {
            0 => Ok(()),
            more => write!(f, "\n    and {more} newer places"),
        }
    }
}

impl Display for LoggedAdmission {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{} {:.3?} ago, ", ShortId(self.id), self.age)?;
        if self.cost != 1 {
            write!(f, "{} places, ", self.cost)?;
        }
        write!(f, "leaves in {:.3?}", self.leaves_in)
    }
}
