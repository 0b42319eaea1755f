//! [`MemoryStock`]: the stock of one process. It does what `sale.lua` does.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard};

use tokio::time::Instant;

use super::{Call, Level, Order, Outcome, Reply, StockError, Terms, left};
use crate::draw::{Draw, FIRST_COME};
use crate::names::{OrderId, Sku, UserId};
use crate::opening::since_1970;
use example_support::lock;

/// Keeps stock and orders in the memory of this process.
pub(crate) struct MemoryStock {
    shelves: HashMap<Sku, (Option<Draw>, Mutex<Shelf>)>,
    terms: Terms,
    started: (Instant, u64),
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
    opening: Option<u64>,
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
            let seed = if terms.draws { Draw::seed()? } else { FIRST_COME.to_owned() };
            let shelf = Shelf { stock: *stock as usize, ..Shelf::default() };
            Ok((sku.clone(), (Draw::from_kept(&seed).unwrap_or_default(), Mutex::new(shelf))))
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

    /// Locks a SKU for all of a call, so that nothing comes between, and does what its time has come for.
    fn lock(&self, sku: &Sku) -> Option<MutexGuard<'_, Shelf>> {
        let (draw, shelf) = self.shelves.get(sku)?;
        let mut shelf = lock(shelf);
        shelf.now_us = self.now_us();
        // By the clock of this machine, which may step. Once it has come, the secret is known.
        let opening = match self.terms.opening.opens_in() {
            Some(left) => shelf.now_us + (left.as_micros() as u64).max(1),
            None => self.terms.opening.micros().min(shelf.now_us),
        };
        shelf.opening = draw.as_ref().map(|_| opening);
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
            Call::Entry(user) => shelf.state(user.as_str()),
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

    pub(super) fn order(&self, id: &OrderId) -> Option<Order> {
        let (shelf, uuid) = (self.lock(&id.sku)?, id.uuid.to_string());
        let user = UserId::new(shelf.orders.get(&uuid)?.clone())?;
        let pay_in = left(shelf.unpaid.score(&uuid).unwrap_or_default(), shelf.now_us);
        Some(Order { user, is_paid: shelf.paid.contains_key(&uuid), pay_in })
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
        if self.turn_us == 0 || self.opening.is_none_or(|opening| self.now_us < opening) {
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
        let opening = self.opening.filter(|opening| self.now_us < *opening);
        match (opening, self.line.rank(user)) {
            (Some(opening), Some(_)) => self.reply(Outcome::Entered, "", opening),
            (None, _) if self.orders.len() >= self.stock && self.unpaid.scores.is_empty() => {
                self.reply(Outcome::Over, "", 0)
            }
            (None, Some(rank)) => {
                let waiting = self.reply(Outcome::Waiting, "", rank as u64 + 1);
                Reply { news_us: self.news_us(rank + 1), ..waiting }
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
            let is_late = self.opening.is_some_and(|opening| self.now_us >= opening);
            self.line.add(user, if is_late { (1 << 52) + self.now_us } else { drawn });
        }
    }

    fn order(&mut self, user: &str, order: String, ticket: u64) -> Reply {
        if let Some(held) = self.buyers.get(user) {
            return self.reply(Outcome::Held, held, 0);
        }
        let has_turn = || ticket > self.now_us && self.turns.score(user) == Some(ticket);
        if self.opening.is_some() && !has_turn() {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::opening::Opening;

    /// The clock of the machine has stepped, to or from the opening.
    #[test]
    fn users_are_drawn_until_the_secret_is_known() {
        const HOUR: Duration = Duration::from_secs(3600);
        let now = since_1970();
        for (at, left, expected) in
            [(now - HOUR, Some(HOUR), Outcome::Entered), (now + HOUR, None, Outcome::Turn)]
        {
            let (turn, opening) = (HOUR, Opening::of(at, left));
            let terms = Terms { opening, draws: true, turn, pay_within: None };
            let sku: Sku = "iphone".parse().unwrap();
            let stock = MemoryStock::new(&[(sku.clone(), 1)], terms).unwrap();
            let alice = UserId::new("alice".into()).unwrap();
            assert_eq!(stock.call(&sku, Call::Enter(&alice)).unwrap().outcome, expected);
        }
    }
}
