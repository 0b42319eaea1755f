//! The speech monitor.

mod lost_replies;
mod monitor;
mod queue;
mod wrong_designs;
