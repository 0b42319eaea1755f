//! Lengths of time as whole microseconds, for `Serialize`.

use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::time::micros;

pub(super) fn as_micros<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(micros(*time))
}

pub(super) fn some_as_micros<S: Serializer>(
    time: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    Serialize::serialize(&time.map(micros), serializer)
}

pub(super) fn all_as_micros<S: Serializer>(
    times: &[Duration],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(times.iter().map(|time| micros(*time)))
}
