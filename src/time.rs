//! Conversion of lengths of time to numbers.

use std::time::Duration;

use uuid::Uuid;

/// Returns a length of time in whole microseconds, capped at [`u64::MAX`].
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Returns a random part of a length of time.
pub(crate) fn random_part(time: Duration) -> Duration {
    // The random bits of a UUID save a dependency on a generator.
    let random = Uuid::new_v4().as_u64_pair().1 as u32;
    time.mul_f64(f64::from(random) / (f64::from(u32::MAX) + 1.0))
}
