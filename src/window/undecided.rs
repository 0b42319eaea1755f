//! [`Undecided`]: a check that has no outcome yet.

use std::ops::{Deref, DerefMut};

use smallvec::SmallVec;

use super::check::Check;
use super::decision::{Admitted, Decided, Decision, Denied, Usage};
use super::outcome::Outcome;

/// A check that has no outcome yet.
///
/// It is boxed, and the box has room for the outcome. So a decision takes no further allocation, and it is
/// small: it is moved many times until the response is made, and each move of a large value costs time.
#[derive(Clone, Debug)]
pub(crate) struct Undecided(Box<Decided>);

impl Undecided {
    #[inline]
    pub(crate) fn new(check: Check) -> Self {
        Self(Box::new(Decided { check, outcome: Outcome::from_logs(false, SmallVec::new()) }))
    }

    /// Returns the decision with an outcome.
    #[inline]
    pub(crate) fn decide(self, outcome: Outcome) -> Decision {
        let is_admitted = outcome.admitted;
        let usage = self.usage(outcome);
        match is_admitted {
            true => Decision::Admitted(Admitted { usage }),
            false => Decision::Denied(Denied { usage }),
        }
    }

    /// Returns the state of the logs in an outcome.
    #[inline]
    pub(crate) fn usage(mut self, outcome: Outcome) -> Usage {
        self.0.outcome = outcome;
        Usage { decided: self.0 }
    }
}

impl Deref for Undecided {
    type Target = Check;

    fn deref(&self) -> &Check {
        &self.0.check
    }
}

impl DerefMut for Undecided {
    fn deref_mut(&mut self) -> &mut Check {
        &mut self.0.check
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decision_is_small() {
        assert_eq!(size_of::<Decision>(), 2 * size_of::<usize>());
    }
}
