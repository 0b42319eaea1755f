//! The layer in front of services.

mod axum;
mod flood;
mod grpc;
mod grpc_rejection;
mod in_flight;
mod layer;
mod metrics;
mod mistakes;
mod offenders;
mod overrides;
mod quota_fields;
mod rejection;
mod rules;
mod service;
mod settle;
mod stack;
mod tracing;
mod waits;
