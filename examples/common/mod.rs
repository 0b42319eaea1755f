//! What the example servers share; each takes it in with `#[path]`.
#![allow(dead_code, reason = "each example and each test uses its own part")]

pub(crate) mod connection;
pub(crate) mod flags;
pub(crate) mod lines;
pub(crate) mod prefix;
pub(crate) mod problem;
pub(crate) mod redis;
pub(crate) mod serve;
pub(crate) mod server;
pub(crate) mod shutdown;
pub(crate) mod span;
