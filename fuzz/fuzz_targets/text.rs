//! What an operator writes: quotas, policies, penalties and documents of policies. What can be read is written and read
//! back as the same. `tests/input/documents.rs` has more on texts that proptest writes.
#![no_main]

use std::fmt::{Debug, Display};
use std::str::FromStr;

use libfuzzer_sys::fuzz_target;
use tower_sliding_window::key::TrustedProxies;
use tower_sliding_window::{FailurePolicy, Override, Penalty, Policies, Policy, Quota};

fn is_read_back<T: FromStr<Err: Debug> + Display + PartialEq + Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        assert_eq!(value.to_string().parse::<T>().expect("what was written"), value);
    }
}

fuzz_target!(|text: &str| {
    is_read_back::<Quota>(text);
    is_read_back::<Penalty>(text);
    is_read_back::<FailurePolicy>(text);
    is_read_back::<TrustedProxies>(text);
    let _ = (text.parse::<Policy>(), text.parse::<Override>());
    let documents = [serde_json::from_str::<Policies>(text).ok(), toml::from_str::<Policies>(text).ok()];
    for document in documents.into_iter().flatten() {
        let written = serde_json::to_string(&document).expect("a document");
        let read: Policies = serde_json::from_str(&written).expect("what was written");
        assert_eq!(read.all(), document.all());
    }
});
