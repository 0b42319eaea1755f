//! [`BanStore`] for [`MemoryStore`].

use std::sync::Arc;
use std::time::Duration;

use super::{MemoryStore, ban_record_key};
use crate::error::StoreError;
use crate::key::Key;
use crate::policy::{Penalty, Policy};
use crate::store::expiring::{ExpiringValue, Keep};
use crate::store::{Ban, BanCursor, BanPage, BanStore, StoreFuture};
use crate::time::micros;
use crate::window::{BanRecord, LogId};

impl ExpiringValue for BanRecord {}

fn ban(record: &BanRecord, now_us: u64, is_new: bool) -> Option<Ban> {
    let wait_us = record.wait_us(now_us);
    let remaining = Duration::from_micros(wait_us);
    (wait_us > 0).then(|| Ban { remaining, reason: record.reason.clone(), is_new })
}

fn keep(record: &BanRecord, now_us: u64, penalty: Option<&Penalty>) -> Keep {
    match penalty.map(|penalty| record.expires_us(penalty)) {
        _ if *record == BanRecord::default() => Keep::Not,
        Some(expires_us) if expires_us > now_us => Keep::Until(expires_us),
        Some(_) => Keep::Not,
        // Without a penalty it is unknown how long strikes and levels matter.
        None => Keep::AtLeastUntil(record.until_us),
    }
}

impl MemoryStore {
    fn with_ban_record<T>(
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

    /// Imposes a ban that was seen in another store, at `store_timestamp` on that store's clock.
    pub(crate) fn restore_ban(
        &self,
        log: &LogId,
        length: Duration,
        reason: &str,
        store_timestamp: Option<Duration>,
    ) -> Result<(), StoreError> {
        self.with_ban_record(log, |record, now_us| {
            let penalty = log.policy.get_penalty();
            record.impose(now_us, micros(length), reason, penalty);
            record.store_timestamp_us = store_timestamp.map(micros);
        })
    }
}

impl BanStore for MemoryStore {
    fn ban(&self, log: &LogId) -> StoreFuture<Option<Ban>> {
        let key = ban_record_key(&log.policy, log.key.as_bytes());
        let read = |record: &BanRecord, now_us: u64| ban(record, now_us, false);
        StoreFuture::ready(Ok(self.0.ban_records.read(&key, read).flatten()))
    }

    fn impose(&self, log: &LogId, duration: Duration, reason: &str) -> StoreFuture<Ban> {
        let impose = |record: &mut BanRecord, now_us: u64| {
            let penalty = log.policy.get_penalty();
            let is_new = record.impose(now_us, micros(duration), reason, penalty);
            let none = Ban { remaining: Duration::ZERO, reason: String::new(), is_new };
            ban(record, now_us, is_new).unwrap_or(none)
        };
        StoreFuture::ready(self.with_ban_record(log, impose))
    }

    fn lift(&self, log: &LogId) -> StoreFuture<bool> {
        let lift = |record: &mut BanRecord, _: u64| std::mem::take(record) != BanRecord::default();
        StoreFuture::ready(self.with_ban_record(log, lift))
    }

    fn page(&self, policy: &Arc<Policy>, cursor: BanCursor, count: usize) -> StoreFuture<BanPage> {
        let prefix = ban_record_key(policy, b"");
        let read = |key: &[u8], record: &BanRecord, now_us: u64| {
            let key = key.strip_prefix(&prefix[..])?;
            Some((Key::from_stored(key), ban(record, now_us, false)?))
        };
        let (bans, next) = self.0.ban_records.page(cursor.position(), count, read);
        StoreFuture::ready(Ok(BanPage::new(bans, next.map(BanCursor::new))))
    }
}
