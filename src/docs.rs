//! The guide. These modules contain only documentation.
//!
//! - [Which tool for which problem](which_tool): compares sliding windows, token buckets, storm
//!   detectors, counts of distinct members, and bans; the memory that each takes per key; and where a
//!   sliding log is the wrong choice.
//! - [Limiting messages and jobs](not_a_request): per-receiver quotas for queues and workers, where the
//!   receiver is known only when a message is sent, and waits until there is room.
//! - [Budgets of tokens or bytes](token_budgets): quotas for what a request turns out to have cost, with a
//!   recipe for language models.
//! - [Configuration](configuration): policies from a file that is read again while the program runs, and
//!   the networks that addresses are counted by.
//! - [What clients see](responses): responses of one's own, the fields that show a quota, and gRPC.

#[doc = include_str!("docs/which_tool.md")]
pub mod which_tool {}

#[doc = include_str!("docs/not_a_request.md")]
pub mod not_a_request {}

#[doc = include_str!("docs/token_budgets.md")]
pub mod token_budgets {}

#[doc = include_str!("docs/configuration.md")]
pub mod configuration {}

#[doc = include_str!("docs/responses.md")]
pub mod responses {}
