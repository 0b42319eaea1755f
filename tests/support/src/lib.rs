//! What the tests of tower-sliding-window and of its applications share.
//!
//! Everything runs on loopback. Each process that a value starts is killed when the value is
//! dropped, and its files go with it.

pub mod acl;
pub mod clock;
mod cluster;
pub mod fault;
pub mod load;
mod process;
pub mod program;
pub mod proxy;
pub mod recorder;
mod redis_server;
pub mod requests;
mod sentinel;
pub mod server_process;
mod stores;
pub mod tls;
pub mod warnings;

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_sliding_window::{Admitted, Decision, Limiter};

pub use cluster::{Cluster, add_all_slots};
pub use futures_util::future::join_all;
pub use process::{Process, memory_kb, run_worker};
pub use redis_server::Redis;
pub use sentinel::{MASTER, Sentinel, Sentinels};
pub use stores::{Delayed, StubStore, outcome, patient, patient_store, without_a_failure};

pub async fn admit(limiter: &Limiter, key: &str) -> bool {
    limiter.check(key).await.unwrap().is_admitted()
}

/// Checks the key `alice` at a cost that must be admitted.
pub async fn admit_cost(limiter: &Limiter, cost: u32) -> Admitted {
    admitted(limiter.check_cost("alice", cost).await.unwrap())
}

pub fn admitted(decision: Decision) -> Admitted {
    decision.admitted().cloned().unwrap_or_else(|| panic!("{decision:?}"))
}

/// Checks a key that must be denied, and returns how long it has to wait.
pub async fn retry_after(limiter: &Limiter, key: &str) -> Duration {
    limiter.check(key).await.unwrap().denied().expect("a denial").retry_after()
}

/// Waits until a condition holds, for a minute at most.
pub async fn eventually(what: &str, holds: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds().await {
        assert!(Instant::now() < deadline, "not within a minute: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}
