//! [`MemoryStock`]: the stock of one process. It does what `sale.lua` does.

use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;

use tokio::time::Instant;

use super::{Call, Level, Order, Outcome, Reply, Terms, left};
use crate::draw::Draw;
use crate::names::{OrderId, Sku, UserId};
use crate::opening::since_1970;
use example_support::lock;

/// Keeps stock and orders in the memory of this process.
pub(crate) struct MemoryStock {
    shelves: HashMap<Sku, (Option<Draw>, Mutex<Shelf>)>,
    terms: Terms,
    started: (Instant, u64),
}

/// One SKU. `sale.lua` describes the parts.
#[derive(Default)]
struct Shelf {
    stock: u32,
    buyers: HashMap<String, String>,
    orders: HashMap<String, String>,
    line: Ranked,
    turns: Ranked,
    unpaid: Ranked,
    paid: HashMap<String, String>,
    returned: HashMap<String, String>,
    refunds: HashMap<String, String>,
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

    fn rank(&self, name: &str) -> Option<usize> {
        let place = (self.score(name)?, name.to_owned());
        Some(self.order.range(..place).count())
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
    pub(crate) fn new(skus: &[(Sku, u32)], terms: Terms) -> Result<Self, getrandom::Error> {
        let shelf = |(sku, stock): &(Sku, u32)| {
            let draw =
                if terms.draws { Draw::from_kept(&Draw::seed()?).ok().flatten() } else { None };
            Ok((sku.clone(), (draw, Mutex::new(Shelf { stock: *stock, ..Shelf::default() }))))
        };
        let shelves = skus.iter().map(shelf).collect::<Result<_, getrandom::Error>>()?;
        Ok(Self { shelves, terms, started: (Instant::now(), since_1970().as_micros() as u64) })
    }

    pub(super) fn draw(&self, sku: &Sku) -> Option<Option<&Draw>> {
        self.shelves.get(sku).map(|(draw, _)| draw.as_ref())
    }

    pub(super) fn now_us(&self) -> u64 {
        self.started.1 + self.started.0.elapsed().as_micros() as u64
    }

    /// The lock is held for all of a call, so that nothing comes between.
    pub(super) fn call(&self, sku: &Sku, call: Call<'_>) -> Reply {
        let now = self.now_us();
        let (outcome, order, number) = match self.shelves.get(sku) {
            Some((draw, shelf)) => {
                let opening = draw.as_ref().map(|_| self.terms.opening.micros());
                let mut shelf = lock(shelf);
                shelf.tick(now, opening, self.terms.turn_us());
                match call {
                    Call::Pay { order, payment } => {
                        (shelf.pay(&order.uuid.to_string(), payment), String::new(), 0)
                    }
                    Call::Order { user, order, ticket } => {
                        let ticket = opening.map(|_| ticket);
                        let pay_us = self.terms.pay_us();
                        shelf.order(now, ticket, pay_us, user.as_str(), order.uuid.to_string())
                    }
                    Call::Enter(user) | Call::Entry(user) => {
                        let (opening, id) = (opening.unwrap_or_default(), user.as_str());
                        if let (Call::Enter(_), Some(draw)) = (call, draw) {
                            shelf.enter(now, opening, id, draw.score(user));
                            shelf.tick(now, Some(opening), self.terms.turn_us());
                        }
                        shelf.state(now, opening, id)
                    }
                }
            }
            None => (Outcome::Lost, String::new(), 0),
        };
        Reply { outcome, order, number, now_us: now }
    }

    pub(super) fn level(&self, sku: &Sku) -> Option<Level> {
        let (draw, shelf) = self.shelves.get(sku)?;
        let mut shelf = lock(shelf);
        let opening = draw.as_ref().map(|_| self.terms.opening.micros());
        shelf.tick(self.now_us(), opening, self.terms.turn_us());
        Some(Level {
            stock: shelf.stock,
            sold: shelf.orders.len() as u32,
            paid: shelf.paid.len() as u32,
            entries: shelf.line.scores.len() as u32,
            turns: shelf.turns.scores.len() as u32,
        })
    }

    pub(super) fn order(&self, id: &OrderId) -> Option<Order> {
        let (shelf, uuid) = (lock(&self.shelves.get(&id.sku)?.1), id.uuid.to_string());
        let user = UserId::new(shelf.orders.get(&uuid)?.clone())?;
        let pay_in = left(shelf.unpaid.score(&uuid).unwrap_or_default(), self.now_us());
        Some(Order { user, is_paid: shelf.paid.contains_key(&uuid), pay_in })
    }
}

type Answer = (Outcome, String, u64);

impl Shelf {
    /// Takes back what was not paid in time, and gives the free turns of a draw.
    fn tick(&mut self, now: u64, opening: Option<u64>, turn_us: u64) {
        while let Some(order) = self.unpaid.pop(now) {
            if let Some(user) = self.orders.remove(&order) {
                self.buyers.remove(&user);
                self.returned.insert(order, user);
            }
        }
        if turn_us == 0 || opening.is_none_or(|opening| now < opening) {
            return;
        }
        while self.turns.pop(now).is_some() {}
        while self.orders.len() + self.turns.scores.len() < self.stock as usize {
            let Some(user) = self.line.pop(u64::MAX) else { break };
            self.turns.add(&user, now + turn_us);
        }
    }

    fn state(&self, now: u64, opening: u64, user: &str) -> Answer {
        let answer = |outcome, number| (outcome, String::new(), number);
        if let Some(held) = self.buyers.get(user) {
            let is_paid = self.paid.contains_key(held);
            let outcome = if is_paid { Outcome::Paid } else { Outcome::Ordered };
            return (outcome, held.clone(), self.unpaid.score(held).unwrap_or_default());
        }
        if let Some(end) = self.turns.score(user).filter(|end| *end > now) {
            return answer(Outcome::Turn, end);
        }
        let rank = self.line.rank(user);
        if now < opening {
            return answer(rank.map_or(Outcome::None, |_| Outcome::Entered), opening);
        }
        if self.orders.len() >= self.stock as usize && self.unpaid.scores.is_empty() {
            return answer(Outcome::Over, 0);
        }
        rank.map_or(answer(Outcome::None, 0), |rank| answer(Outcome::Waiting, rank as u64 + 1))
    }

    fn enter(&mut self, now: u64, opening: u64, user: &str, drawn: u64) {
        if self.line.score(user).is_none() && self.state(now, opening, user).0 == Outcome::None {
            let late = || (1 << 52) + now - opening;
            self.line.add(user, if now < opening { drawn } else { late() });
        }
    }

    fn order(
        &mut self,
        now: u64,
        ticket: Option<u64>,
        pay_us: u64,
        user: &str,
        order: String,
    ) -> Answer {
        if let Some(held) = self.buyers.get(user) {
            return (Outcome::Held, held.clone(), 0);
        }
        if ticket.is_some_and(|end| end <= now || self.turns.score(user) != Some(end)) {
            return (Outcome::TurnOver, String::new(), 0);
        }
        if self.orders.len() >= self.stock as usize {
            return (Outcome::SoldOut, String::new(), 0);
        }
        self.turns.remove(user);
        self.buyers.insert(user.to_owned(), order.clone());
        self.orders.insert(order.clone(), user.to_owned());
        if pay_us == 0 {
            return (Outcome::Placed, order, 0);
        }
        self.unpaid.add(&order, now + pay_us);
        (Outcome::Placed, order, now + pay_us)
    }

    fn pay(&mut self, order: &str, payment: &str) -> Outcome {
        let by = self.paid.get(order);
        if by.is_some_and(|by| by == payment) {
            return Outcome::Paid;
        }
        if by.is_none() && self.orders.contains_key(order) {
            self.unpaid.remove(order);
            self.paid.insert(order.to_owned(), payment.to_owned());
            return Outcome::Paid;
        }
        if by.is_none() && !self.returned.contains_key(order) {
            return Outcome::Unknown;
        }
        let outcome = if by.is_some() { Outcome::AlreadyPaid } else { Outcome::TooLate };
        self.refunds.insert(payment.to_owned(), order.to_owned());
        outcome
    }
}
