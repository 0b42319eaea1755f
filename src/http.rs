//! The layer: a request's key, the decision, and the response if it is denied.

mod body;
mod charge;
mod config;
mod double_count;
mod future;
mod headers;
mod layer;
mod mute;
mod passed;
mod rejection;
mod rule;
mod service;
mod undecided;

pub use body::ResponseBody;
pub use config::{MissingKey, Muted, OnBan};
pub use future::ResponseFuture;
pub use layer::SlidingWindowLayer;
pub use rejection::Rejection;
pub use service::SlidingWindow;
