//! Speech.

mod memory;
mod message;
mod monitor;
#[cfg(all(test, feature = "redis"))]
mod promises;
mod queue;
#[cfg(feature = "redis")]
mod redis;
mod rule;
mod rules;
mod similarity;
pub mod store;
mod verdict;

pub(crate) use self::memory::Speech;
pub use self::message::Message;
pub use self::monitor::SpeechMonitor;
pub use self::queue::{SpeechQueue, Submitted};
pub use self::rule::{Counted, ParseRuleError, Rule, RuleError};
pub use self::similarity::{normalised, similarity};
pub use self::verdict::{Mute, MuteEvent, Reason, Verdict};
