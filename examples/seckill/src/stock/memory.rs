//! [`MemoryStock`]: the stock of one process. It does what `sale.lua` does.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use super::{Call, Level, Outcome, Reply, Terms};
use crate::draw::Draw;
use crate::opening::since_1970;
use example_support::lock;

/// Keeps the stock and the orders of a SKU in the memory of this process.
pub(crate) struct MemoryStock {
    pub(super) draw: Option<Draw>,
    shelf: Mutex<Shelf>,
    terms: Terms,
    started: (Instant, Duration),
}

/// `sale.lua` describes the parts. There are no refunds: nobody could read them here.
#[derive(Default)]
struct Shelf {
    stock: usize,
    users: HashMap<String, At>,
    orders: HashMap<String, Order>,
    /// In the order of the scores: a place is found by bisection, and an entry moves up to half of those there.
    line: VecDeque<(u64, String)>,
    turns: Ranked,
    unpaid: Ranked,
    payments: HashMap<String, String>,
    returned: HashSet<String>,
    // Of the present call:
    now_us: u64,
    is_drawn: bool,
    /// The opening, until it has come.
    opens_us: Option<u64>,
    turn_us: u64,
    pay_us: u64,
}

/// Names in the order of their scores.
type Ranked = BTreeSet<(u64, String)>;

/// Where a user is: in line with a score, at turn until then, or with an order.
enum At {
    Line(u64),
    Turn(u64),
    Order(String),
}

struct Order {
    user: String,
    /// Until when it has to be paid, or 0 if it is.
    deadline: u64,
}

/// Takes the first name, if its score is no higher.
fn pop(ranked: &mut Ranked, highest: u64) -> Option<String> {
    ranked.first().filter(|(score, _)| *score <= highest)?;
    ranked.pop_first().map(|(_, name)| name)
}

impl MemoryStock {
    pub(crate) fn new(pieces: u32, terms: Terms) -> Self {
        let draw = if terms.draws { Draw::of(&Draw::seed()) } else { None };
        let (stock, is_drawn) = (pieces as usize, terms.draws);
        let shelf = Mutex::new(Shelf { stock, is_drawn, ..Shelf::default() });
        Self { draw, shelf, terms, started: (Instant::now(), since_1970()) }
    }

    /// Locks it for all of a call, so that nothing comes between, and does what its time has come for.
    fn lock(&self) -> MutexGuard<'_, Shelf> {
        let mut shelf = lock(&self.shelf);
        // A clock that never steps.
        let now = self.started.1 + self.started.0.elapsed();
        let opens = self.terms.opening.opens_in().map(|left| now + left);
        shelf.now_us = now.as_micros() as u64;
        // Once it has come, the secret is known.
        shelf.opens_us = opens.map(|opens| opens.as_micros() as u64);
        (shelf.turn_us, shelf.pay_us) = (self.terms.turn_us(), self.terms.pay_us());
        shelf.tick();
        shelf
    }

    pub(super) fn call(&self, call: Call<'_>) -> Reply {
        let mut shelf = self.lock();
        match call {
            Call::Pay { order, payment, .. } => shelf.pay(&order.uuid.to_string(), payment),
            Call::Order { user, order, ticket } => {
                shelf.order(user.as_str(), order.uuid.to_string(), ticket)
            }
            Call::Enter(user) => {
                let place = self.draw.as_ref().map_or(0, |draw| draw.score(user));
                shelf.enter(user.as_str(), place);
                shelf.tick();
                shelf.state(user.as_str())
            }
            Call::Entry(user) => shelf.state(user.as_str()),
        }
    }

    pub(super) fn level(&self) -> Level {
        let shelf = self.lock();
        Level {
            stock: shelf.stock as u32,
            sold: shelf.orders.len() as u32,
            paid: shelf.payments.len() as u32,
            entries: shelf.line.len() as u32,
            turns: shelf.turns.len() as u32,
        }
    }
}

impl Shelf {
    fn reply(&self, outcome: Outcome, order: &str, number: u64) -> Reply {
        Reply { outcome, order: order.to_owned(), number, now_us: self.now_us, news_us: 0 }
    }

    /// Takes back what was not paid in time, and gives the free turns of a draw.
    fn tick(&mut self) {
        while let Some(order) = pop(&mut self.unpaid, self.now_us) {
            if let Some(Order { user, .. }) = self.orders.remove(&order) {
                self.users.remove(&user);
                self.returned.insert(order);
            }
        }
        if !self.is_drawn || self.opens_us.is_some() {
            return;
        }
        while let Some(user) = pop(&mut self.turns, self.now_us) {
            self.users.remove(&user);
        }
        while self.orders.len() + self.turns.len() < self.stock {
            let Some((_, user)) = self.line.pop_front() else { break };
            let end = self.now_us + self.turn_us;
            self.turns.insert((end, user.clone()));
            self.users.insert(user, At::Turn(end));
        }
    }

    fn state(&self, user: &str) -> Reply {
        let is_over = self.payments.len() >= self.stock;
        match (self.users.get(user), self.opens_us) {
            (Some(At::Order(held)), _) => {
                let Order { deadline, .. } = self.orders[held];
                let outcome = if deadline > 0 { Outcome::Ordered } else { Outcome::Paid };
                self.reply(outcome, held, deadline)
            }
            (Some(At::Turn(end)), _) => self.reply(Outcome::Turn, "", *end),
            (Some(At::Line(_)), Some(opens)) => self.reply(Outcome::Entered, "", opens),
            (_, None) if is_over => self.reply(Outcome::Over, "", 0),
            (Some(At::Line(score)), None) => {
                let place = self.line.partition_point(|it| (it.0, &*it.1) <= (*score, user));
                let waiting = self.reply(Outcome::Waiting, "", place as u64);
                Reply { news_us: self.news_us(place), ..waiting }
            }
            (None, _) => self.reply(Outcome::None, "", 0),
        }
    }

    /// Tells when there can be a turn for this place in line.
    fn news_us(&self, place: usize) -> u64 {
        if self.orders.len() + self.turns.len() < self.stock {
            return self.now_us;
        }
        let ends = self.turns.iter().take(place).chain(self.unpaid.iter().take(place));
        let mut ends: Vec<u64> = ends.map(|(end, _)| *end).collect();
        ends.sort_unstable();
        ends.get(place - 1).copied().unwrap_or_default()
    }

    fn enter(&mut self, user: &str, drawn: u64) {
        if self.state(user).outcome == Outcome::None {
            let late = (1 << 52) + self.now_us;
            let score = if self.opens_us.is_some() { drawn } else { late };
            let at = self.line.partition_point(|it| (it.0, &*it.1) < (score, user));
            self.line.insert(at, (score, user.to_owned()));
            self.users.insert(user.to_owned(), At::Line(score));
        }
    }

    fn order(&mut self, user: &str, order: String, ticket: u64) -> Reply {
        let at = self.users.get(user);
        if let Some(At::Order(held)) = at {
            return self.reply(Outcome::Held, held, 0);
        }
        if self.is_drawn && !matches!(at, Some(At::Turn(end)) if *end == ticket) {
            return self.reply(Outcome::TurnOver, "", 0);
        }
        if self.orders.len() >= self.stock {
            return self.reply(Outcome::SoldOut, "", 0);
        }
        self.turns.remove(&(ticket, user.to_owned()));
        self.users.insert(user.to_owned(), At::Order(order.clone()));
        let deadline = self.now_us + self.pay_us;
        self.unpaid.insert((deadline, order.clone()));
        let placed = self.reply(Outcome::Placed, &order, deadline);
        self.orders.insert(order, Order { user: user.to_owned(), deadline });
        placed
    }

    fn pay(&mut self, order: &str, payment: &str) -> Reply {
        let outcome = match (self.payments.get(payment), self.orders.get_mut(order)) {
            (Some(of), _) if of != order => Outcome::PaymentUsed,
            (Some(_), _) => Outcome::Paid,
            (None, Some(Order { deadline: 0, .. })) => Outcome::AlreadyPaid,
            (None, Some(unpaid)) => {
                self.unpaid.remove(&(unpaid.deadline, order.to_owned()));
                unpaid.deadline = 0;
                self.payments.insert(payment.to_owned(), order.to_owned());
                Outcome::Paid
            }
            (None, None) if self.returned.contains(order) => Outcome::TooLate,
            (None, None) => Outcome::Unknown,
        };
        self.reply(outcome, "", 0)
    }
}
