//! The paths whose instructions are counted.

mod in_process;
mod layer;
mod redis;

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tower_sliding_window::Quota;

/// How often a path is taken in the shorter of two runs, and how much more often in the longer one.
pub(crate) const SHORT: u32 = 1_000;
pub(crate) const MORE: u32 = 10_000;
const LIMIT: u32 = 5;

/// One way of a request through the library.
#[derive(Clone, Copy)]
pub(crate) struct Path {
    pub(crate) name: &'static str,
    pub(crate) needs: Needs,
    pub(crate) is_reported: IsReported,
    take: fn(times: u32, redis: &str),
}

/// Whether a path needs a Redis server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    Nothing,
    Redis,
}

/// Whether a path is also measured with `metrics` and `tracing`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum IsReported {
    No,
    Yes,
    /// Yes, and it is a whole request of a flood: it must cost hardly more with them.
    Flooded,
}

const PATHS: &[Path] = &[
    path("memory-new-key", in_process::memory_new_key),
    path("memory-hit", in_process::memory_hit),
    path("memory-denial", in_process::memory_denial),
    path("limiter-new-key", in_process::limiter_new_key),
    path("limiter-hit", in_process::limiter_hit),
    path("limiter-denial", in_process::limiter_denial),
    path("offenders-denial", in_process::offenders_denial),
    path("offenders-new-key-denial", in_process::offenders_new_key_denial),
    reported("layer-admission", IsReported::Yes, layer::admission),
    reported("layer-denial", IsReported::Yes, layer::denial),
    reported("axum-denial", IsReported::Flooded, layer::axum_denial),
    reported("axum-denial-offenders", IsReported::Flooded, layer::axum_denial_offenders),
    reported("axum-constant-429", IsReported::Yes, layer::axum_constant),
    over_redis("redis-check-alone", redis::alone),
    over_redis("redis-check-of-32", redis::of_32),
    over_redis("redis-denial", redis::denial),
];

const fn path(name: &'static str, take: fn(u32, &str)) -> Path {
    Path { name, needs: Needs::Nothing, is_reported: IsReported::No, take }
}

const fn reported(name: &'static str, is_reported: IsReported, take: fn(u32, &str)) -> Path {
    Path { is_reported, ..path(name, take) }
}

const fn over_redis(name: &'static str, take: fn(u32, &str)) -> Path {
    Path { needs: Needs::Redis, ..path(name, take) }
}

impl Path {
    pub(crate) fn all() -> &'static [Self] {
        PATHS
    }

    pub(crate) fn by_name(name: &str) -> Result<Self, String> {
        let path = PATHS.iter().find(|path| path.name == name).copied();
        path.ok_or_else(|| {
            let names: Vec<_> = PATHS.iter().map(|path| path.name).collect();
            format!("there is no such path: the paths are {}", names.join(", "))
        })
    }

    /// Goes this way so many times, after the same preparation for any number of times.
    pub(crate) fn take(self, times: u32, redis: &str) {
        (self.take)(times, redis);
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

fn five_a_minute() -> Quota {
    Quota::new(LIMIT, Duration::from_secs(60))
}

/// Returns enough keys for both runs. All runs prepare as many.
fn keys() -> Vec<String> {
    (0..SHORT + MORE).map(|key| format!("user-{key:07}")).collect()
}

/// Returns the output of a future that is ready at once, so that no runtime is measured.
fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("nothing has to wait here"),
    }
}
