//! The Tower layer: extracts the key of a request, gets a decision from the store, and responds to
//! requests that are denied.

mod body;
mod config;
mod counted;
mod future;
mod headers;
mod layer;
mod rejection;
mod rule;
mod service;
mod span;

pub use body::ResponseBody;
pub use config::{MissingKey, Muted, OnBan};
pub use counted::ResponseEnd;
pub use future::ResponseFuture;
pub use headers::RateLimitHeaders;
pub use layer::SlidingWindowLayer;
pub use rejection::Rejection;
pub use service::SlidingWindow;
