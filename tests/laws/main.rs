//! The laws of behaviour, on every store.

mod cancel;
mod contract;
mod costs;
mod counting;
mod fleet;
mod reload;
mod waits;
mod wrong_designs;
