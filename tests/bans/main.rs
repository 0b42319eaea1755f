//! Penalties and bans.

mod http;
mod manual;
mod pages;
mod penalty;
