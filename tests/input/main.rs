//! Hostile and random input.

mod documents;
mod extractors;
mod keys;
