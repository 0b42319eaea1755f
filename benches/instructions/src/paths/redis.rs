//! Checks over Redis: the client's part, from the check to the decision. The server is another process.
//!
//! It includes the command's encoding, the reply's decoding, and the runtime.

use std::time::Duration;

use tokio::task::JoinSet;
use tower_sliding_window::{DecidedBy, Decision, Limiter, RedisStore};

use super::{LIMIT, five_a_minute};

/// One check goes alone, and those that come while it is under way go together in the next call.
const ROUND: u32 = 33;

fn run(url: &str, requests: impl AsyncFnOnce(Limiter)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        // Valgrind slows the client down, and another program may run at the same time.
        let patient = RedisStore::builder().response_timeout(Duration::from_secs(30));
        let store = patient.prefix(format!("{:010}", std::process::id()));
        let store = store.deny_cache_max_age(Duration::from_secs(60)).connect(url).await;
        requests(Limiter::new(five_a_minute(), store.expect("a connection"))).await;
    });
}

async fn decide(limiter: &Limiter, key: &str) -> Decision {
    let decision = limiter.check(key).await.expect("a decision");
    assert_eq!(decision.decided_by(), DecidedBy::Store);
    decision
}

pub(super) fn alone(times: u32, url: &str) {
    run(url, async |limiter| {
        for time in 0..times {
            assert!(decide(&limiter, &format!("user-{time:07}")).await.is_admitted());
        }
    });
}

pub(super) fn of_32(times: u32, url: &str) {
    run(url, async |limiter| {
        for round in 0..times / ROUND {
            let mut checks = JoinSet::new();
            for user in 0..ROUND {
                let limiter = limiter.clone();
                checks.spawn(async move {
                    let key = format!("user-{round:07}-{user:02}");
                    assert!(decide(&limiter, &key).await.is_admitted());
                });
            }
            while let Some(result) = checks.join_next().await {
                result.expect("no panic");
            }
        }
    });
}

pub(super) fn denial(times: u32, url: &str) {
    run(url, async |limiter| {
        for _ in 0..LIMIT {
            assert!(decide(&limiter, "mallory").await.is_admitted());
        }
        for _ in 0..times {
            assert!(!decide(&limiter, "mallory").await.is_admitted());
        }
    });
}
