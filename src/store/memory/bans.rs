//! The bans of a [`MemoryStore`].

use std::sync::Arc;
use std::time::Duration;

use super::{MemoryStore, ban_record_key};
use crate::error::StoreError;
use crate::key::Key;
use crate::policy::{Penalty, Policy};
use crate::store::expiring::{ExpiringValue, Keep};
use crate::store::{Ban, BanCursor, BanPage};
use crate::time::micros;
use crate::window::{BanRecord, LogId};

impl ExpiringValue for BanRecord {}

fn ban(record: &BanRecord, now_us: u64, is_new: bool) -> Option<Ban> {
    let wait_us = record.wait_us(now_us);
    let remaining = Duration::from_micros(wait_us);
    (wait_us > 0).then(|| Ban { remaining, reason: record.reason.clone(), is_new })
}

/// Returns how long to keep a record: never shorter than before, because another penalty may count its
/// strikes for longer.
pub(super) fn keep(record: &BanRecord, now_us: u64, penalty: Option<&Penalty>) -> Keep {
    let expires_us = penalty.map_or(record.until_us, |penalty| record.expires_us(penalty));
    match *record == BanRecord::default() {
        true => Keep::Not,
        false => Keep::AtLeastUntil(expires_us.max(now_us)),
    }
}

impl MemoryStore {
    pub(super) fn with_ban_record<T>(
        &self,
        log: &LogId,
        change: impl Fn(&mut BanRecord, u64) -> T,
    ) -> Result<T, StoreError> {
        let key = ban_record_key(&log.policy, log.key.as_bytes());
        self.0.ban_records.update(&key, |record, now_us| {
            let result = change(record, now_us);
            (result, keep(record, now_us, log.policy.get_penalty()))
        })
    }

    pub(super) fn ban_of(&self, log: &LogId) -> Option<Ban> {
        let key = ban_record_key(&log.policy, log.key.as_bytes());
        let read = |record: &BanRecord, now_us: u64| ban(record, now_us, false);
        self.0.ban_records.read(&key, read).flatten()
    }

    pub(super) fn impose_ban(
        &self,
        log: &LogId,
        duration: Duration,
        reason: &str,
    ) -> Result<Ban, StoreError> {
        self.with_ban_record(log, |record, now_us| {
            let penalty = log.policy.get_penalty();
            let is_new = record.impose(now_us, micros(duration), reason, penalty);
            let none = Ban { remaining: Duration::ZERO, reason: String::new(), is_new };
            ban(record, now_us, is_new).unwrap_or(none)
        })
    }

    /// Deletes the ban record of a log's key. Returns whether there was any.
    pub(in crate::store) fn lift_ban(&self, log: &LogId) -> bool {
        if self.0.ban_records.is_empty() {
            return false;
        }
        let lift = |record: &mut BanRecord, _: u64| std::mem::take(record) != BanRecord::default();
        // There is always room for nothing.
        self.with_ban_record(log, lift).unwrap_or(false)
    }

    pub(super) fn page_of_bans(
        &self,
        policy: &Arc<Policy>,
        cursor: BanCursor,
        count: usize,
    ) -> BanPage {
        let prefix = ban_record_key(policy, b"");
        let read = |key: &[u8], record: &BanRecord, now_us: u64| {
            let key = key.strip_prefix(&prefix[..])?;
            Some((Key::from_stored(key), ban(record, now_us, false)?))
        };
        let (bans, next) = self.0.ban_records.page(cursor.position(), count, read);
        BanPage::new(bans, next.map(BanCursor::new))
    }
}
