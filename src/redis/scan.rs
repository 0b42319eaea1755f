//! [`Scan`]: finds the Redis keys of one name, for a page of an admin's list.

use std::collections::HashSet;

use super::client::Client;
use super::reply::read;
use crate::error::StoreError;
use crate::key::Key;

const MIN_STEP: usize = 10;
const MAX_STEP: usize = 1_000;
const MAX_PER_PAGE: usize = 100_000;

/// The scan of one page: it covers a part of the database in steps.
pub(crate) struct Scan<'a> {
    client: &'a Client,
    name: &'a str,
    pattern: String,
    position: u64,
    /// How many items the page should have, at least 1.
    count: usize,
    step: usize,
    /// How many keys of the database the steps of the page cover.
    covered: usize,
    seen: HashSet<Key>,
}

impl<'a> Scan<'a> {
    /// Begins a page of about `count` items at a position: 0 for the first one, and
    /// [`Scan::next_position`] for the others. `what` is what a Cluster can't do.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unsupported`] on a Cluster, where `SCAN` covers one node only.
    pub(crate) fn new(
        client: &'a Client,
        name: &'a str,
        position: u64,
        count: usize,
        what: &'static str,
    ) -> Result<Self, StoreError> {
        if client.is_cluster() {
            return Err(StoreError::Unsupported { what });
        }
        let pattern = client.keys().pattern(name);
        let (count, step, covered, seen) = (count.max(1), 0, 0, HashSet::new());
        Ok(Self { client, name, pattern, position, count, step, covered, seen })
    }

    /// Takes a step, and returns the Redis keys of the name with the keys that they belong to.
    /// `items` is how many the page has.
    pub(crate) async fn step(&mut self, items: usize) -> Result<Vec<(Vec<u8>, Key)>, StoreError> {
        // Where most keys have the name, a large step would find more than the page needs.
        let missing = self.count.saturating_sub(items).clamp(MIN_STEP, MAX_STEP);
        let step = self.step.max(missing);
        let mut command = redis::cmd("SCAN");
        command.arg(self.position).arg("MATCH").arg(&self.pattern).arg("COUNT").arg(step);
        let (next, names): (u64, Vec<Vec<u8>>) = read(&self.client.send(&command).await?)?;
        (self.position, self.covered) = (next, self.covered + step);
        // Large steps where the name is rare among other keys.
        self.step = if names.len() * 4 < step { (step * 2).min(MAX_STEP) } else { 0 };
        let mut found = Vec::with_capacity(names.len());
        for name in names {
            // SCAN may return a key more than once.
            if let Some(key) = self.client.keys().key_of(&name, self.name)
                && self.seen.insert(key.clone())
            {
                found.push((name, key));
            }
        }
        Ok(found)
    }

    /// Returns whether a page with so many items ends here. It ends with fewer than it should have if it
    /// covers the rest of the database, or a hundred thousand keys.
    pub(crate) fn is_over(&self, items: usize) -> bool {
        items >= self.count || self.position == 0 || self.covered >= MAX_PER_PAGE
    }

    /// Returns where the next page begins, or `None` at the end of the database.
    pub(crate) fn next_position(&self) -> Option<u64> {
        Some(self.position).filter(|position| *position > 0)
    }
}
