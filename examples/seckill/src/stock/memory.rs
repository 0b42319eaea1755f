//! [`MemoryStock`]: the stock of one process. It does what `sale.lua` does.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::mem;
use std::sync::{Mutex, MutexGuard};

use super::{Call, Level, Outcome, Reply, Terms};
use crate::opening::{Opening, since_1970};
use example_support::lock;

/// Keeps the stock and the orders of a SKU in the memory of this process.
pub(crate) struct MemoryStock {
    opening: Opening,
    shelf: Mutex<Shelf>,
}

/// `sale.lua` describes the parts. There are no refunds: nobody could read them here.
#[derive(Default)]
struct Shelf {
    stock: usize,
    is_drawn: bool,
    turn_us: u64,
    pay_us: u64,
    users: HashMap<String, At>,
    orders: HashMap<String, String>,
    /// In the order of the places: a user is found by bisection, and an entry moves up to half of those there.
    line: VecDeque<(u64, String)>,
    held: BTreeSet<(u64, String)>,
    payments: HashMap<String, String>,
    returned: HashSet<String>,
    /// The time of the present call.
    now_us: u64,
    /// The opening, until it has come.
    opens_us: Option<u64>,
}

/// Where a user is: in line at a place, at turn until then, or with an order.
enum At {
    Line(u64),
    Turn(u64),
    /// The order, and until when it has to be paid, or 0 if it is.
    Order(String, u64),
}

impl MemoryStock {
    pub(crate) fn new(pieces: u32, terms: &Terms) -> Self {
        let shelf = Shelf {
            stock: pieces as usize,
            is_drawn: terms.draws,
            turn_us: terms.turn.as_micros() as u64,
            pay_us: terms.pay_within.as_micros() as u64,
            ..Shelf::default()
        };
        Self { opening: terms.opening.clone(), shelf: Mutex::new(shelf) }
    }

    /// Locks it for all of a call, so that nothing comes between, and does what its time has come for.
    fn lock(&self) -> MutexGuard<'_, Shelf> {
        let mut shelf = lock(&self.shelf);
        shelf.now_us = since_1970().as_micros() as u64;
        // Once it has come, the secret is known, whatever the clock says.
        shelf.opens_us = self.opening.opens_in().map(|_| self.opening.micros());
        shelf.tick();
        shelf
    }

    pub(super) fn call(&self, call: Call<'_>) -> Reply {
        let mut shelf = self.lock();
        match call {
            Call::Order { user, order, ticket } => shelf.order(user, order, ticket),
            Call::Pay { order, payment, .. } => shelf.pay(order, payment),
            Call::Enter { user, place } => shelf.enter(user, place),
            Call::Entry { user } => shelf.state(user),
        }
    }

    pub(super) fn level(&self) -> Level {
        let shelf = self.lock();
        let (sold, paid) = (shelf.orders.len(), shelf.payments.len());
        let turns = shelf.held.len() + paid - sold;
        let counts = [shelf.stock, sold, paid, shelf.line.len(), turns];
        let [stock, sold, paid, entries, turns] = counts.map(|count| count as u32);
        Level { stock, sold, paid, entries, turns }
    }
}

impl Shelf {
    fn reply(&self, outcome: Outcome, order: &str, number: u64) -> Reply {
        Reply { outcome, order: order.to_owned(), number, now_us: self.now_us, news_us: 0 }
    }

    fn has_free_piece(&self) -> bool {
        self.payments.len() + self.held.len() < self.stock
    }

    /// Takes back what is over, and gives the free turns of a draw.
    fn tick(&mut self) {
        while self.held.first().is_some_and(|(end, _)| *end <= self.now_us) {
            let Some((_, user)) = self.held.pop_first() else { break };
            if let Some(At::Order(order, _)) = self.users.remove(&user) {
                self.orders.remove(&order);
                self.returned.insert(order);
            }
        }
        while self.is_drawn && self.opens_us.is_none() && self.has_free_piece() {
            let Some((_, user)) = self.line.pop_front() else { break };
            let end = self.now_us + self.turn_us;
            self.held.insert((end, user.clone()));
            self.users.insert(user, At::Turn(end));
        }
    }

    fn state(&self, user: &str) -> Reply {
        let is_over = self.payments.len() >= self.stock;
        match (self.users.get(user), self.opens_us) {
            (Some(At::Order(order, 0)), _) => self.reply(Outcome::Paid, order, 0),
            (Some(At::Order(order, deadline)), _) => self.reply(Outcome::Ordered, order, *deadline),
            (Some(At::Turn(end)), _) => self.reply(Outcome::Turn, "", *end),
            (Some(At::Line(_)), Some(opens)) => self.reply(Outcome::Entered, "", opens),
            (_, None) if is_over => self.reply(Outcome::Over, "", 0),
            (Some(At::Line(score)), None) => {
                let before = self.line.partition_point(|it| (it.0, &*it.1) < (*score, user));
                let end = self.held.iter().nth(before).map_or(0, |(end, _)| *end);
                let news_us = if self.has_free_piece() { self.now_us } else { end };
                Reply { news_us, ..self.reply(Outcome::Waiting, "", before as u64 + 1) }
            }
            (None, _) => self.reply(Outcome::None, "", 0),
        }
    }

    fn enter(&mut self, user: &str, drawn: u64) -> Reply {
        if self.state(user).outcome == Outcome::None {
            let late = (1 << 52) + self.now_us;
            let place = if self.opens_us.is_some() { drawn } else { late };
            let at = self.line.partition_point(|it| (it.0, &*it.1) < (place, user));
            self.line.insert(at, (place, user.to_owned()));
            self.users.insert(user.to_owned(), At::Line(place));
            self.tick();
        }
        self.state(user)
    }

    fn order(&mut self, user: &str, order: &str, ticket: u64) -> Reply {
        let at = self.users.get(user);
        if let Some(At::Order(held, _)) = at {
            return self.reply(Outcome::Held, held, 0);
        }
        if self.is_drawn && !matches!(at, Some(At::Turn(end)) if *end == ticket) {
            return self.reply(Outcome::TurnOver, "", 0);
        }
        if self.orders.len() >= self.stock {
            return self.reply(Outcome::SoldOut, "", 0);
        }
        let deadline = self.now_us + self.pay_us;
        self.held.remove(&(ticket, user.to_owned()));
        self.held.insert((deadline, user.to_owned()));
        self.orders.insert(order.to_owned(), user.to_owned());
        self.users.insert(user.to_owned(), At::Order(order.to_owned(), deadline));
        self.reply(Outcome::Placed, order, deadline)
    }

    fn pay(&mut self, order: &str, payment: &str) -> Reply {
        let user = self.orders.get(order);
        let outcome = match (self.payments.get(payment), user) {
            (Some(of), _) if of != order => Outcome::PaymentUsed,
            (Some(_), _) => Outcome::Paid,
            (None, Some(user)) => match self.users.get_mut(user) {
                Some(At::Order(_, deadline)) if *deadline > 0 => {
                    self.held.remove(&(mem::take(deadline), user.clone()));
                    self.payments.insert(payment.to_owned(), order.to_owned());
                    Outcome::Paid
                }
                _ => Outcome::AlreadyPaid,
            },
            (None, None) if self.returned.contains(order) => Outcome::TooLate,
            (None, None) => Outcome::Unknown,
        };
        self.reply(outcome, "", 0)
    }
}
