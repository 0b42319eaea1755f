//! [`Tables`]: what other parts of the crate keep beside the logs.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use ahash::RandomState;

use super::MemoryStore;
use crate::store::expiring::{ExpiringMap, ExpiringValue};

/// How many bytes a table may take unless told otherwise.
const DEFAULT_BYTES: usize = 256 << 20;

/// One table for each type of value, made when it is first used.
#[derive(Default)]
pub(super) struct Tables(RwLock<HashMap<TypeId, Arc<dyn Any + Send + Sync>, RandomState>>);

impl Tables {
    fn get<V: ExpiringValue + Send + 'static>(&self, capacity: usize) -> Arc<ExpiringMap<V>> {
        let id = TypeId::of::<V>();
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned();
        let table = known.unwrap_or_else(|| {
            let mut tables = self.0.write().unwrap_or_else(PoisonError::into_inner);
            let table = || {
                let table = ExpiringMap::<V>::new(capacity);
                table.set_budget(DEFAULT_BYTES);
                Arc::new(table)
            };
            tables.entry(id).or_insert_with(|| table()).clone()
        });
        // A table is found by its own type, so this is the one of `V`.
        table.downcast().unwrap_or_else(|_| Arc::new(ExpiringMap::new(capacity)))
    }
}

impl MemoryStore {
    /// Returns the table of a type of value, which all clones of this store share. It has as many
    /// places as the store has logs, and a budget of 256 MiB until that is set.
    pub(crate) fn table<V: ExpiringValue + Send + 'static>(&self) -> Arc<ExpiringMap<V>> {
        self.0.tables.get(self.0.capacity)
    }
}
