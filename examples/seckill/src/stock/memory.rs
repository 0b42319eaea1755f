//! [`MemoryStock`]: the stock of a single server, gone when it stops.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use uuid::Uuid;

use super::{Level, Outcome};
use crate::order::{OrderId, Sku};
use crate::user::UserId;
use example_support::lock;

/// Keeps stock and orders in the memory of this process. Clones share them.
#[derive(Clone)]
pub(crate) struct MemoryStock(Arc<Mutex<HashMap<Sku, Shelf>>>);

/// One SKU. Bounded by its stock: only users with an order are kept.
struct Shelf {
    stock: u32,
    buyers: HashMap<UserId, Uuid>,
    orders: HashMap<Uuid, UserId>,
}

impl MemoryStock {
    pub(crate) fn new(skus: impl IntoIterator<Item = (Sku, u32)>) -> Self {
        let shelf = |stock| Shelf { stock, buyers: HashMap::new(), orders: HashMap::new() };
        let shelves = skus.into_iter().map(|(sku, stock)| (sku, shelf(stock))).collect();
        Self(Arc::new(Mutex::new(shelves)))
    }

    /// The lock is held for all of the looking and the selling, so that nothing comes between.
    pub(super) fn place(&self, id: &OrderId, user: &UserId) -> Outcome {
        let mut shelves = lock(&self.0);
        let Some(shelf) = shelves.get_mut(&id.sku) else { return Outcome::UnknownSku };
        if let Some(held) = shelf.buyers.get(user) {
            return if *held == id.uuid { Outcome::Placed } else { Outcome::AlreadyOrdered(*held) };
        }
        if shelf.orders.len() >= shelf.stock as usize {
            return Outcome::SoldOut;
        }
        shelf.buyers.insert(user.clone(), id.uuid);
        shelf.orders.insert(id.uuid, user.clone());
        Outcome::Placed
    }

    /// Tells whether a SKU is sold out and this user has no order of it.
    pub(crate) fn is_sold_out_to(&self, sku: &Sku, user: &UserId) -> bool {
        let is_sold_out = |shelf: &Shelf| {
            shelf.orders.len() >= shelf.stock as usize && !shelf.buyers.contains_key(user)
        };
        lock(&self.0).get(sku).is_some_and(is_sold_out)
    }

    pub(crate) fn level(&self, sku: &Sku) -> Option<Level> {
        let shelves = lock(&self.0);
        let shelf = shelves.get(sku)?;
        let sold = u32::try_from(shelf.orders.len()).unwrap_or(u32::MAX);
        Some(Level { stock: shelf.stock, sold })
    }

    pub(super) fn buyer(&self, id: &OrderId) -> Option<UserId> {
        lock(&self.0).get(&id.sku)?.orders.get(&id.uuid).cloned()
    }
}
