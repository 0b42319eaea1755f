//! The exact algorithm, pure: what a log says of a request, and what follows from it.
//!
//! Nothing here does I/O or reads a clock. Time is in microseconds since any fixed origin. Every
//! store must agree with this module.

mod ban_record;
mod check;
mod decision;
mod log;
mod outcome;

#[cfg(any(feature = "memory", feature = "contract"))]
pub(crate) use self::ban_record::BanRecord;
#[cfg(feature = "redis")]
pub(crate) use self::ban_record::REASON;
pub use self::ban_record::Strike;
pub use self::check::{Check, LogId};
pub use self::decision::{Admitted, Decision, Denied, Usage};
#[cfg(any(feature = "memory", feature = "contract"))]
pub(crate) use self::log::{Entry, Log};
pub(crate) use self::outcome::Rollback;
pub use self::outcome::{BanState, DecidedBy, LogOutcome, Outcome, QuotaState};
