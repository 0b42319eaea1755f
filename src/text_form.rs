//! `Serialize` and `Deserialize` for every type that has a text form, through that text.

use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize, Serializer};

use crate::failure::FailurePolicy;
use crate::key::TrustedProxies;
use crate::policy::Penalty;
use crate::quota::{Quota, Span};

macro_rules! through_text {
    ($($type:ty),*) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }
    )*};
}

through_text!(Quota, Penalty, Span, FailurePolicy, TrustedProxies);
