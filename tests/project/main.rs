//! The documentation and the Lua scripts agree with what runs.

mod guide;
mod lua;
mod metrics;
