//! The Tower layer: extracts the key of a request, gets a decision from the store, and responds to
//! requests that are denied.

mod after_response;
mod body;
mod config;
mod future;
mod headers;
mod layer;
mod rejection;
mod rule;
mod service;
mod span;

pub use after_response::ResponseEnd;
pub use body::ResponseBody;
pub use config::{MissingKey, Muted, OnBan};
pub use future::ResponseFuture;
pub use headers::RateLimitHeaders;
pub use layer::SlidingWindowLayer;
pub use rejection::Rejection;
pub use service::SlidingWindow;
