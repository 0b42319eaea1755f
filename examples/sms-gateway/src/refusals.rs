//! [`Refusals`]: what refuses how many messages of each institution.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use example_support::lock;

use crate::name::Name;
use crate::tally::Tally;
use crate::thresholds::Level;

/// The most institutions that are counted. It is above the number that there may be.
const MOST: usize = 2000;

/// What refuses messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refuser {
    /// A level, whose window is full.
    Level(Level),
    /// The bucket.
    Global,
    /// The lines of messages that wait.
    Hold,
}

impl Refuser {
    pub(crate) const ALL: [Self; 6] = [
        Self::Level(Level::Institution),
        Self::Level(Level::Channel),
        Self::Level(Level::Destination),
        Self::Level(Level::Receiver),
        Self::Global,
        Self::Hold,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Level(level) => level.name(),
            Self::Global => "global",
            Self::Hold => "hold",
        }
    }

    const fn index(self) -> usize {
        match self {
            Self::Level(level) => level as usize,
            Self::Global => Level::ALL.len(),
            Self::Hold => Level::ALL.len() + 1,
        }
    }
}

const COUNTED: usize = 2 * Refuser::ALL.len();

/// How many messages one thing has decided on, and how many of them it has refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Decided {
    pub(crate) messages: u64,
    pub(crate) refused: u64,
}

/// What one refuser has decided in the window of the alerts.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Recent {
    /// On the messages of all institutions.
    pub(crate) all: Decided,
    /// The institution of most refusals, with what was decided on its messages.
    pub(crate) most: Option<(Name, Decided)>,
}

struct Counts {
    /// Refusals from the start, in the order of [`Refuser::ALL`].
    refused: [u64; Refuser::ALL.len()],
    /// Messages decided on, and messages refused, of each.
    recent: Tally<COUNTED>,
}

impl Counts {
    fn recently(&mut self) -> [Decided; Refuser::ALL.len()] {
        let recent = self.recent.sum();
        Refuser::ALL.map(|refuser| {
            let index = refuser.index();
            Decided { messages: recent[index], refused: recent[Refuser::ALL.len() + index] }
        })
    }
}

/// Counts for each institution, over the window of the alerts and from the start of the server.
pub(crate) struct Refusals {
    window: Duration,
    institutions: Mutex<BTreeMap<Name, Counts>>,
}

impl Refusals {
    pub(crate) fn new(window: Duration) -> Self {
        Self { window, institutions: Mutex::default() }
    }

    /// Returns how far back recent refusals are counted.
    pub(crate) fn window(&self) -> Duration {
        self.window
    }

    /// Counts a message of an institution. If too many institutions are counted, those are forgotten
    /// that are gone.
    pub(crate) fn count(
        &self,
        institution: &Name,
        decided: &[(Refuser, bool)],
        is_there: impl Fn(&Name) -> bool,
    ) {
        if decided.is_empty() {
            return;
        }
        let mut marks = [false; COUNTED];
        for (refuser, refused) in decided {
            marks[refuser.index()] = true;
            marks[Refuser::ALL.len() + refuser.index()] = *refused;
        }
        let mut institutions = lock(&self.institutions);
        if institutions.len() >= MOST && !institutions.contains_key(institution) {
            institutions.retain(|name, _| is_there(name));
        }
        let counts = institutions.entry(institution.clone()).or_insert_with(|| Counts {
            refused: Default::default(),
            recent: Tally::new(self.window),
        });
        counts.recent.add(marks);
        for (refuser, _) in decided.iter().filter(|(_, refused)| *refused) {
            counts.refused[refuser.index()] += 1;
        }
    }

    /// Returns how many messages of an institution each refuser has refused: from the start, and in the
    /// window.
    pub(crate) fn of(&self, institution: &Name) -> [(Refuser, u64, u64); Refuser::ALL.len()] {
        let mut institutions = lock(&self.institutions);
        let counts = institutions.get_mut(institution);
        let both = counts.map(|counts| (counts.refused, counts.recently()));
        let (refused, recently) = both.unwrap_or_default();
        Refuser::ALL.map(|refuser| {
            let index = refuser.index();
            (refuser, refused[index], recently[index].refused)
        })
    }

    /// Returns for each of [`Refuser::ALL`] what it has decided in the window.
    pub(crate) fn recently(&self) -> [Recent; Refuser::ALL.len()] {
        let mut recent: [Recent; Refuser::ALL.len()] = Default::default();
        for (name, counts) in lock(&self.institutions).iter_mut() {
            for (own, recent) in counts.recently().into_iter().zip(&mut recent) {
                recent.all.messages += own.messages;
                recent.all.refused += own.refused;
                if own.refused > recent.most.as_ref().map_or(0, |(_, most)| most.refused) {
                    recent.most = Some((name.clone(), own));
                }
            }
        }
        recent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn refusals_name_the_institution_of_most() {
        let refusals = Refusals::new(Duration::from_secs(60));
        let [bank, shop]: [Name; 2] = ["bank", "shop"].map(|name| name.parse().unwrap());
        let by = Refuser::Level(Level::Channel);
        let of_channels = || -> Recent {
            let [_, recent, ..] = refusals.recently();
            recent
        };
        assert_eq!(of_channels(), Recent::default());
        for (name, refused) in [(&bank, true), (&shop, true), (&shop, true), (&bank, false)] {
            refusals.count(name, &[(by, refused)], |_| true);
        }
        let shops = Decided { messages: 2, refused: 2 };
        let all = Decided { messages: 4, refused: 3 };
        assert_eq!(of_channels(), Recent { all, most: Some((shop.clone(), shops)) });
        assert_eq!(refusals.recently()[Refuser::Global.index()], Recent::default());
        tokio::time::advance(Duration::from_secs(63)).await;
        assert_eq!(of_channels(), Recent::default());
        assert_eq!(refusals.of(&shop)[1], (by, 2, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn counts_of_removed_institutions_are_bounded() {
        let refusals = Refusals::new(Duration::from_secs(60));
        for number in 0..3 * MOST {
            let name: Name = format!("i{number}").parse().unwrap();
            refusals.count(&name, &[(Refuser::Hold, true)], |it| *it == name);
        }
        assert!(lock(&refusals.institutions).len() <= MOST);
    }
}
