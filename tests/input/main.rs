//! Hostile and random input.

mod addresses;
mod documents;
mod extractors;
mod keys;
mod requests;
