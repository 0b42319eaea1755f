//! The stores: Redis, in process, and the deny cache.

mod acl;
mod batch;
mod commands;
mod deny_cache;
mod explain;
mod memory;
mod metrics;
mod redis;
