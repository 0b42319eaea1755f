//! Takes over the thresholds of a file that is read again.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Policies;
use crate::document::{Document, DocumentError};
use crate::entry::Entry;
use crate::name::Name;
use crate::sum::GlobalTooLow;
use crate::thresholds::{Level, List, Target, Thresholds};
use example_support::lock;
use example_support::policies::{Reloads, report};

/// Why a file changes nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReloadError {
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error("{0}, see --global")]
    GlobalTooLow(#[from] GlobalTooLow),
}

impl Policies {
    /// Takes over the file whenever it is to be read again.
    pub(crate) async fn follow(self: Arc<Self>, mut reloads: Reloads) {
        while let Some(document) = reloads.next().await {
            report(self.reload(document).await);
        }
    }

    /// Replaces the thresholds that hold where an operator has changed nothing, and returns what has
    /// changed.
    async fn reload(&self, document: Document) -> Result<String, ReloadError> {
        let base = Thresholds::try_from(document)?;
        let known = self.known.lock().await;
        let (old_base, before) = (lock(&self.base).clone(), self.levels.configured());
        let after = self.thresholds(&base, &known);
        let sum = after.sum();
        // A sum that other servers have raised may stay, as after a change.
        if sum.rate() > before.sum().rate() {
            sum.check(self.global)?;
        }
        let mut changes: Vec<String> = before
            .differing(&after)
            .map(|target| {
                format!("{target}: {} -> {}", before.shown(&target), after.shown(&target))
            })
            .collect();
        let overruled =
            old_base.differing(&base).filter(|target| base.shown(target) != after.shown(target));
        changes.extend(overruled.map(|target| {
            format!("{target}: {} stays, by the admin listener", after.shown(&target))
        }));
        *lock(&self.base) = base;
        if before != after {
            self.levels.configure(after);
        }
        Ok(changes.join("; "))
    }
}

impl Thresholds {
    /// Returns the targets that are not the same in `other`.
    fn differing<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = Target> + 'a {
        let levels = Level::ALL.into_iter().map(Target::Level);
        let members = List::ALL.into_iter().flat_map(move |list| {
            let names: BTreeSet<&Name> =
                self.list(list).keys().chain(other.list(list).keys()).collect();
            names.into_iter().map(move |name| Target::Member(list, name.clone()))
        });
        levels.chain(members).filter(|target| self.shown(target) != other.shown(target))
    }

    /// Returns what holds for a target: a policy, `level` if it follows its level, or `none`.
    fn shown(&self, target: &Target) -> String {
        match target {
            Target::Level(level) => self.of(*level).to_string(),
            Target::Member(list, name) => match self.list(*list).get(name) {
                Some(Some(policy)) => policy.to_string(),
                Some(None) => Entry::Level.to_string(),
                None => "none".to_owned(),
            },
        }
    }
}
