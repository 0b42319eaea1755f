//! Hostile and random input.

mod addresses;
mod extractors;
mod keys;
mod parsers;
mod requests;
