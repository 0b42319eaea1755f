//! What the documentation and the scripts promise.

mod guide;
mod lua;
mod metrics;
