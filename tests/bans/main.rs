//! Penalties and bans.

mod by_hand;
mod http;
mod pages;
mod penalty;
