//! Penalties and bans.

mod bans;
mod penalty;
