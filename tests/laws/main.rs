//! The laws of behaviour, on every store.

mod cancel;
mod contract;
mod costs;
mod counting;
mod fleet;
mod plans;
mod reload;
mod settle;
mod waits;
mod wrong_designs;
