//! The speech monitor: what is spam, and the monitor on a real Redis.

mod monitor;
mod races;
mod spam;
mod wrong_designs;
