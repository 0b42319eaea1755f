//! The guide: pages to read. There is nothing in these modules to call, and they are there only in
//! the documentation.
//!
//! - [Which tool for which problem](which_tool): what a window, a token bucket, a storm detector, a
//!   count of distinct members and a ban are for, what each costs a key, and where a sliding log is
//!   the wrong choice.
//! - [Limiting what is not a request](not_a_request): queues, workers, and messages whose receiver
//!   is known only when sending.

#[doc = include_str!("docs/which_tool.md")]
pub mod which_tool {}

#[doc = include_str!("docs/not_a_request.md")]
pub mod not_a_request {}
