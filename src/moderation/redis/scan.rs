//! Finds the muted senders in Redis.

use std::collections::HashSet;

use crate::error::StoreError;
use crate::key::Key;
use crate::redis::{Client, read};

const MIN_STEP: usize = 10;
const MAX_STEP: usize = 1_000;
const MAX_PER_PAGE: usize = 100_000;

/// Scans from a position until `count` keys of this name are found or [`MAX_PER_PAGE`] keys of the
/// database are covered. Returns whose they are, and the next position.
pub(super) async fn scan(
    client: &Client,
    name: &str,
    mut position: u64,
    count: usize,
) -> Result<(Vec<Key>, Option<u64>), StoreError> {
    if client.is_cluster() {
        return Err(StoreError::Unsupported { what: "listing mutes on a Cluster" });
    }
    let pattern = client.keys().pattern(name);
    let (mut seen, mut covered) = (HashSet::new(), 0);
    let mut step = count.clamp(MIN_STEP, MAX_STEP);
    loop {
        let mut command = redis::cmd("SCAN");
        command.arg(position).arg("MATCH").arg(&pattern).arg("COUNT").arg(step);
        let (next, found): (u64, Vec<Vec<u8>>) = read(&client.send(&command).await?)?;
        // SCAN may return a key more than once.
        seen.extend(found.iter().filter_map(|found| client.keys().key_of(found, name)));
        (position, covered) = (next, covered + step);
        if position == 0 || seen.len() >= count.max(1) || covered >= MAX_PER_PAGE {
            return Ok((seen.into_iter().collect(), Some(position).filter(|next| *next > 0)));
        }
        // Large steps where mutes are rare among other keys.
        step = if found.len() * 4 < step { (step * 2).min(MAX_STEP) } else { step };
    }
}
