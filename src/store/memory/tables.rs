//! [`Tables`]: values that other parts of the crate keep in a [`MemoryStore`].

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use ahash::RandomState;

use crate::store::expiring::{ExpiringMap, ExpiringValue};

const DEFAULT_BUDGET: usize = 256 << 20;

/// One table for each type of value, created at its first use.
#[derive(Default)]
pub(super) struct Tables(RwLock<HashMap<TypeId, Arc<dyn Any + Send + Sync>, RandomState>>);

impl Tables {
    pub(super) fn get<V: ExpiringValue + Send + 'static>(
        &self,
        capacity: usize,
    ) -> Arc<ExpiringMap<V>> {
        let id = TypeId::of::<V>();
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned();
        let table = table.unwrap_or_else(|| {
            let mut tables = self.0.write().unwrap_or_else(PoisonError::into_inner);
            let table = || {
                let table = ExpiringMap::<V>::new(capacity);
                table.set_budget(DEFAULT_BUDGET);
                Arc::new(table)
            };
            tables.entry(id).or_insert_with(|| table()).clone()
        });
        // Always the table of `V`, because tables are keyed by the type of their values.
        table.downcast().unwrap_or_else(|_| Arc::new(ExpiringMap::new(capacity)))
    }
}
