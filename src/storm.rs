//! Message storms: every message of a group is recorded, none is refused, and there is an alert when
//! a group has too many.

mod alerts;
mod detector;
#[cfg(feature = "memory")]
mod memory;
#[cfg(all(test, feature = "redis"))]
mod promises;
mod reading;
#[cfg(feature = "redis")]
mod redis;
mod rule;
pub mod store;
mod watch;

pub use self::detector::StormDetector;
#[cfg(feature = "memory")]
pub(crate) use self::memory::Groups;
pub use self::reading::{Profile, ProfileError, Reading, Storm, StormEvent};
pub use self::rule::{StormRule, StormRuleError};
