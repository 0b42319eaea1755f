//! The layer in front of services.

mod axum;
mod flood;
mod grpc;
mod grpc_rejection;
mod layer;
mod metrics;
mod mistakes;
mod offenders;
mod overrides;
mod quota_fields;
mod ratelimit_pairs;
mod rejection;
mod response_future;
mod rules;
mod service;
mod stack;
mod tracing;
mod waits;
