//! The exact sliding-window algorithm: what a log decides about a request.
//!
//! The module is pure. It does no I/O and reads no clock. Time is in microseconds since any fixed
//! origin. Every store must decide exactly as this module does.

mod ban_record;
mod check;
mod costs;
mod decision;
mod explanation;
mod log;
mod log_id;
mod outcome;

pub use self::ban_record::Strike;
pub(crate) use self::ban_record::{BanRecord, STRIKES_REASON};
pub use self::check::Check;
pub(crate) use self::check::add_or_merge;
pub(crate) use self::costs::{Cost, Entry};
pub use self::decision::{Admitted, Decision, Denied, Usage};
pub(crate) use self::explanation::MAX_LISTED;
pub use self::explanation::{BanExplanation, Explanation, LoggedAdmission, QuotaExplanation};
pub(crate) use self::log::Log;
pub use self::log_id::{LogCost, LogId};
pub use self::outcome::{BanState, DecidedBy, LogOutcome, Outcome, QuotaState};
