//! The project's own structure.
mod layout;
