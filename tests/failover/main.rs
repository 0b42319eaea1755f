//! While Redis fails, and when it returns.

mod bans;
#[cfg(target_os = "linux")]
mod clock;
mod cluster;
mod counting;
mod explain;
mod faults;
mod histories;
mod lateness;
mod lost_replies;
mod node_faults;
mod outage;
mod policies;
mod recovery;
mod soak;
