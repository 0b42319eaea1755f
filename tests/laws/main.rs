//! The laws of behaviour, on every store.

mod cancel;
mod contract;
mod fleet;
mod wrong_designs;
