//! What the example servers share.

pub mod flags;
pub mod prefix;
pub mod problem;
pub mod redis;
mod serve;
pub mod server;
mod shutdown;
pub mod span;
