//! `Serialize` and `Deserialize` for every type that has a text form, through that text.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::failure::FailurePolicy;
use crate::key::TrustedProxies;
use crate::policy::Penalty;
use crate::quota::Quota;
use crate::store::BanCursor;

/// Reads a text with the type's `FromStr`, whose error names the wrong part.
struct TextVisitor<T> {
    expected: &'static str,
    parsed: PhantomData<T>,
}

impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

macro_rules! through_text {
    ($($type:ty, $expected:literal;)*) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str(TextVisitor {
                    expected: $expected,
                    parsed: PhantomData,
                })
            }
        }
    )*};
}

through_text! {
    Quota, "a quota in quotation marks, such as \"5/60s\"";
    Penalty, "a penalty in quotation marks, such as \"3/10m:1m,1h,24h\"";
    FailurePolicy, "a failure policy in quotation marks: \"local\", \"local:3\", \"open\" or \"closed\"";
    TrustedProxies, "networks in quotation marks, such as \"10.0.0.0/8, ::1\"";
    BanCursor, "the cursor of a page of bans, in quotation marks";
}
