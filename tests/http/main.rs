//! The layer in front of services.

mod axum;
mod flood;
mod layer;
mod metrics;
mod mistakes;
mod rejection;
mod rules;
mod service;
mod stack;
