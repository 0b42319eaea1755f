//! Designs of a speech monitor known to be wrong, and the right decisions beside each. Time is paused.

use tokio::time::Instant;

use super::{HOUR, rules};
use crate::{Message, SpeechMonitor, similarity};

/// The share of bytes that are the same at the same position, over the shorter length.
fn same_byte_at_same_position(one: &str, other: &str) -> f64 {
    let shorter = one.len().min(other.len());
    let same = one.bytes().zip(other.bytes()).filter(|(a, b)| a == b).count();
    same as f64 / shorter as f64
}

#[test]
fn equal_bytes_at_positions_miss_copies() {
    let wrong = same_byte_at_same_position;
    assert_eq!(wrong("a", "abc"), 1.0, "the wrong design: a prefix is the same");
    assert!(similarity("a", "abc") < 90);

    assert!(wrong("", "abc").is_nan(), "the wrong design divides by zero");
    assert!(wrong("", "").is_nan());
    assert_eq!((similarity("", "abc"), similarity("", "")), (0, 100));

    assert!(wrong("今", "仍") > 0.6, "the wrong design compares parts of characters");
    assert_eq!(similarity("今", "仍"), 0);
    assert_eq!(wrong("😀", "😁"), 0.75);
    assert_eq!(similarity("😀", "😁"), 0);

    let (spam, moved) = ("加微信abc123领红包", "!加微信abc123领红包");
    assert!(wrong(spam, moved) < 0.2, "the wrong design: one character in front, and all differs");
    assert!(similarity(spam, moved) >= 90);
    assert!(wrong("buy gold", "b u y g o l d") < 0.3);
    assert_eq!(similarity("buy gold", "b u y g o l d"), 100);
}

#[tokio::test(start_paused = true)]
async fn shorter_mute_does_not_replace_a_longer_one() {
    let start = Instant::now();
    // SETEX: the last one to be written stands.
    let wrong_until = [48 * HOUR, 24 * HOUR].into_iter().fold(start, |_, mute| start + mute);
    assert_eq!(wrong_until - start, 24 * HOUR, "the wrong design shows its fault");

    let rules = rules(&["peers 2/5m mute 48h", "events 4/5m mute 24h"]);
    let monitor = SpeechMonitor::in_process(rules);
    for peer in ["a", "b", "a", "b", "a"] {
        let _ = monitor.check(&Message::from("alice").to(peer)).await.unwrap();
    }
    assert_eq!(monitor.mute_of("alice").await.unwrap().unwrap().remaining, 48 * HOUR);
}
