//! Hostile and random input.

mod extractors;
mod keys;
mod parsers;
mod requests;
