//! [`MemoryStock`]: the stock of one process. It does what `sale.lua` does.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use super::{Call, Level, Outcome, Reply, StockError, Terms};
use crate::draw::Draw;
use crate::names::Sku;
use crate::opening::since_1970;
use example_support::lock;

/// Keeps stock and orders in the memory of this process.
pub(crate) struct MemoryStock {
    shelves: HashMap<Sku, (Option<Draw>, Mutex<Shelf>)>,
    terms: Terms,
    started: (Instant, Duration),
}

/// One SKU. `sale.lua` describes the parts. There are no refunds: nobody could read them here.
#[derive(Default)]
struct Shelf {
    stock: usize,
    buyers: HashMap<String, String>,
    orders: HashMap<String, String>,
    line: Ranked,
    turns: Ranked,
    unpaid: Ranked,
    paid: HashMap<String, String>,
    payments: HashMap<String, String>,
    returned: HashMap<String, String>,
    // Of the present call:
    now_us: u64,
    is_drawn: bool,
    /// The opening, until it has come.
    opens_us: Option<u64>,
    turn_us: u64,
    pay_us: u64,
}

/// Names in the order of their scores.
#[derive(Default)]
struct Ranked {
    scores: HashMap<String, u64>,
    order: BTreeSet<(u64, String)>,
}

impl Ranked {
    fn score(&self, name: &str) -> Option<u64> {
        self.scores.get(name).copied()
    }

    fn add(&mut self, name: &str, score: u64) {
        self.remove(name);
        self.scores.insert(name.to_owned(), score);
        self.order.insert((score, name.to_owned()));
    }

    fn remove(&mut self, name: &str) {
        if let Some((name, score)) = self.scores.remove_entry(name) {
            self.order.remove(&(score, name));
        }
    }

    /// Counts those up to a name. Takes as long as there are.
    fn place(&self, name: &str, score: u64) -> usize {
        self.order.range(..=(score, name.to_owned())).count()
    }

    /// Takes the first one, if its score is no higher.
    fn pop(&mut self, highest: u64) -> Option<String> {
        self.order.first().filter(|(score, _)| *score <= highest)?;
        let (_, name) = self.order.pop_first()?;
        self.scores.remove(&name);
        Some(name)
    }
}

impl MemoryStock {
    pub(crate) fn new(skus: &[(Sku, u32)], terms: Terms) -> Self {
        let shelf = |(sku, stock): &(Sku, u32)| {
            let draw = if terms.draws { Draw::of(&Draw::seed()) } else { None };
            let (stock, is_drawn) = (*stock as usize, draw.is_some());
            (sku.clone(), (draw, Mutex::new(Shelf { stock, is_drawn, ..Shelf::default() })))
        };
        let shelves = skus.iter().map(shelf).collect();
        Self { shelves, terms, started: (Instant::now(), since_1970()) }
    }

    pub(super) fn draw(&self, sku: &Sku) -> Option<Option<&Draw>> {
        self.shelves.get(sku).map(|(draw, _)| draw.as_ref())
    }

    /// Locks a SKU for all of a call, so that nothing comes between, and does what its time has come for.
    fn lock(&self, sku: &Sku) -> Option<MutexGuard<'_, Shelf>> {
        let (_, shelf) = self.shelves.get(sku)?;
        let mut shelf = lock(shelf);
        // A clock that never steps.
        let now = self.started.1 + self.started.0.elapsed();
        let opens = self.terms.opening.opens_in().map(|left| now + left);
        shelf.now_us = now.as_micros() as u64;
        // Once it has come, the secret is known.
        shelf.opens_us = opens.map(|opens| opens.as_micros() as u64);
        (shelf.turn_us, shelf.pay_us) = (self.terms.turn_us(), self.terms.pay_us());
        shelf.tick();
        Some(shelf)
    }

    pub(super) fn call(&self, sku: &Sku, call: Call<'_>) -> Result<Reply, StockError> {
        let mut shelf = self.lock(sku).ok_or_else(|| StockError::Lost(sku.clone()))?;
        Ok(match call {
            Call::Pay { order, payment, .. } => shelf.pay(&order.uuid.to_string(), payment),
            Call::Order { user, order, ticket } => {
                shelf.order(user.as_str(), order.uuid.to_string(), ticket)
            }
            Call::Enter(user) => {
                let place = self.draw(sku).flatten().map_or(0, |draw| draw.score(user));
                shelf.enter(user.as_str(), place);
                shelf.tick();
                shelf.state(user.as_str())
            }
            Call::Entry(user) | Call::Show(user) => shelf.state(user.as_str()),
        })
    }

    pub(super) fn level(&self, sku: &Sku) -> Option<Level> {
        let shelf = self.lock(sku)?;
        Some(Level {
            stock: shelf.stock as u32,
            sold: shelf.orders.len() as u32,
            paid: shelf.paid.len() as u32,
            entries: shelf.line.scores.len() as u32,
            turns: shelf.turns.scores.len() as u32,
        })
    }
}

impl Shelf {
    fn reply(&self, outcome: Outcome, order: &str, number: u64) -> Reply {
        Reply { outcome, order: order.to_owned(), number, now_us: self.now_us, news_us: 0 }
    }

    /// Takes back what was not paid in time, and gives the free turns of a draw.
    fn tick(&mut self) {
        while let Some(order) = self.unpaid.pop(self.now_us) {
            if let Some(user) = self.orders.remove(&order) {
                self.buyers.remove(&user);
                self.returned.insert(order, user);
            }
        }
        if !self.is_drawn || self.opens_us.is_some() {
            return;
        }
        while self.turns.pop(self.now_us).is_some() {}
        while self.orders.len() + self.turns.scores.len() < self.stock {
            let Some(user) = self.line.pop(u64::MAX) else { break };
            self.turns.add(&user, self.now_us + self.turn_us);
        }
    }

    fn state(&self, user: &str) -> Reply {
        if let Some(held) = self.buyers.get(user) {
            let is_paid = self.paid.contains_key(held);
            let outcome = if is_paid { Outcome::Paid } else { Outcome::Ordered };
            return self.reply(outcome, held, self.unpaid.score(held).unwrap_or_default());
        }
        if let Some(end) = self.turns.score(user).filter(|end| *end > self.now_us) {
            return self.reply(Outcome::Turn, "", end);
        }
        match (self.opens_us, self.line.score(user)) {
            (Some(opens), Some(_)) => self.reply(Outcome::Entered, "", opens),
            (None, _) if self.orders.len() >= self.stock && self.unpaid.scores.is_empty() => {
                self.reply(Outcome::Over, "", 0)
            }
            (None, Some(score)) => {
                let place = self.line.place(user, score);
                let waiting = self.reply(Outcome::Waiting, "", place as u64);
                Reply { news_us: self.news_us(place), ..waiting }
            }
            (_, None) => self.reply(Outcome::None, "", 0),
        }
    }

    /// Tells when there can be a turn for this place in line.
    fn news_us(&self, place: usize) -> u64 {
        if self.orders.len() + self.turns.scores.len() < self.stock {
            return self.now_us;
        }
        let ends = self.turns.order.iter().take(place).chain(self.unpaid.order.iter().take(place));
        let mut ends: Vec<u64> = ends.map(|(end, _)| *end).collect();
        ends.sort_unstable();
        ends.get(place - 1).copied().unwrap_or_default()
    }

    fn enter(&mut self, user: &str, drawn: u64) {
        if self.state(user).outcome == Outcome::None {
            let late = (1 << 52) + self.now_us;
            self.line.add(user, if self.opens_us.is_some() { drawn } else { late });
        }
    }

    fn order(&mut self, user: &str, order: String, ticket: u64) -> Reply {
        if let Some(held) = self.buyers.get(user) {
            return self.reply(Outcome::Held, held, 0);
        }
        let has_turn = || ticket > self.now_us && self.turns.score(user) == Some(ticket);
        if self.is_drawn && !has_turn() {
            return self.reply(Outcome::TurnOver, "", 0);
        }
        if self.orders.len() >= self.stock {
            return self.reply(Outcome::SoldOut, "", 0);
        }
        self.turns.remove(user);
        self.buyers.insert(user.to_owned(), order.clone());
        self.orders.insert(order.clone(), user.to_owned());
        let mut deadline = 0;
        if self.pay_us > 0 {
            deadline = self.now_us + self.pay_us;
            self.unpaid.add(&order, deadline);
        }
        self.reply(Outcome::Placed, &order, deadline)
    }

    fn pay(&mut self, order: &str, payment: &str) -> Reply {
        let by = self.paid.get(order);
        let outcome = match by {
            _ if self.payments.get(payment).is_some_and(|of| of != order) => Outcome::PaymentUsed,
            Some(by) if by == payment => Outcome::Paid,
            None if self.orders.contains_key(order) => {
                self.unpaid.remove(order);
                self.paid.insert(order.to_owned(), payment.to_owned());
                self.payments.insert(payment.to_owned(), order.to_owned());
                Outcome::Paid
            }
            None if !self.returned.contains_key(order) => Outcome::Unknown,
            Some(_) => Outcome::AlreadyPaid,
            None => Outcome::TooLate,
        };
        self.reply(outcome, "", 0)
    }
}
