//! The documentation, the Lua scripts and the layout agree with what runs.

mod guide;
mod layout;
mod lua;
mod metrics;
