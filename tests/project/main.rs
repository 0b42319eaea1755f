//! The documentation, the Lua scripts, the language and the layout agree with what runs.

mod guide;
mod language;
mod layout;
mod lua;
mod manifest;
mod metrics;
mod readme;
