//! [`Tables`]: what other parts of the crate keep beside the logs.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use ahash::RandomState;

use crate::store::expiring::{Expiring, Kept};

/// How many bytes a table may take unless told otherwise.
const DEFAULT_BYTES: usize = 256 << 20;

/// One table for each type of value, made when it is first used.
#[derive(Default)]
pub(super) struct Tables(RwLock<HashMap<TypeId, Arc<dyn Any + Send + Sync>, RandomState>>);

impl Tables {
    /// Returns the table of a type of value, with so many places.
    pub(super) fn get<V: Kept + Send + 'static>(&self, capacity: usize) -> Arc<Expiring<V>> {
        let id = TypeId::of::<V>();
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned();
        let table = known.unwrap_or_else(|| {
            let mut tables = self.0.write().unwrap_or_else(PoisonError::into_inner);
            let table = || {
                let table = Expiring::<V>::new(capacity);
                table.set_budget(DEFAULT_BYTES);
                Arc::new(table)
            };
            tables.entry(id).or_insert_with(|| table()).clone()
        });
        // A table is found by its own type, so this is the one of `V`.
        table.downcast().unwrap_or_else(|_| Arc::new(Expiring::new(capacity)))
    }
}
